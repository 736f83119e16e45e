"""Does zeroth-order search gain anything on top of Align when there are passes to spare?

    python -m benchmarks.search WEIGHTS IMAGES [--images 1000] [--severity 5] [--kinds gaussian_noise,fog,...]

Align's four strengths are searched for while it runs, as FOZO searches for prompts: each batch is predicted twice from
the same memory, with the strengths times exp(+eps z) and exp(-eps z); the two losses give a step of SPSA on their
logarithms, and the better prediction and its memory are kept. The loss is the mean entropy, or FOZO's (the distance of
the features' statistics from the source is added), or, as an oracle, the share of images that the labels call wrong:
what a search could do if its objective knew everything. Beside them Align with one and two passes, and FOZO with two.

One continual stream, the same batches to every contender, source statistics from images that are not in the stream.
Prints Markdown. Intervals are of 95 %, over images, as in benchmarks/calibration.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

import fozo
from benchmarks.calibration import Predictor, adapting, play, written
from benchmarks.common import clean_and_test, clean_batches
from benchmarks.narrow import table
from fozo.core.moments import Moments
from fozo.core.noise import PhiloxNoise
from fozo.core.objective import Objective, entropies
from fozo.core.schedule import Schedule
from fozo.core.spsa import SPSA
from fozo.core.statistics import SourceStatistics
from fozo.data.scenarios import Continual
from fozo.data.streams import LabelledBatch
from fozo.methods.align import AlignConfig
from fozo.types import NO_KNOBS, Affine, Array, Batch, Engine, Floats, Images, Knobs, Spec, Tap, Taps, Threads

CALIBRATION = 512
BATCH = 16
STRENGTHS = ("mean_strength", "std_strength", "cls_strength", "equaliser_strength")
FACTORS = (1 / 8, 4.0)
"""How far from their defaults strengths are searched; none exceeds 1 in any case."""
BASE = "Align"

Loss: TypeAlias = Callable[[LabelledBatch, Floats, Floats], float]
"""Of a batch, its logits ``[B, classes]``, and its features of each block ``[B, L, d]``."""


class Watched:
    """An engine that keeps the features of its latest runs, which Align has no reason to ask for."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.features: list[Floats] = []

    @property
    def spec(self) -> Spec:
        return self.engine.spec

    @property
    def device(self) -> str:
        return self.engine.device

    @property
    def abilities(self) -> frozenset[str]:
        return self.engine.abilities

    @property
    def threads(self) -> Threads:
        return self.engine.threads

    def check(self, images: Images) -> Batch:
        return self.engine.check(images)

    def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
        found = self.engine.run(batch, knobs, (*taps, Tap.FEATURES))
        self.features.append(found[Tap.FEATURES][0])
        return found

    def head(self) -> Affine:
        return self.engine.head()


class Search:
    """Align with strengths that follow a loss."""

    def __init__(
        self, engine: Engine, source: SourceStatistics, loss: Loss, *, epsilon: float, rate: float, seed: int
    ) -> None:
        self.engine, self.loss = Watched(engine), loss
        self.method = fozo.Align(self.engine, source)
        self.usual: AlignConfig = self.method.config
        defaults = np.array([getattr(self.usual, name) for name in STRENGTHS])
        self.low, self.high = np.full(len(defaults), np.log(FACTORS[0])), np.log(np.minimum(FACTORS[1], 1 / defaults))
        # Neither scale changes: four numbers are no prompts, and no domain needs finer ones than another.
        schedule = Schedule(epsilon=epsilon, epsilon_min=epsilon, decay=1.0, rate=rate)
        self.optimizer = SPSA(np.zeros(len(defaults)), schedule, PhiloxNoise(seed))

    def __call__(self, batch: LabelledBatch) -> Floats:
        """Predict a batch under two candidates, step, and keep the better one."""
        before, tried = self.method.state(), []
        for point in self.optimizer.ask():
            self.method.load_state(before)
            self.method.config = self.config(point)
            self.engine.features = []
            logits = self.method(batch.images)
            loss = self.loss(batch, logits, np.concatenate(self.engine.features))
            tried.append((loss, logits, self.method.state()))
        self.optimizer.tell([loss for loss, _, _ in tried])
        self.optimizer.point = self.clipped(self.optimizer.point)
        _, logits, state = min(tried, key=lambda each: each[0])
        self.method.load_state(state)
        return logits

    def clipped(self, point: Array) -> Array:
        return np.clip(point, self.low, self.high)

    def config(self, point: Array) -> AlignConfig:
        """Read strengths from the logarithms of their factors."""
        factors = np.exp(self.clipped(point)).tolist()
        # exp(log(1 / s)) s may exceed 1 by a last bit, which the config would refuse.
        return replace(
            self.usual,
            **{name: min(getattr(self.usual, name) * by, 1.0) for name, by in zip(STRENGTHS, factors, strict=True)},
        )


def entropy(batch: LabelledBatch, logits: Floats, features: Floats) -> float:
    """Mean over the batch."""
    return float(entropies(logits).mean())


def wrong(batch: LabelledBatch, logits: Floats, features: Floats) -> float:
    """Share of the batch that the labels call wrong."""
    return float((logits.argmax(axis=1) != batch.labels).mean())


def fozos(source: SourceStatistics) -> Loss:
    """Eq. 15 as the authors' program has it, divided by the size of the batch, so that one rate serves all losses."""
    objective: Objective = fozo.FOZO.PRESETS["official"].objective()

    def loss(batch: LabelledBatch, logits: Floats, features: Floats) -> float:
        return objective(source.features, Moments.of(features), logits) / len(logits)

    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("folder", type=Path, metavar="IMAGES")
    parser.add_argument("--kinds", default="gaussian_noise,fog,jpeg_compression")
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument("--images", type=int, default=1000, help="of each corruption")
    parser.add_argument("--epsilon", type=float, default=0.3, help="how far candidates are, in logarithms of strengths")
    parser.add_argument("--rate", type=float, default=0.1, help="of the steps")
    parser.add_argument("--seed", type=int, default=0, help="of the directions, the images and their order")
    a = parser.parse_args()
    engine = fozo.load_engine(a.weights)
    clean, test = clean_and_test(a.folder, CALIBRATION, a.images, a.seed)
    source = fozo.calibrate(engine, clean_batches(clean, engine.spec))
    scenario = Continual(kinds=tuple(a.kinds.split(",")), severity=a.severity)
    stream = fozo.Stream(test, engine.spec, scenario, batch_size=BATCH, seed=a.seed)

    losses: dict[str, Loss] = {"entropy": entropy, "FOZO's loss": fozos(source), "labels (oracle)": wrong}
    searches = {
        f"Align + SPSA, {name}": Search(engine, source, loss, epsilon=a.epsilon, rate=a.rate, seed=a.seed)
        for name, loss in losses.items()
    }
    rows: dict[str, tuple[int, Predictor]] = {
        "NoAdapt": (1, adapting(fozo.NoAdapt(engine))),
        BASE: (1, adapting(fozo.Align(engine, source))),
        "Align, 2 passes": (2, adapting(fozo.Align(engine, source, passes=2))),
        "FOZO": (2, adapting(fozo.FOZO(engine, source, passes=2, seed=a.seed))),
        **{name: (2, search) for name, search in searches.items()},
    }
    hits = play({name: predict for name, (_, predict) in rows.items()}, stream, "search")
    heads = ["", "passes", *(segment.name for segment in stream.segments), "average", f"less {BASE} (95 %)"]
    lines = [
        [name, passes, *(f"{value:.1f}" for value in 100 * hits[name].mean(axis=1)), f"{100 * hits[name].mean():.2f}",
         "-" if name == BASE else written(hits[name], hits[BASE])]
        for name, (passes, _) in rows.items()
    ]  # fmt: skip
    print(f"{table(heads, lines)}\n")
    for name, search in searches.items():
        reached = zip(STRENGTHS, np.exp(search.optimizer.point), strict=True)
        print(f"- {name}, factors reached: {', '.join(f'{each} x {by:.2f}' for each, by in reached)}")
    print(
        f"\n{engine.spec.name}, {a.images} images a domain, severity {a.severity}, batches of {BATCH}, continual, "
        f"epsilon {a.epsilon:g}, rate {a.rate:g}, seed {a.seed}"
    )


if __name__ == "__main__":
    main()
