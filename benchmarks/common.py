"""What benchmarks share: random models of the usual sizes, clean images apart from those of a stream, turns and times.

PyTorch is imported by what needs it only: one of the benchmarks measures the memory of processes without it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

import fozo
from fozo.bench.store import peak_memory
from fozo.data.scenarios import Continual
from fozo.data.sets import ImageSet
from fozo.errors import FozoError
from fozo.io import atomic_write
from fozo.types import Floats

if TYPE_CHECKING:
    from fozo.engines.torch_engine import TorchEngine

T = TypeVar("T")
SIZES = {"tiny": (192, 3), "small": (384, 6), "base": (768, 12)}
"""Width and heads of ViTs with 12 blocks and patches of 16."""


@contextmanager
def refusals(name: str) -> Iterator[None]:
    """Bad input ends a benchmark as it ends a command of fozo: one sentence, exit code 2, no traceback."""
    try:
        yield
    except FozoError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)


def random_engine(size: str, device: str = "cpu") -> TorchEngine:
    """Make a ViT with random weights, on which speed and memory do not depend."""
    import torch

    from fozo.engines.torch_engine import TorchEngine
    from fozo.models.vit import Architecture, ViT

    dim, heads = SIZES[size]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        vit = ViT(Architecture((224, 224), (16, 16), 3, dim, 12, heads, 4 * dim, 1000))
    engine = fozo.load_engine(vit, mean=0.5, std=0.5, device=device)
    assert isinstance(engine, TorchEngine)
    return engine


def clean_and_test(folder: Path, clean: int, test: int, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """Draw clean images to calibrate on and others to stream, of all classes alike."""
    both = fozo.open_images(folder).take(clean + test, seed)
    paths = [both.samples[i].path for i in np.random.default_rng(seed).permutation(len(both))]
    return both.select(paths[:clean]), both.select(paths[clean:])


def clean_batches(images: ImageSet, spec: fozo.Spec, batch_size: int = 64) -> Iterator[Floats]:
    """Read images as they are, in the order of the set."""
    stream = fozo.Stream(images, spec, Continual(kinds=("clean",), shuffle=False), batch_size=batch_size)
    return (batch.images for batch in stream.batches())


def in_turn(names: Sequence[str], rounds: int) -> Iterator[tuple[int, list[str]]]:
    """Number the rounds from 0, which warms up, and give all names in another order in each.

    So a machine that has other work now and then has it for all of them.
    """
    for number in range(rounds + 1):
        first = number % len(names)
        yield number, [*names[first:], *names[:first]]


def timed(call: Callable[[Floats], T], batch: Floats) -> tuple[tuple[float, float], T]:
    """Seconds on the clock and of processor time, and what the call returned."""
    clock = time.perf_counter()
    processor = time.process_time()
    output = call(batch)
    return (time.perf_counter() - clock, time.process_time() - processor), output


def summary(values: Sequence[float], digits: int = 3) -> str:
    """Median and range of ratios, as ``1.100x (1.050-1.150)``."""
    median, low, high = (f"{value:.{digits}f}" for value in (np.median(values), min(values), max(values)))
    return f"{median}x ({low}-{high})"


def markdown(heads: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table: the first column to the left, the others to the right."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def write(paragraphs: Iterable[str], target: Path | None) -> None:
    """Print paragraphs as they come, and write them to a file."""
    found = []
    for paragraph in paragraphs:
        print(paragraph, end="\n\n", flush=True)
        found.append(paragraph)
    if target is not None:
        with atomic_write(target) as stream:
            stream.write(("\n\n".join(found) + "\n").encode())


def mebibytes() -> float:
    return peak_memory("cpu") / 2**20


def in_a_process(module: str, *options: object) -> str:
    """Run a benchmark's module again in a process of its own, and return what it printed."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, options)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
