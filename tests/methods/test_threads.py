"""One adapter from many threads, many adapters on one engine (FINDINGS A2), and the threads that engines work on."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fozo
from fozo.methods.common.info import MethodInfo
from fozo.methods.common.options import NoOptions
from fozo.methods.method import Method, Result
from fozo.state import State
from fozo.types import Batch, Threads
from tests.helpers import random_images, random_vit

THREADS = 4


@dataclass(frozen=True)
class ChainState(State):
    """The batches so far, and what they add up to."""

    count: int = 0
    value: float = 0.0


class Chain(Method[NoOptions, ChainState]):
    """Answers with what it has seen so far, which reveals the order; it lets others run wherever it could be cut."""

    info = MethodInfo("chain", "tells the order", "0", "a sum", "none")

    def init(self) -> ChainState:
        return ChainState()

    def step(self, state: ChainState, batch: Batch) -> Result[ChainState]:
        threading.Event().wait(0.002)
        value = state.value * 1.5 + float(batch.images[0, 0, 0, 0])
        logits = np.full((len(batch), self.engine.spec.classes), value)
        return Result(logits, ChainState(state.count + 1, value), {"count": state.count + 1.0})


def in_threads(work: Callable[[int], object], count: int = THREADS) -> None:
    """Run work(0), work(1), ... at once; raises what one of them raised."""
    together = threading.Barrier(count)

    def each(number: int) -> None:
        together.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(each, range(count)))


def test_results_are_those_of_a_serial_order(engine: fozo.Engine, tmp_path: Path) -> None:
    method, answers = Chain(engine), list[tuple[float, float]]()
    reports, states = list[dict[str, float]](), list[ChainState]()

    def work(number: int) -> None:
        for i in range(10):
            if number == THREADS:  # one thread only watches and saves
                reports.append(method.metrics())
                states.append(method.state())
                method.save(tmp_path / "state")
                continue
            mark = float(1 + number + THREADS * i) / 100
            images = np.full((1, *engine.spec.image_shape), mark, dtype=np.float32)
            answers.append((float(method(images)[0, 0]), float(images[0, 0, 0, 0])))

    method(np.zeros((1, *engine.spec.image_shape), dtype=np.float32))
    in_threads(work, THREADS + 1)
    values = {0: 0.0}  # the sum after each batch of the one order that explains all answers
    left = list(answers)
    for count in range(1, 10 * THREADS + 1):
        value, mark = next((v, m) for v, m in left if v == values[count - 1] * 1.5 + m)
        values[count] = value
        left.remove((value, mark))
    assert method.state() == ChainState(1 + 10 * THREADS, values[10 * THREADS])
    assert all(report.get("count", 0) >= 1 for report in reports)  # never those of half a batch
    other = Chain(engine)
    other.restore(tmp_path / "state")
    assert all(state.value == values[state.count - 1] for state in (*states, other.state()))


def test_reset_and_restore_come_between_batches(engine: fozo.Engine, tmp_path: Path) -> None:
    method = Chain(engine)
    images = np.ones((1, *engine.spec.image_shape), dtype=np.float32)
    method(images)
    method.save(tmp_path / "one")
    serial = [1.0]  # after the first, second, ... batch since the last reset
    for _ in range(200):
        serial.append(serial[-1] * 1.5 + 1)
    answers: list[float] = []

    def work(number: int) -> None:
        for _ in range(15):
            if number == 0:
                method.reset()
            elif number == 1:
                method.restore(tmp_path / "one")
            else:
                answers.append(float(method(images)[0, 0]))

    in_threads(work)
    state = method.state()
    assert set(answers) <= set(serial) and state.value == ([0.0, *serial])[state.count]


@pytest.mark.parametrize("runtime", ["torch", "onnxruntime", "openvino"])
def test_adapters_in_threads_may_share_an_engine(runtime: str, tmp_path: Path, source: fozo.Statistics) -> None:
    """OpenVINO's one request was busy."""
    engine = fozo.load_engine(random_vit())
    if runtime != "torch":
        pytest.importorskip(runtime)
        fozo.export(engine, tmp_path / "model.onnx")
        engine = fozo.load_engine(tmp_path / "model.onnx", runtime=runtime, threads=2, chunk=2)
    batches = [random_images(8, seed=i) for i in range(10)]
    methods: list[Method[Any, Any]] = [fozo.Align(engine, source) for _ in range(THREADS)]
    alone = fozo.Align(engine, source)
    expected = [alone(images) for images in batches]

    def work(number: int) -> None:
        for images, logits in zip(batches, expected, strict=True):
            assert np.array_equal(methods[number](images), logits)

    in_threads(work)


def test_all_parts_have_ended_before_a_failure_is_raised() -> None:
    """Defect 13: the others went on writing into buffers while the batch was undone."""
    ended: list[int] = []

    def work(part: int) -> None:
        if part == 0:
            raise ValueError("part 0")
        threading.Event().wait(0.05)
        ended.append(part)

    with pytest.raises(ValueError, match="part 0"):
        Threads(2).each(work, range(4))
    assert sorted(ended) == [1, 2, 3]


def test_two_callers_share_one_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 13: each made its own."""
    workers, together = set[int](), threading.Barrier(2)

    class Slow(ThreadPoolExecutor):
        def __init__(self, *args: Any, **options: Any) -> None:
            together.wait(5)
            super().__init__(*args, **options)

    def work(part: int) -> None:
        threading.Event().wait(0.02)
        workers.add(threading.get_ident())

    monkeypatch.setattr("fozo.types.ThreadPoolExecutor", Slow)
    threads = Threads(2)
    in_threads(lambda _: threads.each(work, range(4)), 2)
    assert len(workers) <= 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_threads_of_its_own() -> None:
    threads, parts = Threads(2), range(4)
    threads.each(lambda part: None, parts)
    child = os.fork()
    if child == 0:
        seen: list[int] = []
        threads.each(seen.append, parts)
        os._exit(0 if sorted(seen) == list(parts) else 1)
    assert os.waitpid(child, 0)[1] == 0
