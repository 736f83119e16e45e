"""Fixtures shared by all tests."""

# ruff: noqa: E402 - numeric libraries read the number of threads when they are imported

import os
import signal
from pathlib import Path

# Products of tiny models are too small to share: on a busy machine, threads that wait for each other cost tenfold.
for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

import pytest
import torch

import fozo
from tests import torchvision_operators
from tests.helpers import SHARED, TINY, Golden, golden_material, need, random_images, random_vit

torchvision_operators.declare_missing()

# A shell that runs the tests in the background has them ignore Ctrl-C, and so would the programs that they interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def torch_threads() -> None:
    """One thread: the processors are busy with other tests."""
    torch.set_num_threads(1)


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
def source(engine: fozo.Engine) -> fozo.Statistics:
    """Its statistics on random images."""
    return fozo.calibrate(engine, [random_images(32, seed=100 + i) for i in range(3)])


@pytest.fixture(scope="session")
def golden() -> Golden:
    """The authors' traces."""
    return golden_material()
