"""CMA-ES with cumulative step-size adaptation, with the same ask and tell as n-SPSA.

Equation numbers are those of N. Hansen, "The CMA Evolution Strategy: A Tutorial" (arXiv:1604.00772). What differs is as
in pycma 4, with which FOA was published: the learning rate c_1 of small populations, the damping for many parents, the
length limit of points that were not drawn from the gaussian, and the mirror image of the worst point for populations
below six (Auger, Brockhoff & Hansen, "Mirrored sampling in evolution strategies with weighted recombination", 2011).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import gamma

from fozo.core.noise import Purpose, generator
from fozo.core.spsa import checked_losses
from fozo.state import State
from fozo.types import Array

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


@dataclass(frozen=True)
class CMAESState(State):
    """A gaussian, the paths that its mean has taken, and the best point of the last step."""

    point: Array
    mean: Array
    covariance: Array  # C
    axes: Array  # B': the eigenvectors of C as rows, when it was last decomposed
    lengths: Array  # D: the roots of its eigenvalues
    covariance_path: Array
    sigma_path: Array
    mirror: Array  # direction of the worst point's mirror image, tried next if ``mirrored``
    sigma: float = 1.0
    mirrored: bool = False
    index: int = 0  # steps done
    decomposed: int = 0  # how many there were when C was last decomposed

    def __post_init__(self) -> None:
        """Refuse what no search leads to."""
        if not (self.sigma > 0 and self.lengths.min() > 0 and self.decomposed <= self.index):
            raise ValueError("no search leads to such a gaussian")

    def length(self, step: Array) -> float:
        """Mahalanobis length ``|C^-1/2 y|`` of a step ``y``, in units of sigma; summed one by one, as pycma does."""
        return float(sum((np.dot(self.axes, step) / self.lengths) ** 2) ** 0.5)


class CMAES:
    """Search by sampling from a gaussian that learns from the ranking of its samples.

    ``ask(state)`` gives points; ``tell(state, points, losses)`` takes them back with their losses and gives the next
    state. With ``keep_best`` the best point of the last step is evaluated and ranked again with every step, as FOA
    does.
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
        self.start: Array = np.array(start, dtype=np.float64)
        self.rates = Rates(self.start.size, population)

    def _seeded_draws(self, step: int) -> Draws:
        numbers = generator(self.seed, Purpose.CMAES, step)
        return lambda *shape: numbers.standard_normal(shape)

    def init(self) -> CMAESState:
        size = self.start.size
        covariance = np.diag(np.exp(1e-4 / size * np.arange(size)))  # no two eigenvalues are equal
        nowhere = np.zeros(size)
        return CMAESState(
            point=self.start, mean=nowhere, covariance=covariance, axes=np.eye(size),
            lengths=np.sqrt(np.diag(covariance)), covariance_path=nowhere, sigma_path=nowhere, mirror=nowhere,
        )  # fmt: skip

    def ask(self, state: CMAESState) -> Array:
        """Return the points to evaluate, ``[K, ...]``; the same ones for the same state."""
        draw = self.draws(state.index)
        size = state.point.size
        steps = np.empty((0, size))
        if state.mirrored:
            length = state.length(state.mirror) / state.sigma
            scale = np.sum(draw(1, size) ** 2) ** 0.5 / length if length > math.sqrt(size) else 1.0
            steps = state.mirror[None] * (scale / state.sigma)
        normal = draw(self.population - len(steps), size)
        drawn = np.dot(state.axes.T, (state.lengths * normal).T).T  # y = B D z, Eqs. 38 and 39
        points = state.mean + state.sigma * np.vstack([steps, drawn])  # Eq. 40
        if self.keep_best:
            points = np.vstack([points, state.point.reshape(1, size)])
        shaped: Array = points.reshape(-1, *state.point.shape)
        return shaped

    def tell(self, state: CMAESState, asked: Array, losses: npt.ArrayLike) -> CMAESState:
        """Take the losses of the points asked for, and learn from their ranking; the best becomes the ``point``."""
        rates = self.rates
        values = checked_losses(losses, len(asked))
        points = asked.reshape(len(asked), -1)
        order = np.argsort(values)
        best = asked[order[0]].copy()
        if self.keep_best:  # it was drawn from another gaussian: not to be longer than this one's draws
            excess = state.length(points[-1] - state.mean) / state.sigma / rates.max_length
            if excess > 1:
                points = np.vstack([points[:-1], (points[-1] - state.mean) / excess + state.mean])
        ranked = points[order]
        mean = np.dot(rates.weights[: rates.parents], ranked[: rates.parents])  # Eqs. 41 and 42
        sigma_path = self._sigma_path(state, mean - state.mean)
        h_sigma = self._h_sigma(sigma_path, state.index)
        covariance_path = self._covariance_path(state, mean - state.mean, h_sigma)
        rank_of_first = int(np.flatnonzero(order == 0)[0])
        steps = (ranked - state.mean) / state.sigma
        covariance = self._covariance(state, covariance_path, steps, h_sigma, rank_of_first)
        speed = float(np.sqrt(np.sum(sigma_path**2))) / rates.expected_length - 1
        mirrored = bool(rates.mirrors) and not (state.mirrored and order[-1] == 0)  # not a mirror's mirror
        after = replace(
            state, point=best, mean=mean, covariance=covariance, covariance_path=covariance_path,
            sigma_path=sigma_path, mirrored=mirrored, index=state.index + 1,
            sigma=state.sigma * float(np.exp(min(1.0, speed * (rates.c_sigma / rates.damping)))),  # Eq. 44
            mirror=state.mean - ranked[-1] if mirrored else np.zeros_like(mean),
        )  # fmt: skip
        is_due = after.index >= after.decomposed + rates.decomposed_every
        return decomposed(after) if is_due else after

    def _sigma_path(self, state: CMAESState, shift: Array) -> Array:
        """Add the mean's shift to the path that sigma follows (Eq. 43)."""
        rates = self.rates
        c = rates.c_sigma
        isotropic = np.dot(state.axes.T, np.dot(state.axes, shift) / state.lengths) * (rates.mu_eff**0.5 / state.sigma)
        path: Array = (1 - c) * state.sigma_path + (c * (2 - c)) ** 0.5 * isotropic
        return path

    def _h_sigma(self, sigma_path: Array, index: int) -> bool:
        """Whether the path of C moves: not while sigma grows fast."""
        size = len(sigma_path)
        square = np.sum(sigma_path**2) / (1 - (1 - self.rates.c_sigma) ** (2 * (index + 1)))
        return bool(square / size - 1 < 1 + 4 / (size + 1))

    def _covariance_path(self, state: CMAESState, shift: Array, h_sigma: bool) -> Array:
        """Add the mean's shift to the path of C (Eq. 45)."""
        rates = self.rates
        c = rates.c_c
        step = (c * (2 - c) * rates.mu_eff) ** 0.5 / state.sigma * shift
        path: Array = (1 - c) * state.covariance_path + h_sigma * step
        return path

    def _covariance(self, state: CMAESState, path: Array, steps: Array, h_sigma: bool, rank_of_first: int) -> Array:
        """Learn C from ranked steps (Eq. 47); the first point may be a mirror image."""
        rates = self.rates
        weights = rates.c_mu * np.insert(rates.weights, rates.parents, np.zeros(len(steps) - self.population))
        if state.mirrored:  # that a mirror image is bad says nothing against its direction
            weights[rank_of_first] = max(0.0, weights[rank_of_first])
        stalled = 0.0 if h_sigma else rates.c_c * (2 - rates.c_c)
        decay = 1 - sum([rates.c_1 * (1 - stalled), *weights])
        for i in np.flatnonzero(weights < 0):  # Eq. 46
            weights[i] *= steps.shape[1] / (state.length(steps[i]) + 1e-9) ** 2
        vectors = np.vstack([path, steps])
        learned = np.dot(np.array([rates.c_1, *weights]) * vectors.T, vectors)
        covariance: Array = state.covariance * decay + learned
        return covariance


def decomposed(state: CMAESState) -> CMAESState:
    """C = B D^2 B'."""
    covariance = (state.covariance + state.covariance.T) / 2
    values, axes = np.linalg.eigh(covariance)
    return replace(
        state,
        covariance=covariance,
        axes=np.ascontiguousarray(axes.T),
        lengths=np.maximum(values, values[-1] / MAX_CONDITION) ** 0.5,
        decomposed=state.index,
    )
