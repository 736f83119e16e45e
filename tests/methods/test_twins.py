"""Methods that change a twin of the model: what one thread writes into it must not reach another thread's."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import fozo
from fozo.methods.common import adapters, layernorm
from fozo.methods.common.twin import PerThread, flat, twin, write
from fozo.methods.registry import AnyMethod
from fozo.types import Floats
from tests.helpers import random_images, random_vit

EAGER: dict[str, dict[str, Any]] = {
    "tent": {"rate": 0.5},
    "sar": {"rate": 0.5, "e_margin": 2.0, "reset_threshold": 0.0},
    "zoa": {"rate": 1.0},
    "cazo": {"passes": 3, "rate": 1.0, "scaled_step": False},
}
CAMERAS = 2


class Meeting:
    """Writes into a twin, and goes on when every camera's thread has written: the worst moment."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(CAMERAS, timeout=60)

    def __call__(self, values: Floats, tensors: Sequence[torch.Tensor]) -> None:
        write(values, tensors)
        self.barrier.wait()


def cameras(name: str, engine: fozo.Engine, source: fozo.Statistics) -> list[AnyMethod]:
    """Clones that have learnt different things."""
    first = fozo.create(name, engine, source, **EAGER[name])
    methods = [first, *(first.clone() for _ in range(CAMERAS - 1))]
    for number, method in enumerate(methods):
        for seed in range(2):
            method(random_images(6, seed=10 * number + seed))
    return methods


@pytest.mark.parametrize("name", EAGER)
def test_two_cameras_at_once_get_their_own_numbers(
    name: str, engine: fozo.Engine, source: fozo.Statistics, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = random_images(6, seed=99)
    alone = cameras(name, engine, source)
    predicted = [method.predict(images) for method in alone]
    adapted = [method(images) for method in alone]
    after = [method.predict(images) for method in alone]
    assert np.abs(predicted[0] - predicted[1]).max() > 1e-3  # which a mix-up would show

    together = cameras(name, engine, source)
    meeting = Meeting()
    monkeypatch.setattr(layernorm, "write", meeting)
    monkeypatch.setattr(adapters, "write", meeting)

    def work(number: int) -> None:
        method = together[number]
        np.testing.assert_array_equal(method.predict(images), predicted[number])
        np.testing.assert_array_equal(method(images), adapted[number])
        np.testing.assert_array_equal(method.predict(images), after[number])

    with ThreadPoolExecutor(CAMERAS) as pool:
        list(pool.map(work, range(CAMERAS)))  # raises what a thread raised


def test_a_thread_keeps_its_twin_and_another_has_its_own() -> None:
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        return len(made)

    values = PerThread(make)
    assert values() == values() == 1
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(values).result() == pool.submit(values).result() == 2
    assert values() == 1 and len(made) == 2


def test_a_twin_shares_all_tensors_but_those_that_change() -> None:
    engine = fozo.load_engine(random_vit())
    name = "blocks.1.norm2.weight"
    copied = dict(twin(engine, [name]).vit.named_parameters())
    for key, tensor in engine.vit.named_parameters():  # type: ignore[attr-defined]
        assert (copied[key].data_ptr() == tensor.data_ptr()) == (key != name)


def test_numbers_are_written_in_the_order_in_which_they_are_read() -> None:
    tensors = [torch.zeros(2, 3), torch.zeros(4)]
    write(np.arange(10.0), tensors)
    assert tensors[0].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert flat(tensors).tolist() == list(range(10))


def test_a_clone_costs_no_twin(engine: fozo.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    method = fozo.create("tent", engine)

    def refuse(*_: object) -> None:
        raise AssertionError("a twin was made")

    monkeypatch.setattr(layernorm, "LayerNorms", refuse)
    clone = method.clone()
    assert clone(random_images(3)).shape == method(random_images(3)).shape
