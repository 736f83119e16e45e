from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fozo
from fozo.core.cmaes import Draws
from fozo.methods.foa import FOA
from tests.methods.rival_traces import Array, close, engine, load, replay, source


class Seeded:
    """pycma's own random numbers for seed 2020, which the authors' program drew from numpy's global generator."""

    def __call__(self, step: int) -> Draws:
        if step == 0:
            self.numbers = np.random.RandomState(2020)
        return self.numbers.randn


def make(passes: int, prompts: npt.ArrayLike, steps: Iterator[tuple[Array, Array]]) -> FOA:
    """FOA as the authors' program ran it: with the candidates that it drew, and the losses that it ranked them by.

    Both hang on rounding errors. Candidates are mean + sigma B D z, and which eigenvectors B stand for equal
    eigenvalues of C is the machine's choice; so of what would have been drawn here the lengths are compared, which no
    choice of B changes. And where two candidates are equal once rounded, the last bit of their losses ranks them.
    """
    method = fozo.create("foa", engine(), source(), passes=passes, start=prompts, draws=Seeded())
    assert isinstance(method, FOA)
    strategy: Any = method.search._strategy
    draw, learn = strategy.sm.sample, strategy.tell
    recorded, losses = np.empty(0), np.empty(0)

    def sample(count: int, *options: Any) -> Array:
        nonlocal recorded, losses
        recorded, losses = next(steps)
        ours, last = draw(count, *options), passes - method.search.keep_best
        theirs: Array = (recorded[last - count : last] - strategy.mean) / strategy.sigma
        close([strategy.sm.norm(x) for x in ours], [strategy.sm.norm(x) for x in theirs], "lengths of the draws")
        if strategy.countiter == 0:
            close(ours, theirs, "the first draws, from a round gaussian")
        return theirs

    def tell(points: list[Array], values: list[float]) -> None:
        close(points, recorded, "candidates")
        close(values, losses, "losses")
        learn(points, losses.tolist())

    strategy.sm.sample, strategy.tell = sample, tell
    return method


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("foa_p27_reset", 28),
        ("foa_p27_continual", 28),
        ("foa_p2_zoarepo_continual", 3),
        ("foa_p1_zoarepo_continual", 2),
    ],
)
def test_replays_the_authors_trace(name: str, passes: int) -> None:
    trace = load(name)
    close(source().features.mean.ravel(), trace["src_mean"], "source mean")
    restarts, steps = iter(trace["prompts_after_reset"]), zip(trace["candidates"], trace["losses"], strict=True)
    start = make(passes, trace["prompts_init"][0], steps)
    for t, method in replay(trace, start, lambda _: make(passes, next(restarts)[0], steps)):
        assert (method.search.point.ravel() == trace["best_prompts_after"][t]).all()
        close(method.search.mean.ravel(), trace["cma_mean"][t], f"CMA-ES mean after batch {t}")
        assert method.shift.average is not None
        close(method.shift.average, trace["hist_after"][t], f"shift average after batch {t}")


def test_passes_are_what_it_asks_the_engine_for() -> None:
    for passes in (2, 3, 28):
        method = fozo.create("foa", engine(), source(), passes=passes)
        assert isinstance(method, FOA)
        assert len(method.search.ask()) == passes


@pytest.mark.parametrize("bad", [{"passes": 1}, {"start": np.zeros((2, 48))}, {"seed": -1}])
def test_refuses_what_cannot_be_searched(bad: dict[str, Any]) -> None:
    with pytest.raises(fozo.FozoError):
        fozo.create("foa", engine(), source(), **bad)


def test_says_how_to_install_pycma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cma", None)
    with pytest.raises(fozo.FozoError, match="pip install cma"):
        fozo.create("foa", engine(), source())
