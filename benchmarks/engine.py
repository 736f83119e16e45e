"""One adapted batch: fozo's engine against the published loop, side by side in one run.

    python benchmarks/engine.py [--batch 64] [--passes 2] [--size base] [--rounds 5] [--chunk 8]

The rival is a straightforward loop: for every candidate one full pass of the plain model over the whole batch, its
loss, its prediction. Both do the same FOZO step from the same state on the same images (a ViT of the given size with
random weights: speed does not depend on them) and their outputs are compared. Rounds alternate between the two, so
that a noisy machine is noisy for both; the median of the rounds' ratios is the result. Peak memory is measured in
processes of their own, against plain inference of the same batch.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

import fozo
from fozo.core.statistics import Moments
from fozo.engines.base import Floats
from fozo.engines.torch_engine import TorchEngine
from fozo.engines.vit import Architecture, ViT
from fozo.methods.prompt_fozo import PromptFOZO

SIZES = {"tiny": (192, 3), "small": (384, 6), "base": (768, 12)}


def make(size: str, chunk: int | None = None) -> TorchEngine:
    dim, heads = SIZES[size]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        vit = ViT(Architecture((224, 224), (16, 16), 3, dim, 12, heads, 4 * dim, 1000))
    engine = fozo.load_engine(vit, chunk=chunk)
    assert isinstance(engine, TorchEngine)
    return engine


def images(count: int) -> Floats:
    return np.random.default_rng(0).standard_normal((count, 3, 224, 224)).astype(np.float32)


class PublishedLoop:
    """FOZO as published: separate full passes, nothing shared, statistics from every layer's normed CLS."""

    def __init__(self, method: PromptFOZO, engine: TorchEngine) -> None:
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


def timed(call: Callable[[Floats], Floats], batch: Floats) -> tuple[npt.NDArray[np.float64], Floats]:
    """Seconds on the clock and of processor time, and the output."""
    start = np.array([time.perf_counter(), time.process_time()])
    output = call(batch)
    return np.array([time.perf_counter(), time.process_time()]) - start, output


def compare(size: str, batch: int, passes: int, rounds: int, chunk: int | None) -> None:
    engine = make(size, chunk)
    source = fozo.SourceStatistics.collect(engine, [images(8)])
    ours = PromptFOZO(engine, source, passes=passes)
    loop = PublishedLoop(PromptFOZO(engine, source, passes=passes), engine)
    data = images(batch)
    ratios = []
    for number in range(rounds + 1):  # the first round warms up
        first, second = (loop, ours) if number % 2 else (ours, loop)
        (time_first, output_first), (time_second, output_second) = timed(first, data), timed(second, data)
        difference = float(np.abs(output_first - output_second).max())
        ratio = time_first / time_second if first is loop else time_second / time_first
        if number:
            ratios.append(ratio)
            print(
                f"round {number}: {ratio[0]:.3f}x by the clock, {ratio[1]:.3f}x in processor time; outputs differ by "
                f"at most {difference:.1e}",
                flush=True,
            )
    clock, processor = np.array(ratios).T
    print(
        f"ViT-{size}, batch {batch}, {passes} passes, {torch.get_num_threads()} threads, chunks of {engine.chunk}: "
        f"fozo is {np.median(clock):.3f}x as fast as the published loop by the clock ({clock.min():.3f}-"
        f"{clock.max():.3f}) and {np.median(processor):.3f}x in processor time ({processor.min():.3f}-"
        f"{processor.max():.3f}); medians of {rounds} rounds"
    )


def peak(what: str, size: str, batch: int, passes: int) -> None:
    """Print this process's peak memory after one job."""
    engine = make(size)
    data = images(batch)
    if what == "plain":
        with torch.inference_mode():
            engine.vit(torch.from_numpy(data))
    else:
        source = fozo.SourceStatistics.collect(engine, [images(2)])
        PromptFOZO(engine, source, passes=passes)(data)
    # Linux hands ru_maxrss on from the parent process; VmHWM is this process's own.
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(line.split()[1])


def memory(size: str, batch: int, passes: int) -> None:
    kib = {}
    for what in ("plain", "fozo"):
        command = [sys.executable, __file__, "--peak", what, "--size", size, "--batch", str(batch)]
        run = subprocess.run([*command, "--passes", str(passes)], capture_output=True, text=True, check=True)
        kib[what] = int(run.stdout)
    print(
        f"peak memory of an adapted batch: {kib['fozo'] / kib['plain']:.3f}x that of plain inference "
        f"({kib['fozo'] / 1024:.0f} and {kib['plain'] / 1024:.0f} MiB, whole process)"
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
    parser.add_argument("--peak", choices=["plain", "fozo"], help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.peak:
        peak(a.peak, a.size, a.batch, a.passes)
        return
    memory(a.size, a.batch, a.passes)
    compare(a.size, a.batch, a.passes, a.rounds, a.chunk)


if __name__ == "__main__":
    main()
