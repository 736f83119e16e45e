"""What Align costs, in what can be counted: passes of the model, and threads that wake. No times."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import fozo
from fozo.core.statistics import Statistics
from fozo.types import NO_KNOBS, Batch, Knobs, Tap, Taps
from tests.helpers import EngineAround, random_images


class Counted(EngineAround):
    """An engine that keeps the knobs of each call, and how many images it had."""

    def __init__(self, engine: fozo.Engine) -> None:
        super().__init__(engine)
        self.calls: list[tuple[int, Knobs]] = []

    def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
        self.calls.append((len(batch), knobs))
        return super().run(batch, knobs, taps)


def test_images_of_several_domains_share_a_pass(engine: fozo.Engine, source: Statistics) -> None:
    """Each is moved and predicted as in a pass of its own domain."""
    counted = Counted(engine)
    method = fozo.Align(counted, source, equaliser_strength=0.0, centre_images=0.0)
    faded = 0.3 * random_images(16) + 1.0
    inverted = 3 - 2 * random_images(16)
    for _ in range(3):
        method(faded)
        method(inverted)
    mixed = np.concatenate([faded[:3], inverted[3:6], faded[6:7], inverted[7:8]])
    counted.calls.clear()
    logits = [method.predict(images) for images in (mixed, faded[:8], inverted[:8])]
    assert [count for count, _ in counted.calls] == [8, 8, 8]
    patches = [knobs.patches for _, knobs in counted.calls]
    matrices = [knobs.matrices for _, knobs in counted.calls]
    unmoved = np.eye(engine.spec.dim)
    for image, domain in enumerate([1, 1, 1, 2, 2, 2, 1, 2]):
        np.testing.assert_allclose(logits[0][image], logits[domain][image], atol=1e-5)
        mixed_move = patches[0]
        own_move = patches[domain]
        assert mixed_move is not None and own_move is not None
        np.testing.assert_array_equal(mixed_move.shift[:, image], own_move.shift[:, 0])
        assert matrices[0] is not None
        alone = matrices[domain]
        np.testing.assert_array_equal(matrices[0][0, image] - (unmoved if alone is None else alone[0, 0]), 0)


THREADS = """
import os, time
import numpy as np
import scipy.linalg
others = [name for name in os.listdir("/proc/self/task") if int(name) != os.getpid()]  # those of BLAS
def spent():
    return [int(open(f"/proc/self/task/{name}/schedstat").read().split()[0]) for name in others]
def settled():
    before = None
    while before != (now := spent()):
        before = now
        time.sleep(0.2)
    return np.array(now)
import torch
import fozo
from fozo.models.vit import Architecture, ViT
torch.set_num_threads(1)
engine = fozo.load_engine(ViT(Architecture((32, 32), (8, 8), 3, 384, 4, 6, 384, 10)), mean=0.5, std=0.5)
numbers = np.random.default_rng(0)
images = numbers.uniform(-1, 1, (32, 3, 32, 32)).astype(np.float32)
method = fozo.Align(engine, fozo.calibrate(engine, [images]))
idle = settled()
for size in (32, 8, 8, 1, 1):
    for faded in (1.0, 0.3):
        method(np.float32(faded) * images[:size])
after = settled()
maps = [slot.covariances.transport.any() for slot in method.state().slots if slot.covariances is not None]
np.ones((600, 600)) @ np.ones((600, 600))
print(len(others), (after - idle).sum(), (settled() - after).sum(), any(maps))
"""


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux tells how long each thread has run")
def test_no_thread_of_blas_wakes_in_a_step() -> None:
    """They would spin for longer than they work. That they can be woken, and that it shows, is tried last."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    printed = subprocess.run(
        [sys.executable, "-c", THREADS], env=environment, capture_output=True, text=True, check=True
    )
    (threads, woken, control, maps) = printed.stdout.split()
    if threads == "0" or control == "0":
        pytest.skip("this BLAS has no threads that wait beside NumPy")
    assert maps == "True"
    assert woken == "0"
