"""What prompts at the input of a ViT can do, and what zeroth-order search of them finds: figures of docs/fozo.md.

    python -m benchmarks.prompts landscape WEIGHTS IMAGES    # random prompts: which label-free loss goes with accuracy?
    python -m benchmarks.prompts ceiling WEIGHTS IMAGES      # prompts by exact gradients, with labels and without
    python -m benchmarks.prompts behind MODEL IMAGES >> results/behind.jsonl  # searched behind Align, at equal passes

The first two need PyTorch and print a line of JSON for each corruption: of the four extra ones at severity 5, which no
comparison shows. ``--bfloat16`` is 2.7 times as fast on a processor that has it. All accuracies are of logits whose
batches are shifted to the source's mean, as in the preset ``scaled``.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import log_softmax, logsumexp
from torch import Tensor

import fozo
from benchmarks.common import clean_and_test, clean_batches, refusals
from fozo.core.moments import Moments
from fozo.core.noise import PhiloxNoise
from fozo.core.objective import Objective
from fozo.core.spsa import SPSA
from fozo.data.corruptions import EXTRA_KINDS, KINDS
from fozo.data.scenarios import Continual
from fozo.engines.torch_engine import TorchEngine
from fozo.methods.fozo.method import token_rms
from fozo.types import NO_KNOBS, Array, Batch, Floats, Knobs, Tap, Taps

BATCH = 64


class Lab:
    """A model that can be differentiated with respect to its prompts, and images of one corruption after the other."""

    def __init__(self, weights: str, folder: Path, images: int, train: int, bfloat16: bool) -> None:
        engine = fozo.load_engine(weights)
        assert isinstance(engine, TorchEngine)
        self.spec, self.vit, self.bfloat16 = engine.spec, engine.vit.requires_grad_(False), bfloat16
        clean, self.test = clean_and_test(folder, 512, images + train)
        self.split = images
        rows = [self.run(torch.from_numpy(x), None) for x in clean_batches(clean, self.spec)]
        self.source = torch.cat([row.features for row in rows])
        self.centre = self.source[:, -1].mean(dim=0)
        tokens = self.vit.embed(torch.from_numpy(next(clean_batches(clean, self.spec))))
        self.unit = float(tokens[:, 1:].square().mean().sqrt())

    def run(self, images: Tensor, prompts: Tensor | None) -> "Pass":
        """CLS after the norm that reads it next, ``[B, L, d]``."""
        vit, found = self.vit, []
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bfloat16):
            x = vit.embed(images)
            if prompts is not None:
                x = torch.cat([x[:, :1], prompts.expand(len(x), -1, -1), x[:, 1:]], dim=1)
            norms = [*(getattr(block, "norm1") for block in vit.blocks[1:]), vit.norm]  # noqa: B009
            for block, norm in zip(vit.blocks, norms, strict=True):
                x = block(x)
                found.append(norm(x[:, 0].float()).float())
        return Pass(torch.stack(found, dim=1), self)

    def corrupted(self, kind: str) -> Iterator[tuple[Tensor, Tensor]]:
        stream = fozo.Stream(self.test, self.spec, Continual(kinds=(kind,)), batch_size=BATCH)
        for batch in stream.batches():
            yield torch.from_numpy(batch.images), torch.from_numpy(batch.labels)


class Pass:
    """What a pass gave: features, and the logits with and without a shift of the batch to the source's mean."""

    def __init__(self, features: Tensor, lab: Lab) -> None:
        self.features, self.lab = features, lab

    @property
    def logits(self) -> Tensor:
        pooled, head = self.features[:, -1], self.lab.vit.head
        return F.linear(pooled - pooled.mean(dim=0) + self.lab.centre, head.weight, head.bias)

    @property
    def plain(self) -> Tensor:
        return F.linear(self.features[:, -1], self.lab.vit.head.weight, self.lab.vit.head.bias)


def entropy(logits: Tensor) -> Tensor:
    logs = logits.log_softmax(dim=-1)
    return -(logs.exp() * logs).sum(dim=-1).mean()


def diverse(run: Pass) -> Tensor:
    """The loss of the preset ``scaled``: entropy of each image less that of their average prediction."""
    average = run.logits.softmax(dim=-1).mean(dim=0)
    return entropy(run.logits) + torch.xlogy(average, average).sum()


def alignment(run: Pass) -> Tensor:
    """L_stats as the authors' program has it."""
    own, source = run.features, run.lab.source
    means, stds = own.mean(dim=0) - source.mean(dim=0), own.std(dim=0) - source.std(dim=0)
    return means.square().sum() + stds.square().sum()


LOSSES: dict[str, Callable[[Pass], Tensor]] = {
    "alignment": alignment,
    "entropy": lambda run: entropy(run.plain),
    "official": lambda run: 0.4 * alignment(run) + BATCH * entropy(run.plain),
    "scaled": diverse,
}


def landscape(lab: Lab, kind: str, count: int) -> dict[str, object]:
    """Losses of random prompts: do they agree between batches, do they go with the cross-entropy, and with top-1?

    ``top1``: without prompts and shift, with the shift, a draw on average, the mean prediction of all draws, and in
    each batch the best draw by a loss or by the labels.
    """
    generator = torch.Generator().manual_seed(1)
    prompts = 0.5 * torch.randn(count, 3, lab.spec.dim, generator=generator)
    values: dict[str, list[list[float]]] = {name: [] for name in (*LOSSES, "labels")}
    top: dict[str, list[float]] = {}
    with torch.inference_mode():
        for images, labels in lab.corrupted(kind):
            none, runs = lab.run(images, None), [lab.run(images, each) for each in prompts]
            for name, loss in LOSSES.items():
                values[name].append([float(loss(run)) for run in runs])
            values["labels"].append([float(F.cross_entropy(run.logits, labels)) for run in runs])
            right = [_right(run.logits, labels) for run in runs]
            averaged = torch.stack([run.logits.softmax(dim=1) for run in runs]).mean(dim=0)
            best = {f"best by {name}": right[int(np.argmin(rows[-1]))] for name, rows in values.items()}
            found = {"plain": _right(none.plain, labels), "shift": _right(none.logits, labels),
                     "draw": float(np.mean(right)), "averaged": _right(averaged, labels), **best}  # fmt: skip
            for name, value in found.items():
                top.setdefault(name, []).append(value)
    truth = np.array(values.pop("labels")).mean(axis=0)
    between = {name: round(float(np.corrcoef(rows[0], rows[1])[0, 1]), 2) for name, rows in values.items()}
    known = {name: round(float(np.corrcoef(np.mean(rows, axis=0), truth)[0, 1]), 2) for name, rows in values.items()}
    means = {name: round(float(np.mean(each)), 1) for name, each in top.items()}
    return {"kind": kind, "top1": means, "between_batches": between, "with_cross_entropy": known}


def _right(outputs: Tensor, labels: Tensor) -> float:
    return 100 * float((outputs.argmax(dim=1) == labels).float().mean())


def ceiling(lab: Lab, kind: str, loss: str, epochs: int) -> dict[str, object]:
    """Top-1 of prompts by Adam on images apart from the tested ones: unadapted, first prompts, after each epoch."""
    batches = list(lab.corrupted(kind))
    tests, trains = batches[: lab.split // BATCH], batches[lab.split // BATCH :]
    generator = torch.Generator().manual_seed(0)
    prompts = (lab.unit * torch.randn(3, lab.spec.dim, generator=generator)).requires_grad_()
    optimiser = torch.optim.Adam([prompts], lr=0.05)

    @torch.inference_mode()
    def accuracy(given: Tensor | None) -> float:
        right = [(lab.run(x, given).logits.argmax(dim=1) == y).float().mean() for x, y in tests]
        return round(100 * float(torch.stack(right).mean()), 1)

    curve = [accuracy(None), accuracy(prompts.detach())]
    for _ in range(epochs):
        for images, labels in trains:
            run = lab.run(images, prompts)
            value = F.cross_entropy(run.logits, labels) if loss == "labels" else LOSSES[loss](run)
            optimiser.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        curve.append(accuracy(prompts.detach()))
    return {"kind": kind, "loss": loss, "top1": curve}


class Prompted:
    """An engine that runs what Align asks for under several prompts, and reports the average over them.

    So a search of prompts goes on behind Align's moves, and K candidates cost K passes in all.
    """

    def __init__(self, engine: fozo.Engine, source: fozo.SourceStatistics, passes: int, seed: int) -> None:
        self.engine, config = engine, fozo.FOZO.PRESETS["scaled"]
        unit = token_rms(source)
        self.spsa = SPSA(
            np.zeros((1, engine.spec.dim)), config.schedule.scaled(unit), PhiloxNoise(seed), samples=passes // 2,
            watch="mean", radius=config.trust * unit,
        )  # fmt: skip
        self.objective = Objective(0.0, "standardised")
        self.logits: list[Floats] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self.engine, name)

    def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
        found = self.engine.run(batch, replace(knobs, prompts=self.spsa.ask().astype(np.float32)), taps)
        self.logits.append(found[Tap.LOGITS])
        means = {tap: values.mean(axis=0, keepdims=True) for tap, values in found.items()}
        chances = log_softmax(found[Tap.LOGITS], axis=2)
        return {**means, Tap.LOGITS: logsumexp(chances, axis=0, keepdims=True).astype(np.float32)}

    def learn(self, source: fozo.SourceStatistics) -> None:
        """A step of n-SPSA from all that ran since the last one."""
        logits = np.concatenate(self.logits, axis=1)
        empty = Moments.of(np.zeros((1, *source.features.mean.shape)))
        self.spsa.tell([self.objective(source.features, empty, each) for each in logits])
        self.logits = []


def behind(weights: str, folder: Path, images: int, kinds: Sequence[str], passes: Sequence[int]) -> None:
    """Align with more passes, and one pass of it under as many prompts: a line of JSON each, with paired gains."""
    engine = fozo.load_engine(weights, threads=1)
    clean, test = clean_and_test(folder, 512, images)
    source = fozo.calibrate(engine, clean_batches(clean, engine.spec))

    def align(count: int) -> tuple[fozo.Align, Prompted | None]:
        return fozo.Align(engine, source, passes=count), None

    def prompted(count: int) -> tuple[fozo.Align, Prompted | None]:
        search = Prompted(engine, source, count, 0)
        return fozo.Align(cast("fozo.Engine", search), source), search

    makers = {"Align": align, "Align and prompts": prompted}
    methods = [("Align", 1), *((name, count) for count in passes for name in makers)]
    stream = fozo.Stream(test, engine.spec, Continual(kinds=tuple(kinds)), batch_size=BATCH)
    batches = list(stream.batches())
    samples, found = np.concatenate([batch.samples for batch in batches]), dict[tuple[str, int], Array]()
    for name, count in methods:
        method, search = makers[name](count)
        hits: list[bool] = []
        for batch in batches:
            hits += (method(batch.images).argmax(axis=1) == batch.labels).tolist()
            if search is not None:
                search.learn(source)
        found[name, count] = 100 * np.bincount(samples, hits) / len(kinds)  # of each image, over its corruptions
        rival = found["Align", count] if search is not None else found["Align", 1]
        gain = found[name, count] - rival
        row = {"method": name, "passes": count, "top1": round(float(found[name, count].mean()), 1),
               "against": f"Align, {count if search else 1}", "gain": round(float(gain.mean()), 2),
               "half": round(1.96 * float(gain.std(ddof=1)) / len(gain) ** 0.5, 2)}  # fmt: skip
        print(json.dumps({"model": Path(weights).stem, "images": images, **row}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("behind")
    command.add_argument("weights")
    command.add_argument("folder", type=Path)
    command.add_argument("--images", type=int, default=128)
    command.add_argument("--kinds", default=",".join(KINDS))
    command.add_argument("--passes", default="2,4,8")
    for name in ("landscape", "ceiling"):
        command = commands.add_parser(name)
        command.add_argument("weights")
        command.add_argument("folder", type=Path)
        command.add_argument("--images", type=int, default=128 if name == "landscape" else 256)
        command.add_argument("--train", type=int, default=0 if name == "landscape" else 320)
        command.add_argument("--kinds", default=",".join(EXTRA_KINDS))
        command.add_argument("--bfloat16", action="store_true")
        if name == "landscape":
            command.add_argument("--prompts", type=int, default=24)
        else:
            command.add_argument("--loss", choices=["labels", *LOSSES], default="labels")
            command.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    with refusals("prompts"):
        if given.command == "behind":
            passes = [int(part) for part in given.passes.split(",")]
            behind(given.weights, given.folder, given.images, given.kinds.split(","), passes)
            return
        lab = Lab(given.weights, given.folder, given.images, given.train, given.bfloat16)
        for kind in given.kinds.split(","):
            row = (
                landscape(lab, kind, given.prompts)
                if given.command == "landscape"
                else ceiling(lab, kind, given.loss, given.epochs)
            )
            print(json.dumps({"model": lab.spec.name, **row}), flush=True)


if __name__ == "__main__":
    main()
