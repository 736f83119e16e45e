"""CMA-ES with cumulative step-size adaptation, with the same ask and tell as n-SPSA.

Equation numbers are those of N. Hansen, "The CMA Evolution Strategy: A Tutorial" (arXiv:1604.00772). What differs is as
in pycma 4, with which FOA was published: the learning rate c_1 of small populations, the damping for many parents, the
length limit of points that were not drawn from the gaussian, and the mirror image of the worst point for populations
below six (Auger, Brockhoff & Hansen, "Mirrored sampling in evolution strategies with weighted recombination", 2011).
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import gamma

from fozo.core.noise import Purpose, generator
from fozo.core.spsa import checked_losses
from fozo.errors import FozoError
from fozo.types import Array, State

Draws = Callable[..., Array]  # draws(rows, columns): standard normal numbers, as numpy.random.randn
MIRRORED_BELOW = 6  # populations in which the worst point's mirror image replaces a draw
MAX_CONDITION = 1e14  # that C may have; smaller eigenvalues are rounding errors and are raised to the limit


def expected_length(size: int) -> float:
    """E|N(0, I)| of ``size`` coordinates; from 100 on by the first terms of Stirling's series, as pycma has it."""
    if size <= 100:
        return float(2**0.5 * gamma((size + 1) / 2) / gamma(size / 2))
    return math.sqrt(size) * (1 - 1 / (4 * size) + 1 / (32 * size**2))


class Rates:
    """Weights and learning rates for N coordinates and a population of lambda (Table 1)."""

    def __init__(self, size: int, population: int) -> None:
        raw = math.log((population + 1) / 2) - np.log(np.arange(1, population + 1))  # Eq. 49
        self.parents = int((raw > 0).sum())
        positive, negative = np.split(raw / sum(raw[raw > 0]), [self.parents])
        mu = float(1 / sum(positive**2))  # Eq. 8
        self.mu_eff = mu
        self.c_c = (4 + mu / size) / (size + 4 + 2 * mu / size)  # Eq. 56
        self.c_1 = min(1.0, population / 6) * 2 / ((size + 1.3) ** 2 + mu)  # Eq. 57
        self.c_mu = min(1 - self.c_1, 2 * (0.25 + mu - 2 + 1 / mu) / ((size + 2) ** 2 + mu))  # Eq. 58
        self.c_sigma = min(0.5, (mu + 2) / (size + (mu + 3)))  # Eq. 55
        self.mirrors = int(population < MIRRORED_BELOW)
        many = max(1.0, 3 * (1 - 0.5 ** (size / 9))) * math.sqrt((mu - 1) / (size + 1))
        few = min(1.0, (self.mirrors / (0.159 * population) - 1) ** 2)
        self.damping = 0.5 + few / 2 + 2 * max(0.0, many - 1) + self.c_sigma  # Eq. 55, which has few = 1
        negative = negative / -sum(negative)
        negative = negative * ((1 + self.c_1 / self.c_mu) / -sum(negative))  # Eq. 50
        mu_minus = sum(negative) ** 2 / sum(negative**2)
        for limit in ((1 - self.c_1 - self.c_mu) / self.c_mu / size, 1 + 2 * mu_minus / (mu + 2)):  # Eqs. 52 and 51
            negative = negative * min(1.0, limit / -sum(negative))
        self.weights: Array = np.concatenate([positive, negative])  # Eq. 53
        self.expected_length = expected_length(size)
        self.max_length = math.sqrt(size) + 2 * size / (size + 2)
        self.decomposed_every = 1 / (self.c_1 + self.c_mu) / size / 10  # Section B.2


class CMAES:
    """Search by sampling from a gaussian that learns from the ranking of its samples.

    With ``keep_best`` the best point of the last step is evaluated and ranked again with every step, as FOA does.
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
            draws: gives, for a step, the source of its normal numbers, instead of the seeded private generator.
        """
        generator(seed, Purpose.CMAES)  # refuses a bad seed now rather than at the first batch
        self.seed = seed
        self.population = population
        self.keep_best = keep_best
        self.draws = draws or self._seeded_draws
        self.point: Array = np.array(start, dtype=np.float64)
        size = self.point.size
        self.rates = Rates(size, population)
        self.mean: Array = np.zeros(size)
        self.sigma = 1.0
        # Arrays are replaced, never written to, so that a state can refer to them.
        self.covariance: Array = np.diag(np.exp(1e-4 / size * np.arange(size)))  # no two eigenvalues are equal
        self.axes: Array = np.eye(size)  # B': the eigenvectors of C as rows, when it was last decomposed
        self.lengths: Array = np.sqrt(np.diag(self.covariance))  # D: the roots of its eigenvalues
        self.covariance_path: Array = np.zeros(size)
        self.sigma_path: Array = np.zeros(size)
        self.mirror: Array = np.zeros(size)  # direction of the worst point's mirror image, tried next if mirrored
        self.mirrored = False
        self.index = self.decomposed = 0  # steps done, and how many there were when C was last decomposed
        self._asked: Array | None = None

    def _seeded_draws(self, step: int) -> Draws:
        numbers = generator(self.seed, Purpose.CMAES, step)
        return lambda *shape: numbers.standard_normal(shape)

    def length(self, step: Array) -> float:
        """Mahalanobis length ``|C^-1/2 y|`` of a step ``y``, in units of sigma; summed one by one, as pycma does."""
        return float(sum((np.dot(self.axes, step) / self.lengths) ** 2) ** 0.5)

    def ask(self) -> Array:
        """Return the points to evaluate, ``[K, ...]``; the same ones until :meth:`tell` has their losses."""
        if self._asked is None:
            draw = self.draws(self.index)
            size = self.point.size
            steps = np.empty((0, size))
            if self.mirrored:
                length = self.length(self.mirror) / self.sigma
                scale = np.sum(draw(1, size) ** 2) ** 0.5 / length if length > math.sqrt(size) else 1.0
                steps = self.mirror[None] * (scale / self.sigma)
            normal = draw(self.population - len(steps), size)
            drawn = np.dot(self.axes.T, (self.lengths * normal).T).T  # y = B D z, Eqs. 38 and 39
            points = self.mean + self.sigma * np.vstack([steps, drawn])  # Eq. 40
            self._asked = np.vstack([points, self.point.reshape(1, size)]) if self.keep_best else points
        asked: Array = self._asked.reshape(-1, *self.point.shape).copy()
        return asked

    def tell(self, losses: npt.ArrayLike) -> None:
        """Take the losses of the points asked for, and learn from their ranking; the best becomes :attr:`point`."""
        if self._asked is None:
            raise FozoError("tell comes after ask")
        rates = self.rates
        points = self._asked
        order = np.argsort(checked_losses(losses, len(points)))
        self.point = points[order[0]].reshape(self.point.shape).copy()
        if self.keep_best:  # it was drawn from another gaussian: not to be longer than this one's draws
            excess = self.length(points[-1] - self.mean) / self.sigma / rates.max_length
            if excess > 1:
                points = np.vstack([points[:-1], (points[-1] - self.mean) / excess + self.mean])
        ranked = points[order]
        before = self.mean
        self.mean = np.dot(rates.weights[: rates.parents], ranked[: rates.parents])  # Eqs. 41 and 42
        h_sigma = self._follow_paths(self.mean - before)
        self._update_covariance((ranked - before) / self.sigma, h_sigma, int(np.flatnonzero(order == 0)[0]))
        speed = float(np.sqrt(np.sum(self.sigma_path**2))) / rates.expected_length - 1
        self.sigma *= float(np.exp(min(1.0, speed * (rates.c_sigma / rates.damping))))  # Eq. 44
        self.mirrored = bool(rates.mirrors) and not (self.mirrored and order[-1] == 0)  # not a mirror's mirror
        self.mirror = before - ranked[-1] if self.mirrored else np.zeros_like(before)
        self.index += 1
        self._asked = None
        if self.index >= self.decomposed + rates.decomposed_every:
            self._decompose()

    def _follow_paths(self, shift: Array) -> bool:
        """Add the mean's shift to both evolution paths; say whether that of C moves: not while sigma grows fast."""
        rates = self.rates
        size = len(shift)
        c = rates.c_sigma
        isotropic = np.dot(self.axes.T, np.dot(self.axes, shift) / self.lengths) * (rates.mu_eff**0.5 / self.sigma)
        self.sigma_path = (1 - c) * self.sigma_path + (c * (2 - c)) ** 0.5 * isotropic  # Eq. 43
        square = np.sum(self.sigma_path**2) / (1 - (1 - c) ** (2 * (self.index + 1)))
        h_sigma = bool(square / size - 1 < 1 + 4 / (size + 1))
        c = rates.c_c
        step = (c * (2 - c) * rates.mu_eff) ** 0.5 / self.sigma * shift
        self.covariance_path = (1 - c) * self.covariance_path + h_sigma * step  # Eq. 45
        return h_sigma

    def _update_covariance(self, steps: Array, h_sigma: bool, mirror: int) -> None:
        """Learn from ranked steps; ``mirror`` is the rank of the first point, which may be a mirror image."""
        rates = self.rates
        weights = rates.c_mu * np.insert(rates.weights, rates.parents, np.zeros(len(steps) - self.population))
        if self.mirrored:  # that a mirror image is bad says nothing against its direction
            weights[mirror] = max(0.0, weights[mirror])
        stalled = 0.0 if h_sigma else rates.c_c * (2 - rates.c_c)
        decay = 1 - sum([rates.c_1 * (1 - stalled), *weights])
        for i in np.flatnonzero(weights < 0):  # Eq. 46
            weights[i] *= steps.shape[1] / (self.length(steps[i]) + 1e-9) ** 2
        vectors = np.vstack([self.covariance_path, steps])
        learned = np.dot(np.array([rates.c_1, *weights]) * vectors.T, vectors)
        self.covariance = self.covariance * decay + learned  # Eq. 47

    def _decompose(self) -> None:
        """C = B D^2 B'."""
        self.covariance = (self.covariance + self.covariance.T) / 2
        values, axes = np.linalg.eigh(self.covariance)
        self.axes = np.ascontiguousarray(axes.T)
        self.lengths = np.maximum(values, values[-1] / MAX_CONDITION) ** 0.5
        self.decomposed = self.index

    ARRAYS = ("mean", "covariance", "axes", "lengths", "covariance_path", "sigma_path", "mirror")
    SCALARS = ("sigma", "index", "decomposed", "mirrored")

    def state(self) -> State:
        """Return everything that changes; points without losses are forgotten."""
        arrays = {name: getattr(self, name) for name in self.ARRAYS}
        scalars = {name: np.array(getattr(self, name), np.float64) for name in self.SCALARS}
        return {"point": self.point.copy(), **arrays, **scalars}

    def load_state(self, state: State) -> None:
        """Continue from what :meth:`state` returned, refusing what does not fit before anything is changed."""
        sigma, index, decomposed, mirrored = (float(state[name]) for name in self.SCALARS)
        if not (sigma > 0 and state["lengths"].min() > 0 and 0 <= decomposed <= index and mirrored in (0, 1)):
            raise FozoError("the state of CMA-ES is not one that a search leads to; save the state again")
        self._asked = None
        self.sigma = sigma
        self.index = int(index)
        self.decomposed = int(decomposed)
        self.mirrored = bool(mirrored)
        for name in ("point", *self.ARRAYS):
            setattr(self, name, np.array(state[name], dtype=np.float64))
