import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from fozo.core.cmaes import CMAES, Draws
from fozo.methods.foa import FOA
from tests.methods.rival_traces import Array, close, engine, load, replay, source


class Replayed:
    """The normal numbers that lead to the candidates of a trace, with the lengths that seed 2020 gives.

    Candidates are mean + sigma B D z, and the machine chooses which eigenvectors B stand for nearly equal eigenvalues
    of C. So z is computed from the candidates; its lengths, which do not depend on B, have to be those of the numbers
    that the authors' program drew from numpy's global generator.
    """

    def __init__(self, steps: Iterator[tuple[Array, Array]]) -> None:
        self.steps, self.numbers = steps, np.random.RandomState(2020)

    def __call__(self, step: int) -> Draws:
        self.candidates, self.losses = next(self.steps)
        self.search: CMAES
        self.scaled = False
        return self.draw

    def draw(self, count: int, size: int) -> Array:
        ours, search = self.numbers.randn(count, size), self.search
        long = search.mirrored and search.length(search.mirror) / search.sigma > math.sqrt(size)
        if long and not self.scaled:  # the first gives a long mirror image its length
            self.scaled = True
            return ours
        last = len(self.candidates) - search.keep_best
        theirs: Array = (
            (self.candidates[last - count : last] - search.mean) / search.sigma @ search.axes.T / search.lengths
        )
        close(np.linalg.norm(ours, axis=1), np.linalg.norm(theirs, axis=1), "lengths of the draws")
        if search.index == 0:
            close(ours, theirs, "the first draws, from a round gaussian")
        return theirs


def make(passes: int, prompts: npt.ArrayLike, steps: Iterator[tuple[Array, Array]]) -> FOA:
    """FOA with the candidates that the authors' program drew, and the losses that it ranked them by.

    Where two candidates are equal once rounded, the last bit of their losses ranks them.
    """
    replayed = Replayed(steps)
    method = FOA(engine(), source(), passes=passes, start=prompts, draws=replayed)
    search = replayed.search = method.search
    learn = search.tell

    def tell(losses: list[float]) -> None:
        close(search.ask().reshape(passes, -1), replayed.candidates, "candidates")
        close(losses, replayed.losses, "losses")
        learn(replayed.losses)

    search.tell = tell  # type: ignore[assignment, method-assign]
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
        method = FOA(engine(), source(), passes=passes)
        assert len(method.search.ask()) == passes
