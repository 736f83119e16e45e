"""The merging engine: for each caller as if it were alone, however many call."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import fozo
from fozo.data import sample
from fozo.serve.cameras import ServedModel
from fozo.serve.config import ModelConfig, ServeConfig
from fozo.serve.merging import MergingEngine, is_independent
from fozo.testing import check_engine, random_images
from fozo.types import NO_KNOBS, Engine, Images, Knobs, Move, Tap, Taps
from tests.helpers import random_vit
from tests.serve.conftest import Counting, until


@pytest.fixture(scope="module")
def bundled() -> Engine:
    return fozo.load_engine(sample.MODELS["float32"], threads=1)


def knobs(engine: Engine, rows: int, seed: int) -> Knobs:
    numbers, form = np.random.default_rng(seed), (1, rows, engine.spec.depth, engine.spec.dim)
    scale, shift = 1 + 0.1 * numbers.standard_normal(form), 0.1 * numbers.standard_normal(form)
    return Knobs(patches=Move(scale.astype(np.float32), shift.astype(np.float32)))


@pytest.mark.parametrize("max_delay", [0.0, 0.01])
def test_it_is_an_engine(bundled: Engine, max_delay: float) -> None:
    check_engine(MergingEngine(bundled, max_delay=max_delay))
    check_engine(MergingEngine(fozo.load_engine(random_vit()), max_delay=max_delay))
    box = fozo.load_engine(lambda images: np.asarray(images).mean(axis=(2, 3)), image_size=8, mean=0.5, std=0.5)
    check_engine(MergingEngine(box, max_delay=max_delay))


def assert_two_passes(plain: Engine, batches: Sequence[Images], wishes: list[Knobs], taps: tuple[Tap, ...]) -> None:
    """The first is held in its pass until all others wait; then these are one, and each gets what it would alone."""
    hold = threading.Event()
    counting = Counting(plain, hold)
    merged = waiting_calls(MergingEngine(counting, max_delay=0.0, max_batch=100), hold, batches, wishes, taps)
    assert counting.batches == [len(batches[0]), sum(map(len, batches[1:]))]
    for images, wish, results in zip(batches, wishes, merged, strict=True):
        alone = plain.run(plain.check(images), wish, taps)
        for tap in taps:
            np.testing.assert_allclose(results[tap], alone[tap], rtol=1e-3, atol=1e-4)


def test_calls_that_wait_together_are_one_pass(bundled: Engine) -> None:
    """Each with its own moves, or none."""
    batches = [random_images(bundled.spec, 1 + i % 3, seed=i) for i in range(8)]
    wishes = [NO_KNOBS if i % 3 == 0 else knobs(bundled, 1, i) for i in range(7)]
    wishes.append(knobs(bundled, len(batches[7]), 9))
    assert_two_passes(bundled, batches, wishes, (Tap.LOGITS, Tap.CLS, Tap.PATCH_MEAN))


def test_matrices_of_several_callers_are_one_pass() -> None:
    """One for a whole batch, one for each image, and none."""
    plain = fozo.load_engine(random_vit())
    spec = plain.spec
    numbers = np.random.default_rng(0)
    wishes = [NO_KNOBS, NO_KNOBS]
    for rows in (1, 2):
        noise = numbers.standard_normal((1, rows, len(spec.aligned), spec.dim, spec.dim))
        wishes.append(Knobs(matrices=np.eye(spec.dim) + 0.1 * noise))
    batches = [random_images(spec, 2, seed=i) for i in range(4)]
    assert_two_passes(plain, batches, wishes, (Tap.LOGITS, Tap.PATCH_MOMENTS))


def waiting_calls(
    engine: MergingEngine, hold: threading.Event, batches: Sequence[Images], knobs: Any = (), taps: Any = (Tap.LOGITS,)
) -> list[Any]:
    """Run batches in threads, of which the first is held in its pass until all others wait; their results or errors."""
    with ThreadPoolExecutor(len(batches)) as pool:
        futures = list[Future[Taps]]()
        for number, (batch, own) in enumerate(zip(batches, knobs or [NO_KNOBS] * len(batches), strict=True)):
            futures.append(pool.submit(engine.run, engine.check(batch), own, taps))
            until(lambda number=number: engine._running and len(engine._waiting) == number)
        hold.set()
        results = [each.exception(30) or each.result() for each in futures]
    hold.clear()
    assert engine._callers == engine._running == 0 and not engine._waiting
    return results


@pytest.mark.parametrize(("max_batch", "batches"), [(4, [2, 4, 4, 4]), (5, [2, 4, 4, 4]), (6, [2, 6, 6]), (1, [2] * 7)])
def test_a_full_pass_takes_no_more(bundled: Engine, max_batch: int, batches: list[int]) -> None:
    """Six calls of two images wait: a pass has as many as ``max_batch`` admits, and no fewer."""
    hold = threading.Event()
    counting = Counting(bundled, hold)
    engine = MergingEngine(counting, max_delay=0.0, max_batch=max_batch)
    waiting_calls(engine, hold, [random_images(bundled.spec, 2, seed=i) for i in range(7)])
    assert counting.batches == batches


def test_a_full_pass_does_not_wait(bundled: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although three callers are at work and the delay, by a clock that stands, never ends."""
    engine = MergingEngine(bundled, max_delay=1.0, max_batch=4)
    monkeypatch.setattr("fozo.serve.merging.time.monotonic", lambda: 0.0)
    with engine.caller(), engine.caller(), engine.caller(), ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(engine.run, engine.check(random_images(bundled.spec, 2, seed=i))) for i in range(2)]
        try:
            assert all(call.result(30)[Tap.LOGITS].shape == (1, 2, 10) for call in calls)
        finally:
            engine.max_batch = 1  # or the threads would wait for ever


def test_what_cannot_be_merged_runs_alone(bundled: Engine) -> None:
    """Prompts are all images', and candidates are passes of their own."""
    engine = MergingEngine(bundled, max_delay=0.01)
    prompts = Knobs(prompts=np.random.default_rng(0).standard_normal((2, 1, bundled.spec.dim)).astype(np.float32))
    images = [random_images(bundled.spec, 2, seed=i) for i in range(6)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda x: engine.run(engine.check(x), prompts)[Tap.LOGITS], images))
    for one, got in zip(images, found, strict=True):
        np.testing.assert_array_equal(got, bundled.run(bundled.check(one), prompts)[Tap.LOGITS])


def test_an_error_reaches_only_the_caller_that_caused_it(bundled: Engine) -> None:
    hold = threading.Event()

    images = [random_images(bundled.spec, 1, seed=i) for i in range(4)]
    images[2][:] = 0
    counting = Counting(bundled, hold, lambda batch: not batch.images.any(axis=(1, 2, 3)).all())  # a black image
    engine = MergingEngine(counting, max_delay=0.0)
    results = waiting_calls(engine, hold, images)
    assert [isinstance(each, MemoryError) for each in results] == [False, False, True, False]
    counting.batches.clear()
    waiting_calls(engine, hold, [images[0]] * 4)
    assert counting.batches == [1, 3]  # the fault was the caller's: passes are as large as before


def test_a_merged_pass_that_fails_is_logged_and_run_one_by_one(
    bundled: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    hold = threading.Event()
    counting = Counting(bundled, hold, lambda batch: len(batch) > 8)
    engine = MergingEngine(counting, max_delay=0.0, max_batch=100)
    images = [random_images(bundled.spec, 2, seed=i) for i in range(9)]
    assert all(isinstance(each, dict) for each in waiting_calls(engine, hold, images))
    assert counting.batches == [2, 16, *[2] * 8]
    (failed,) = caplog.records
    assert "a pass of 16 images" in failed.message and failed.exc_info is not None


def test_a_lone_caller_does_not_wait(bundled: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a delay longer than the test may take, a lone caller is served; so are two that both wait."""
    engine = MergingEngine(bundled, max_delay=1.0, max_batch=100)
    waits = list[float | None]()
    monkeypatch.setattr(threading.Event, "wait", lambda event, timeout=None: waits.append(timeout))
    with engine.caller():
        engine.run(engine.check(random_images(bundled.spec, 1)))
    engine.run(engine.check(random_images(bundled.spec, 1)))
    assert not waits


@pytest.mark.parametrize("name", ["align", "neo", "noadapt", "t3a", "fozo"])
def test_every_method_is_served_as_if_alone(bundled: Engine, name: str) -> None:
    """Adapters on one merging engine, each with its own stream, predict as on an engine of their own."""
    source = sample.statistics(sample.MODELS["float32"])
    shared = MergingEngine(bundled, max_delay=0.005)
    together = fozo.create(name, shared, source)
    streams = [[(1 + 0.2 * i) * random_images(bundled.spec, 2, seed=10 * i + j) for j in range(4)] for i in range(4)]
    cameras = [together.clone() for _ in streams]

    def play(i: int) -> list[fozo.types.Images]:
        with shared.caller():
            return [cameras[i](batch) for batch in streams[i]]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(play, range(4)))
    for stream, got in zip(streams, found, strict=True):
        alone = fozo.create(name, bundled, source)
        for batch, logits in zip(stream, got, strict=True):
            np.testing.assert_allclose(logits, alone(batch), rtol=2e-3, atol=2e-3)


ENGINES: dict[str, tuple[str, dict[str, Any]]] = {
    "onnx": ("float32", {}), "onnx-int8": ("INT8", {}), "torch": ("", {"mean": 0.5, "std": 0.5}),
    "openvino": ("float32", {"runtime": "openvino"}), "openvino-int8": ("INT8", {"runtime": "openvino"}),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "merge"), [*((kind, None) for kind in ENGINES), ("onnx-int8", True)])
def test_a_hostile_neighbour_changes_no_answer(kind: str, merge: bool | None) -> None:
    """To the bit where the engine is not merged: dynamic quantisation has one range for all images of a pass."""
    if kind.startswith("openvino"):
        pytest.importorskip("openvino")
    name, options = ENGINES[kind]
    model: Any = random_vit() if kind == "torch" else str(sample.MODELS[name])
    own = ModelConfig("m", model, method="noadapt", merge=merge, load=fozo.LoadOptions(**options))
    merging: Any = ServedModel(own, ServeConfig((own,))).engine
    inner: Engine = merging.engine
    merged = merging.max_batch > 1
    assert merged == (merge or "int8" not in kind)
    hold = threading.Event()
    merging.engine = Counting(inner, hold)
    pixels, worst = random_images(inner.spec, 4, seed=1) * 0.3, 0.0
    for seed in range(3):
        hostile = np.sign(random_images(inner.spec, 3, seed=seed)) * 1.5
        found = waiting_calls(merging, hold, [pixels[:1], pixels, hostile])[1][Tap.LOGITS]
        worst = max(worst, float(np.abs(found - inner.run(inner.check(pixels))[Tap.LOGITS]).max()))
    assert worst > 1e-3 if merge else worst < 1e-5 if merged else worst == 0.0


def test_a_black_box_whose_batch_matters_is_not_merged() -> None:
    box = fozo.load_engine(lambda images: np.asarray(images).mean(axis=(2, 3)) / np.abs(images).max(), image_size=8)
    assert not is_independent(box)  # an image's neighbours decide how it is scaled
