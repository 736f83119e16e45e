"""One adapted batch: fozo's engine against the published loop, side by side in one run.

    python -m benchmarks.engine [--batch 64] [--passes 2] [--size base] [--rounds 5] [--chunk 8]

The rival is a straightforward loop: for every candidate one full pass of the plain model over the whole batch, its
loss, its prediction. Both do the same FOZO step from the same state on the same images (a ViT of the given size with
random weights: speed does not depend on them) and their outputs are compared. Rounds alternate between the two, so
that a noisy machine is noisy for both; the median of the rounds' ratios is the result. Peak memory is measured in
processes of their own, against plain inference of the same batch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch

import fozo
from benchmarks.common import SIZES, in_a_process, in_turn, mebibytes, random_engine, summary, timed
from fozo.core.moments import Moments
from fozo.engines.torch_engine import TorchEngine
from fozo.testing import random_images
from fozo.types import Floats


class PublishedLoop:
    """FOZO as published: separate full passes, nothing shared, statistics from every layer's normed CLS."""

    def __init__(self, method: fozo.FOZO, engine: TorchEngine) -> None:
        self.method, self.vit = method, engine.vit

    @torch.inference_mode()
    def features(self, batch: torch.Tensor, prompts: torch.Tensor) -> torch.Tensor:
        x = self.vit.embed(batch)
        x = torch.cat([x[:, :1], prompts.expand(len(x), -1, -1), x[:, 1:]], dim=1)
        rows = []
        for i, block in enumerate(self.vit.blocks):
            if i:
                rows.append(block.norm1(x[:, 0]))  # type: ignore[operator]
            x = block(x)
        rows.append(self.vit.norm(x)[:, 0])
        return torch.stack(rows, dim=1)

    @torch.inference_mode()
    def __call__(self, batch: Floats) -> Floats:
        method = self.method
        shift = method.shift.vector(method.source.pooled.mean)
        losses, outputs, means = [], [], []
        for prompts in method.spsa.ask():
            features = self.features(torch.from_numpy(batch), torch.from_numpy(prompts).float())
            pooled = features[:, -1]
            means.append(pooled.mean(dim=0).double().numpy())
            if shift is not None:
                pooled = pooled + torch.from_numpy(shift).float()
            outputs.append(self.vit.head(pooled).numpy())
            losses.append(method.objective(method.source_features, Moments.of(features.numpy()), outputs[-1]))
        method.spsa.tell(losses)
        method.shift.observe(np.mean(means, axis=0))
        output: Floats = outputs[int(np.argmin(losses))]
        return output


def compare(size: str, batch: int, passes: int, rounds: int, chunk: int | None) -> None:
    engine = random_engine(size, chunk)
    source = fozo.calibrate(engine, [random_images(engine.spec, 8)])
    ours = fozo.FOZO(engine, source, passes=passes)
    calls: dict[str, Callable[[Floats], Floats]] = {"fozo": ours, "loop": PublishedLoop(ours.clone(), engine)}
    data = random_images(engine.spec, batch)
    clocks, processors = [], []
    for number, turn in in_turn(list(calls), rounds):
        found = {name: timed(calls[name], data) for name in turn}
        clock, processor = (theirs / own for theirs, own in zip(found["loop"][0], found["fozo"][0], strict=True))
        difference = float(np.abs(found["loop"][1] - found["fozo"][1]).max())
        if number:
            clocks.append(clock)
            processors.append(processor)
            print(
                f"round {number}: {clock:.3f}x by the clock, {processor:.3f}x in processor time; outputs differ by "
                f"at most {difference:.1e}",
                flush=True,
            )
    print(
        f"ViT-{size}, batch {batch}, {passes} passes, {torch.get_num_threads()} threads, chunks of {engine.chunk}: "
        f"fozo is {summary(clocks)} as fast as the published loop by the clock and {summary(processors)} in processor "
        f"time; medians and ranges of {rounds} rounds"
    )


def peak(what: str, size: str, batch: int, passes: int) -> None:
    """Print this process's peak memory after one job."""
    engine = random_engine(size)
    data = random_images(engine.spec, batch)
    if what == "plain":
        with torch.inference_mode():
            engine.vit(torch.from_numpy(data))
    else:
        source = fozo.calibrate(engine, [random_images(engine.spec, 2)])
        fozo.FOZO(engine, source, passes=passes)(data)
    print(mebibytes())


def memory(size: str, batch: int, passes: int) -> None:
    options = ("--size", size, "--batch", batch, "--passes", passes)
    plain, own = (float(in_a_process("engine", "--peak", what, *options)) for what in ("plain", "fozo"))
    print(
        f"peak memory of an adapted batch: {own / plain:.3f}x that of plain inference "
        f"({own:.0f} and {plain:.0f} MiB, whole process)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--chunk", type=int, help="images that go through the blocks together; fozo's choice by default"
    )
    parser.add_argument("--peak", choices=("plain", "fozo"), help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.peak:
        peak(a.peak, a.size, a.batch, a.passes)
        return
    memory(a.size, a.batch, a.passes)
    compare(a.size, a.batch, a.passes, a.rounds, a.chunk)


if __name__ == "__main__":
    main()
