"""CMA-ES behind the same ask and tell as n-SPSA: pycma, with private random numbers and a state without pickles.

pycma keeps what it learns in a handful of objects with numeric attributes. :meth:`CMAES.state` copies exactly those,
and :meth:`CMAES.load_state` puts them into a fresh optimizer, which then continues bit for bit. The state is as large
as pycma's memory, two N x N matrices, however long the run was.
"""

from __future__ import annotations

import importlib
import json
import math
import warnings
from collections.abc import Callable
from typing import Protocol, TypeGuard, cast

import numpy as np
import numpy.typing as npt

from fozo.core.noise import Purpose, generator
from fozo.core.optimizer import as_floats, checked_losses
from fozo.errors import FozoError
from fozo.types import Array, State

Draws = Callable[..., Array]
"""``draws(rows, columns)``: standard normal numbers, as ``numpy.random.randn``."""

SIZES = {"strategy.mean": 1, "sampler.C": 2}
"""Axes of the numbers that have one row a coordinate: by them a state of another size is told."""
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
        generator(seed, Purpose.CMAES)  # refuses a bad seed now rather than at the first batch
        self.seed = seed
        self.draws: Callable[[int], Draws] = draws or self._private
        self.population = population
        self.keep_best = keep_best
        self.point: Array = np.array(start, dtype=np.float64)
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
        return cast("_Strategy", self._cma.CMAEvolutionStrategy(np.zeros(self.point.size), 1.0, settings))

    def _private(self, step: int) -> Draws:
        numbers = generator(self.seed, Purpose.CMAES, step)
        return lambda *shape: numbers.standard_normal(shape)

    @property
    def library(self) -> str:
        """Version of pycma; a state can only be continued by the version that wrote it."""
        return str(self._cma.__version__)

    @property
    def mean(self) -> Array:
        """The centre of the gaussian, in the shape of the points."""
        return self._strategy.mean.reshape(self.point.shape)

    def ask(self) -> Array:
        """Return the points to evaluate, ``[K, ...]``; the same ones until their losses are told."""
        if self._asked is None:
            self._before = self._numbers()
            self._normal = self.draws(self.index)
            self._asked = [np.array(point) for point in self._strategy.ask()]
            if self.keep_best:
                self._asked.append(self.point.ravel().copy())
        return np.stack(self._asked).reshape(-1, *self.point.shape)

    def tell(self, losses: npt.ArrayLike) -> None:
        """Take the losses of the points asked for, and learn from their ranking; the best becomes :attr:`point`."""
        if self._asked is None:
            raise FozoError("tell comes after ask")
        values = checked_losses(losses, len(self._asked))
        points, self._asked, self._before = self._asked, None, {}
        self.point = points[int(np.argmin(values))].reshape(self.point.shape).copy()
        self._strategy.tell(points, values.tolist())
        self.index += 1

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
                # What is infinite has not been set yet, and is as infinite in a fresh optimizer.
                if _is_number(value) and np.isfinite(value).all():
                    found[f"{owner}.{name}"] = np.asarray(value, dtype=np.float64)
        directions = self._strategy.pop_injection_directions
        found["directions"] = np.array(directions).reshape(len(directions), self.point.size)
        return found

    def state(self) -> State:
        """Return everything that changes; points asked for and not yet told are forgotten.

        pycma's numbers are one long vector, and ``cma.form`` says in JSON what they are: which exist depends on how far
        the search is.
        """
        numbers = self._numbers() if self._asked is None else self._before
        # The order in memory is kept as well: products round differently in another.
        form = [[name, value.shape, bool(value.flags.fnc)] for name, value in numbers.items()]
        return {
            "point": self.point.copy(),
            "index": np.array(self.index),
            "cma": np.concatenate([value.ravel(order="K") for value in numbers.values()]),
            "cma.form": np.frombuffer(json.dumps(form).encode(), dtype=np.uint8),
        }

    def load_state(self, state: State) -> None:
        """Continue from what :meth:`state` returned, refusing what does not fit before anything is changed."""
        point, index = as_floats(state, "point", self.point.shape), int(as_floats(state, "index", ()))
        lacking = [name for name in ("cma", "cma.form") if name not in state]
        if lacking:
            raise FozoError(f"the state lacks {lacking[0]!r}; save the state again")
        numbers = self._unpacked(np.array(state["cma"], np.float64), state["cma.form"].tobytes())
        strategy = self._fresh()
        for owner, thing in self._owners(strategy).items():
            for key, value in numbers.items():
                if key.startswith(f"{owner}."):
                    name = key.removeprefix(f"{owner}.")
                    setattr(thing, name, _as_was(getattr(thing, name, None), value))
        strategy._updateBDfromSM(strategy.sm)
        strategy.timer = importlib.import_module("cma.utilities.utils").ElapsedWCTime()  # else only made by a first ask
        strategy.pop_injection_directions = list(numbers["directions"])
        # pycma tries the worst point's mirror image next, but no mirror image's; these were all such.
        strategy._indices_of_selective_mirrors = range(len(numbers["directions"]))
        self._strategy, self._asked = strategy, None
        self.point, self.index = point, index

    def _unpacked(self, values: Array, form: bytes) -> dict[str, Array]:
        """Cut pycma's numbers apart again."""
        size, found, start = self.point.size, {}, 0
        try:
            for name, shape, by_columns in json.loads(form):
                length = math.prod(shape)
                if SIZES.get(name, len(shape)) != len(shape) or (name in SIZES and set(shape) != {size}):
                    raise ValueError(f"{name} has shape {shape}")
                found[name] = values[start : start + length].reshape(shape, order="F" if by_columns else "C")
                start += length
            if start != len(values) or not {"strategy.sigma", "directions", *SIZES} <= set(found):
                raise ValueError("numbers are missing or left over")
        except (ValueError, TypeError, IndexError) as error:
            raise FozoError(
                f"the state of CMA-ES is not of {size} coordinates ({error}); give its own state"
            ) from error
        return found


def _is_number(value: object) -> TypeGuard[npt.NDArray[np.float64]]:
    arrays = isinstance(value, np.ndarray) and value.dtype == np.float64
    return arrays or isinstance(value, (bool, int, float, np.number))


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
