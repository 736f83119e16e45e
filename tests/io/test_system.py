"""Threads that work side by side, and that a forked child has too."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from fozo.core.descriptor import spectra
from fozo.types import Threads


def test_parts_are_worked_on_side_by_side() -> None:
    together = threading.Barrier(2, timeout=20)  # broken unless two parts are in hand at once
    done: list[int] = []

    def work(part: int) -> None:
        together.wait()
        done.append(part)

    Threads(2).each(work, range(4))
    assert sorted(done) == [0, 1, 2, 3]


def test_one_thread_or_one_part_needs_no_pool() -> None:
    own: list[int] = []
    for threads, parts in ((Threads(1), 3), (Threads(2), 1)):
        threads.each(lambda part: own.append(threading.get_ident()), range(parts))
    assert own == [threading.get_ident()] * 4


def test_what_a_part_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        Threads(2).each(lambda part: 1 // part, range(3))


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


def test_the_transform_is_the_same_on_any_number_of_threads() -> None:
    transform, images = spectra(3, 224, 224), np.random.default_rng(0).normal(size=(5, 3, 224, 224)).astype(np.float32)
    gains = np.random.default_rng(1).uniform(1, 2, (3, 224, 224)).astype(np.float32)
    found = []
    for count in (1, 2):
        coefficients, descriptors = transform.transform(images, threads=Threads(count))
        found.append((descriptors, transform.inverse(coefficients, gains, Threads(count))))
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)
