"""CMA-ES behind the same ask and tell as n-SPSA: pycma, with private random numbers and a state without pickles.

pycma keeps what it learns in a handful of objects with numeric attributes. :meth:`CMAES.state` copies exactly those,
and :meth:`CMAES.restore` puts them into a fresh optimizer, which then continues bit for bit. The state is as large as
pycma's memory, two N x N matrices, however long the run was.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from fozo.core.noise import generator
from fozo.errors import FozoError

Array = npt.NDArray[np.float64]
Draws = Callable[..., Array]
"""``draws(rows, columns)``: standard normal numbers, as ``numpy.random.randn``."""

PURPOSE = 3
"""Place of these draws among the private random numbers, see :mod:`fozo.core.noise`."""
DERIVED = {"B", "C", "D", "dC", "ary", "pop_sorted"}
"""Attributes of pycma's outermost object that repeat its sampler's, or are of the batch just told only."""


class _Strategy(Protocol):
    """The part of ``cma.CMAEvolutionStrategy`` that is used here."""

    mean: Array
    sigma: float
    pop_injection_directions: list[Array]
    sm: object
    adapt_sigma: object
    fit: object
    timer: object
    _indices_of_selective_mirrors: range

    def ask(self) -> list[Array]: ...

    def tell(self, solutions: list[Array], function_values: list[float]) -> None: ...

    def _updateBDfromSM(self, sm: object) -> None: ...


class CMAES:
    """Search by sampling from a gaussian that learns from the ranking of its samples.

    With ``keep_best`` the best point of the last step is evaluated and told again with every step, as FOA does.
    """

    def __init__(
        self,
        start: npt.ArrayLike,
        *,
        population: int,
        keep_best: bool,
        seed: int = 0,
        draws: Callable[[int], Draws] | None = None,
    ) -> None:
        """Search from the origin with a standard deviation of 1.

        Args:
            start: the first "best point of the last step".
            population: points drawn in each step, at least two.
            keep_best: whether the last step's best is tried again.
            seed: of the samples.
            draws: where the normal numbers of a step come from, instead of the seeded private generator.
        """
        try:
            with warnings.catch_warnings():  # pycma misses matplotlib aloud, and nothing here plots
                warnings.filterwarnings("ignore", message=".*matplotlib", category=UserWarning)
                self._cma = importlib.import_module("cma")
        except ImportError as error:
            raise FozoError("CMA-ES needs pycma; install it with pip install cma") from error
        if population < 2:
            raise FozoError(f"CMA-ES needs a population of at least 2, not {population}")
        generator(seed, PURPOSE)  # refuses a bad seed now rather than at the first batch
        self.seed = seed
        self.draws: Callable[[int], Draws] = draws or self._private
        self.population = population
        self.keep_best = keep_best
        self.best: Array = np.array(start, dtype=np.float64)
        self.index = 0
        self._strategy = self._fresh()
        self._asked: list[Array] | None = None
        self._before: dict[str, Array] = {}

    def _fresh(self) -> _Strategy:
        # pycma 4 changes its step-size rule from 300 dimensions on, to one that needs a larger population than FOA
        # has; up to pycma 3, which FOA was made with, it was CSA at every size.
        csa = importlib.import_module("cma.sigma_adaptation").CMAAdaptSigmaCSA
        settings = {
            "popsize": self.population,
            "AdaptSigma": csa,
            "randn": lambda *shape: self._normal(*shape),
            "seed": np.nan,  # leave numpy's global generator alone
            "verbose": -9,
        }
        self._normal: Draws = self.draws(0)
        return cast("_Strategy", self._cma.CMAEvolutionStrategy(np.zeros(self.best.size), 1.0, settings))

    def _private(self, step: int) -> Draws:
        numbers = generator(self.seed, PURPOSE, step)
        return lambda *shape: numbers.standard_normal(shape)

    @property
    def library(self) -> str:
        """Version of pycma, which a state is only good for."""
        return str(self._cma.__version__)

    @property
    def mean(self) -> Array:
        """The centre of the gaussian, in the shape of the points."""
        return self._strategy.mean.reshape(self.best.shape)

    def ask(self) -> Array:
        """Return the points to evaluate, ``[K, ...]``; the same ones until their losses are told."""
        if self._asked is None:
            self._before = self._numbers()
            self._normal = self.draws(self.index)
            self._asked = [np.array(point) for point in self._strategy.ask()]
            if self.keep_best:
                self._asked.append(self.best.ravel().copy())
        return np.stack(self._asked).reshape(-1, *self.best.shape)

    def tell(self, losses: npt.ArrayLike) -> int:
        """Take the losses of the points asked for, learn, and return the index of the best."""
        values = np.asarray(losses, dtype=np.float64)
        if self._asked is None:
            raise FozoError("tell comes after ask")
        if values.shape != (len(self._asked),):
            raise FozoError(f"tell needs {len(self._asked)} losses, one a point, not {list(values.shape)}")
        if not np.isfinite(values).all():
            raise FozoError(f"the losses {values.tolist()} are not all finite; nothing was changed")
        points, self._asked, self._before = self._asked, None, {}
        best = int(np.argmin(values))
        self.best = points[best].reshape(self.best.shape).copy()
        self._strategy.tell(points, values.tolist())
        self.index += 1
        return best

    def _owners(self, strategy: _Strategy) -> dict[str, object]:
        return {
            "strategy": strategy,
            "sampler": strategy.sm,
            "sigma": strategy.adapt_sigma,
            "fitness": strategy.fit,
        }

    def _numbers(self) -> dict[str, Array]:
        """All that pycma has learned. Matrices are referred to, not copied: asking replaces them, telling does not."""
        found: dict[str, Array] = {}
        for owner, thing in self._owners(self._strategy).items():
            for name, value in vars(thing).items():
                if owner == "strategy" and name in DERIVED:
                    continue
                if isinstance(value, (bool, int, float, np.number)) or _is_float_array(value):
                    found[f"cma.{owner}.{name}"] = np.asarray(value, dtype=np.float64)
        directions = self._strategy.pop_injection_directions
        found["cma.directions"] = np.array(directions).reshape(len(directions), self.best.size)
        return found

    def state(self) -> dict[str, Array]:
        """Return everything that changes, as named arrays; points asked for and not yet told are forgotten."""
        numbers = self._numbers() if self._asked is None else self._before
        return {
            "point": self.best.copy(),
            "index": np.array([self.index], dtype=np.float64),
            # The order in memory is kept as well: products round differently in another.
            **{name: value.copy(order="K") for name, value in numbers.items()},
        }

    def restore(self, state: dict[str, Array]) -> None:
        """Continue from what :meth:`state` returned."""
        strategy = self._fresh()
        for owner, thing in self._owners(strategy).items():
            prefix = f"cma.{owner}."
            for key, value in state.items():
                if key.startswith(prefix):
                    name = key.removeprefix(prefix)
                    setattr(thing, name, _as_was(getattr(thing, name, None), value))
        strategy._updateBDfromSM(strategy.sm)
        strategy.timer = importlib.import_module("cma.utilities.utils").ElapsedWCTime()  # else only made by a first ask
        strategy.pop_injection_directions = [row.copy() for row in state["cma.directions"]]
        # pycma tries the worst point's mirror image next, but no mirror image's; these were all such.
        strategy._indices_of_selective_mirrors = range(len(state["cma.directions"]))
        self._strategy = strategy
        self._asked = None
        self.best = state["point"].reshape(self.best.shape).copy()
        self.index = int(state["index"][0])


def _is_float_array(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.float64


def _as_was(fresh: object, value: Array) -> Array | float | int | bool:
    """A saved number or array in the type that pycma keeps it in."""
    if value.ndim:
        array: Array = value.copy(order="K")
        return array
    number = float(value)
    if isinstance(fresh, bool):
        return bool(number)
    # Some of pycma's floats start as an integer.
    return int(number) if isinstance(fresh, int) and number.is_integer() else number
