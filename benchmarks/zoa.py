"""Why ZOA loses on a small model: parts of it taken away, and how long its steps are beside its probes.

    python -m benchmarks.zoa WEIGHTS IMAGES [--images 192] [--seeds 0 1 2]

A step goes where one probe points, as far as the loss changed: ``rate / c`` times that change. A probe moves the
LayerNorms by ``c`` and, once a domain is stored, the mixture of the bank as well, and the loss's change is put down to
both. Rows: as published; with a mixture that is not probed; without a bank; at a sixteenth of the rate; and with no
learning at all, which leaves the shift that ZOA has from FOA. One continual stream of the fifteen corruptions at level
5, the same batches to all; gains over NoAdapt are of each seed of the draws, with 95 % intervals over images.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import fozo
from benchmarks.calibration import Predictor, play, written
from benchmarks.common import clean_and_test, clean_batches
from benchmarks.narrow import table
from fozo.core.statistics import SourceStatistics
from fozo.data.corruptions import KINDS
from fozo.data.scenarios import Continual
from fozo.data.streams import LabelledBatch
from fozo.methods.zoa import ZOA, ZOAConfig
from fozo.types import Engine, Floats

CALIBRATION, BATCH, BASE = 512, 64, "NoAdapt"
PROBE = ZOAConfig().c * (7 / 12) ** 0.5
"""How far a probe moves a number of the LayerNorms, as a root mean square: draws are uniform in 0.5 to 1."""
ROWS: Mapping[str, Mapping[str, Any]] = {
    "published": {},
    "mixture not probed": {"mixture_c": 1e-9},
    "no bank": {"threshold": 1e9},
    "rate / 16": {"rate": ZOAConfig().rate / 16},
    "the shift alone": {"rate": 0.0, "mixture_rate": 0.0},
}


class Watched:
    """ZOA, and how far each of its steps moved the LayerNorms: a root mean square, in probes."""

    def __init__(self, engine: Engine, source: SourceStatistics, seed: int, options: Mapping[str, Any]) -> None:
        self.method, self.steps = ZOA(engine, source, seed=seed, **options), list[float]()
        self.weights = self.method.norms.start

    def __call__(self, batch: LabelledBatch) -> Floats:
        logits = self.method(batch.images)
        before, self.weights = self.weights, self.method._weights(self.method.search.point)
        self.steps.append(float(np.sqrt(((self.weights - before) ** 2).mean())) / PROBE)
        return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("folder", type=Path, help="of clean images, with one folder for each class")
    parser.add_argument("--images", type=int, default=192, help="of each corruption")
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    a = parser.parse_args()
    engine = fozo.load_engine(a.weights)
    clean, images = clean_and_test(a.folder, CALIBRATION, a.images)
    source = fozo.calibrate(engine, clean_batches(clean, engine.spec))
    plain = fozo.NoAdapt(engine)
    watched = {(name, s): Watched(engine, source, s, options) for name, options in ROWS.items() for s in a.seeds}
    predictors: dict[str, Predictor] = {BASE: lambda batch: plain(batch.images)}
    predictors |= {f"{name} {seed}": each for (name, seed), each in watched.items()}
    stream = fozo.Stream(images, engine.spec, Continual(kinds=KINDS, severity=5), batch_size=BATCH)
    hits = play(predictors, stream, "streaming")
    third = len(stream) // 3
    rows = []
    for name in ROWS:
        steps = np.array([watched[name, seed].steps for seed in a.seeds])
        ends = [f"{part.mean():.2f}" for part in (steps[:, :third], steps[:, -third:])]
        rows.append([name, *(written(hits[f"{name} {seed}"], hits[BASE]) for seed in a.seeds), *ends])
    seeds = [f"seed {seed}" for seed in a.seeds]
    print(table(["ZOA", *seeds, "steps in probes, first third", "last third"], rows))
    print(f"\n{engine.spec.name}, {len(images)} images a corruption, {BASE} {100 * hits[BASE].mean():.1f} %")


if __name__ == "__main__":
    main()
