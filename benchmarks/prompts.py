"""What prompts at the input of a ViT can do, and what zeroth-order search of them finds: figures of docs/fozo.md.

    python -m benchmarks.prompts landscape WEIGHTS IMAGES    # random prompts: which label-free loss goes with accuracy?
    python -m benchmarks.prompts ceiling WEIGHTS IMAGES      # prompts by exact gradients, with labels and without
    python -m benchmarks.prompts quadratic docs/results/epsilon.svg  # Theorem 2: epsilon of Eq. 12 against fixed ones

The first two need PyTorch and print a line of JSON for each corruption: of the four extra ones at severity 5, which no
comparison shows. ``--bfloat16`` is 2.7 times as fast on a processor that has it. All accuracies are of logits whose
batches are shifted to the source's mean, as in the preset ``scaled``.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import fozo
from benchmarks.common import clean_and_test, clean_batches, refusals
from benchmarks.pictures import svg, text
from fozo.core.noise import PhiloxNoise
from fozo.core.schedule import Schedule
from fozo.core.spsa import SPSA
from fozo.data.corruptions import EXTRA_KINDS
from fozo.data.scenarios import Continual
from fozo.engines.torch_engine import TorchEngine
from fozo.io import atomic_write
from fozo.types import Array

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
    """Losses of random prompts: do they agree between batches, and do they go with the cross-entropy?"""
    generator = torch.Generator().manual_seed(1)
    prompts = 0.5 * torch.randn(count, 3, lab.spec.dim, generator=generator)
    values: dict[str, list[list[float]]] = {name: [] for name in (*LOSSES, "truth")}
    right = []
    with torch.inference_mode():
        for images, labels in lab.corrupted(kind):
            runs = [lab.run(images, each) for each in prompts]
            for name, loss in LOSSES.items():
                values[name].append([float(loss(run)) for run in runs])
            values["truth"].append([float(F.cross_entropy(run.logits, labels)) for run in runs])
            right.append([float((run.logits.argmax(dim=1) == labels).float().mean()) for run in runs])
    truth = np.array(values.pop("truth"))
    found: dict[str, object] = {"kind": kind, "accuracy_std": round(100 * float(np.mean(right, axis=0).std()), 2)}
    for name, rows in values.items():
        both = np.array(rows)
        between = np.corrcoef(both[0], both[1])[0, 1]
        found[name] = {"between_batches": round(between, 2), "with_cross_entropy":
                       round(float(np.corrcoef(both.mean(axis=0), truth.mean(axis=0))[0, 1]), 2)}  # fmt: skip
    return found


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


def changing_quadratics(schedule: Schedule, seed: int, domains: int = 8, steps: int = 60, dim: int = 32) -> Array:
    """Distance to an optimum that jumps every ``steps`` steps, on a quadratic with ripples (local minima)."""
    generator, found = np.random.default_rng(seed), []
    spsa = SPSA(np.zeros(dim), schedule, PhiloxNoise(seed), samples=4)
    for _ in range(domains):
        centre = generator.standard_normal(dim)
        for _ in range(steps):
            away = spsa.ask() - centre
            spsa.tell(np.square(away).sum(axis=1) + np.square(np.sin(8 * away)).sum(axis=1) / 2)
            found.append(float(np.square(spsa.point - centre).mean()))
    return np.array(found)


def quadratic(target: Path) -> None:
    """Mean over 20 runs of the squared distance, for Eq. 12 and for fixed epsilons; a table, and a figure."""
    dynamic = Schedule(epsilon=0.5, epsilon_min=0.05, decay=0.9, rate=0.02)
    rows = {"0.5 to 0.05, Eq. 12": dynamic} | {
        f"fixed at {value}": Schedule(epsilon=value, epsilon_min=value, rate=0.02) for value in (0.5, 0.2, 0.05)
    }
    curves = {
        name: np.mean([changing_quadratics(each, seed) for seed in range(20)], axis=0) for name, each in rows.items()
    }
    for name, curve in curves.items():
        early, late = curve.reshape(8, 60)[1:, :20].mean(), curve.reshape(8, 60)[1:, 40:].mean()
        print(f"| {name} | {curve.mean():.3f} | {early:.3f} | {late:.3f} |")
    inks, top = ("var(--good)", "var(--bad)", "var(--tie)", "var(--ink)"), max(curve.max() for curve in curves.values())
    parts = []
    for place, (name, curve) in enumerate(curves.items()):
        points = " ".join(f"{40 + 1.5 * x:.1f},{240 - 200 * y / top:.1f}" for x, y in enumerate(curve))
        parts.append(f'<polyline class="curve" points="{points}" style="stroke: {inks[place]}"/>')
        parts.append(f'<g style="--ink: {inks[place]}">{text(600, 40 + 16 * place, name)}</g>')
    parts.append(text(40, 260, "steps; the optimum moves every 60. Squared distance to it, mean of 20 runs", "soft"))
    with atomic_write(target) as stream:
        stream.write(svg("Distance to a moving optimum by schedule of epsilon", 275, parts).encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("quadratic").add_argument("target", type=Path)
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
        if given.command == "quadratic":
            quadratic(given.target)
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
