"""Fixtures shared by all tests."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

import fozo
from tests.helpers import SHARED, TINY, Golden, need, random_images, random_vit

# A shell that runs the tests in the background has them ignore Ctrl-C, and so would the programs that they interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# torchvision's wheel does not load beside a CPU build of torch, and timm imports it; declaring the two operators it
# misses is enough. Only the tests need this: fozo itself imports neither.
_operators = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
for _name in ("nms", "qnms"):
    _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]


@pytest.fixture(scope="session")
def real_weights() -> Path:
    """The real ViT-Tiny."""
    return need(SHARED / "weights" / f"{TINY}.safetensors")


@pytest.fixture(scope="session")
def real_images() -> Path:
    """4000 real ImageNet validation images in wnid folders."""
    return need(SHARED / "data" / "imagenet-val-4k")


@pytest.fixture(scope="session")
def engine() -> fozo.Engine:
    """A small random ViT."""
    return fozo.load_engine(random_vit())


@pytest.fixture(scope="session")
def source(engine: fozo.Engine) -> fozo.SourceStatistics:
    """Its statistics on random images."""
    return fozo.SourceStatistics.collect(engine, [random_images(32, seed=100 + i) for i in range(3)])


@pytest.fixture(scope="session")
def golden() -> Golden:
    """FOZO's traces are copied into the repo (they are figures), so that a fresh clone replays them too."""
    return Golden(Path(__file__).parent / "golden")
