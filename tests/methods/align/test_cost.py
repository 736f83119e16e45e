"""What Align costs, in what can be counted: calls of the model, bytes, and threads that wake. No times."""

import copy
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import fozo
from fozo.core.descriptor import spectra
from fozo.core.statistics import SourceStatistics
from fozo.data import sample
from fozo.methods.align.memory import AT_ONCE, REPLAN, SLACK, DomainEstimate, Memory, RetrievalConfig, Rows
from fozo.methods.align.moves import Single
from fozo.types import NO_KNOBS, Array, Batch, Knobs, Tap, Taps
from tests.helpers import EngineAround, random_images


class Counted(EngineAround):
    """An engine that counts the images of each call, and the bytes that it hands out."""

    def __init__(self, engine: fozo.Engine) -> None:
        super().__init__(engine)
        self.calls, self.bytes = list[int](), 0

    def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
        self.calls.append(len(batch))
        found = super().run(batch, knobs, taps)
        self.bytes += sum(value.nbytes for value in found.values())
        return found


def drifted(count: int, seed: int = 0) -> np.ndarray:
    return np.asarray(0.3 * random_images(count, seed=seed) + 1.0)


def test_groups_grow_with_the_evidence_and_every_image_is_run_once(
    engine: fozo.Engine, source: SourceStatistics
) -> None:
    counted = Counted(engine)
    method = fozo.Align(counted, source)
    method(drifted(64))
    assert sum(counted.calls) == 64 and counted.calls[:4] == [8] * 4  # nothing is known of the domain
    counted.calls.clear()
    method(drifted(100, seed=1))
    assert counted.calls == [25] * 4  # all is known, and memory is bounded
    counted.calls.clear()
    method(3 - 2 * random_images(24, seed=2))
    assert counted.calls == [8, 8, 8]  # another domain


def test_a_correction_is_cached_while_images_are_of_its_domain(
    engine: fozo.Engine, source: SourceStatistics, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, made = fozo.Align(engine, source), list[float]()
    for i in range(3):
        method(drifted(64, seed=i))
    find = method.targets.find

    def counted(vectors: Single, contents: Single, images: Array) -> tuple[Single, Array, Array]:
        made.append(images.item())
        return find(vectors, contents, images)

    monkeypatch.setattr(method.targets, "find", counted)
    for i in range(64):
        method(drifted(1, seed=10 + i))
    assert 4 <= len(made) < 12 and min(made) > 40  # one for every 16 images, and some for images that look different
    method(3 - 2 * random_images(8, seed=2))  # another domain: a correction of its own
    assert made[-1] < made[0] / 2


def peak(call: object) -> int:
    """Bytes that a call held at once beyond what there was."""
    assert callable(call)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [1, 8, 64])
def test_a_batch_of_a_known_domain_is_one_call_and_a_few_copies(size: int) -> None:
    model = sample.MODELS["float32"]
    counted = Counted(fozo.load_engine(model, threads=1))
    method, spec = fozo.Align(counted, sample.source(model)), counted.spec
    pictures = np.random.default_rng(0).uniform(-1, 1, (64, *spec.image_shape)).astype(np.float32)
    faded = np.float32(0.3) * pictures
    for _ in range(12):
        method(faded)
    method(faded[:size])
    counted.calls.clear()
    counted.bytes = 0
    method(faded[:size])
    taps = 4 * (3 * spec.depth * spec.dim + spec.classes)
    assert counted.calls == [min(size, 32)] * max(1, size // 32) and counted.bytes == size * taps
    plain, batch = fozo.NoAdapt(counted), faded[:size]
    row = 3 * 4 * method.equaliser.std.size + method.shape[0] * (spec.dim // 2 + 4) + 4 * method.shape[2]
    beside = peak(lambda: method(batch)) - peak(lambda: plain(batch))
    # What is worked out from the taps, rows that come, the coefficients of 32 images at most, and an average over
    # memories, which does not grow with the batch.
    coefficients = 3 * min(size, 32) * pictures[0].nbytes
    assert beside < size * (4 * taps + 2 * row) + coefficients + 4 * 4 * AT_ONCE + SLACK * row


def test_the_memory_is_small_and_never_copied_to_add_to_it_to_undo_it_or_to_average_it() -> None:
    """Of the shapes of a ViT-B it has 7 MB, of a ViT-Tiny 2."""
    memory = Memory(45, (30, 768, 64), RetrievalConfig())
    ones = np.ones((8, 45))
    domains = DomainEstimate(ones, ones, ones)
    eight = Rows.pack(domains, np.ones((8, 30, 768), np.float32), np.ones((8, 64)))
    for _ in range(64):
        memory.add(eight)
    row = 30 * 768 // 2 + 4 * (30 + 64) + 3 * 4 * 45
    assert len(memory) == 512 and sum(array.nbytes for array in memory.state().values()) < 7e6
    assert peak(lambda: copy.copy(memory)) < 20_000  # to undo
    assert peak(lambda: memory.add(eight)) < 20_000  # there is room behind the last, but for once in 32 images
    assert peak(lambda: memory.retrieve(domains).rows.average(np.ones((1, 512)))) < 3_000_000
    assert (512 + REPLAN + SLACK) * row < 7.5e6


def test_images_are_equalised_where_their_coefficients_are() -> None:
    transform = spectra(3, 64, 64)
    images = np.random.default_rng(0).standard_normal((64, 3, 64, 64)).astype(np.float32)
    buffer = np.empty_like(images)
    coefficients, _ = transform.transform(images, buffer)
    assert np.shares_memory(coefficients, buffer)
    assert np.shares_memory(transform.inverse(coefficients, np.ones(images.shape[1:], np.float32)), buffer)
    gains = np.ones(images.shape[1:], np.float32)
    assert peak(lambda: transform.transform(images, buffer)) < images.nbytes / 2
    assert peak(lambda: transform.inverse(buffer, gains)) < images.nbytes / 2


THREADS = """
import os, sys, time
import numpy as np
others = [name for name in os.listdir("/proc/self/task") if int(name) != os.getpid()]  # BLAS's, made when it is loaded
def spent():
    return [int(open(f"/proc/self/task/{name}/schedstat").read().split()[0]) for name in others]
def settled():
    before = None
    while before != (now := spent()):
        before = now
        time.sleep(0.2)
    return now
import fozo
from fozo.data import sample
model = sample.MODELS["float32"]
method = fozo.adapter(fozo.load_engine(model, threads=1), sample.source(model))
images = np.random.default_rng(0).uniform(-1, 1, (64, *method.engine.spec.image_shape)).astype(np.float32)
idle = settled()
for size in (64, 64, 8, 1, 1):
    for faded in (1.0, 0.3):
        method(np.float32(faded) * images[:size])
woken = sum(now - then for now, then in zip(settled(), idle))
np.ones((600, 600)) @ np.ones((600, 600))
print(len(others), woken, sum(now - then for now, then in zip(settled(), idle)) - woken)
"""


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux tells how long each thread has run")
def test_no_thread_of_blas_wakes() -> None:
    """They would spin for longer than they work. That they can be woken, and that it shows, is tried last."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    found = subprocess.run([sys.executable, "-c", THREADS], env=environment, capture_output=True, text=True, check=True)
    threads, woken, control = map(int, found.stdout.split())
    if not threads or not control:
        pytest.skip("this BLAS has no threads that wait beside NumPy")
    assert woken == 0
