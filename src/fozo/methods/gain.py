"""GAIN: class Gaussians, and for each image how far to trust them (2026 preprint, "Not every correction helps").

Every class has a Gaussian over what the head reads: its mean starts at the head's weight row and is learned from the
stream, its diagonal covariance is shared. A proposal qhat (the Gaussians as they are) says where a prediction should
go, an evaluator qbar (the same, widened where a class has hardly been seen) says how far: the strength lambda in [0, 1]
maximises lambda E_qbar[xi] - log E_s[exp(lambda xi)] with xi = log(qhat / s), which is concave. The prediction is the
source's softmax s, tilted: p ~ s exp(lambda xi). One pass, no source data.

There is no public program and so no trace: this is made from a transcript of the paper's equations (6-16 and 74-88) and
tested against a slow implementation of them. The first batch is predicted by the model alone, as in the paper. What the
transcript does not say: the variance's ``floor``, and whether features and weight rows are of unit length. A model's
raw features may be a hundred times as long as its weight rows; then the first classes to be seen leave the others
behind at the origin and take every later image. So ``unit_length`` is the default; the preset ``raw`` goes without.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax

from fozo.errors import FozoError
from fozo.methods.common.options import positive, sweep
from fozo.methods.method import Method, Result
from fozo.methods.registry import register
from fozo.state import State
from fozo.types import Array, Batch, Floats, Tap

BISECTIONS = 40  # Halvings of [0, 1] until the strength is known: to 1e-12


@dataclass(frozen=True)
class GAINConfig:
    """Everything about GAIN that can be chosen."""

    kappa: float = 3.0
    """kappa_0: how many images a class's weight row, the variance of 1 and the uniform prior are."""
    floor: float = 1e-6
    """The least variance."""
    unit_length: bool = True
    """Whether features and weight rows are scaled to length 1 before Gaussians see them."""

    def __post_init__(self) -> None:
        positive("gain", kappa=self.kappa, floor=self.floor)


@dataclass(frozen=True)
class GAINState(State):
    """Sums over the stream, from which the Gaussians follow."""

    images: int
    mass: Array  # n: images of each class, each weighed by the source's confidence in it, [K]
    total: Array  # nhat: the same without that weight, [K]
    squares: Array  # Q: sum of squared weights, [K]
    first: Array  # U: weighted sum of features, [K, h]
    second: Array  # V: weighted sum of squared features, [K, h]

    def __post_init__(self) -> None:
        """Refuse sums of weights below 0."""
        if min(sums.min(initial=0) for sums in (self.mass, self.total, self.squares, self.second)) < 0:
            raise ValueError("sums of weights are negative")


@register(
    "gain", passes="1", adapts="class means and variances", paper="GAIN, 2026 preprint", needs={"tokens"},
    tuning=sweep("kappa", 3.0, 10.0, 30.0, 100.0),
)  # fmt: skip
class GAIN(Method[GAINConfig, GAINState]):
    """Class Gaussians learned from the stream, with a strength for each image."""

    PRESETS: ClassVar = {"paper": GAINConfig(), "raw": GAINConfig(unit_length=False)}

    def prepare(self) -> None:
        self._prototypes: Array = self._scaled(self.engine.head().weight.T)

    def _scaled(self, rows: Floats) -> Array:
        exact = np.asarray(rows, dtype=np.float64)
        length = np.linalg.norm(exact, axis=1, keepdims=True)
        return exact / np.maximum(length, 1e-12) if self.config.unit_length else exact

    def init(self) -> GAINState:
        by_class = np.zeros(len(self._prototypes))
        by_feature = np.zeros_like(self._prototypes)
        return GAINState(0, by_class, by_class, by_class, by_feature, by_feature)

    def gaussians(self, state: GAINState) -> tuple[Array, Array, Array, Array]:
        """Means ``[K, h]``, counts ``[K]``, variance ``[h]`` and log prior ``[K]`` from the sums (Eq. 74-88)."""
        kappa = self.config.kappa
        counts = kappa + state.mass
        means = (kappa * self._prototypes + state.first) / counts[:, None]
        seen = state.mass > 0
        mass = np.where(seen, state.mass, 1.0)
        scatter = np.where(seen[:, None], state.second - state.first**2 / mass[:, None], 0.0).sum(axis=0)
        freedom = np.where(seen, state.mass - state.squares / mass, 0.0).sum()
        variance = np.maximum((kappa + scatter) / (kappa + freedom), self.config.floor)
        prior = np.log(counts) - 2 * np.log(kappa + state.total)
        return means, counts, variance, prior - np.log(np.exp(prior - prior.max()).sum()) - prior.max()

    def corrected(self, state: GAINState, features: Array, source: Array) -> tuple[Array, Array]:
        """Log-probabilities of the tilted prediction, and the strength of each image; ``source`` is log s."""
        means, counts, variance, prior = self.gaussians(state)
        scale = np.sqrt(variance)
        z = features / scale
        m = means / scale
        distance = np.maximum((z**2).sum(axis=1)[:, None] - 2 * z @ m.T + (m**2).sum(axis=1), 0.0)
        proposal = log_softmax(prior - distance / 2, axis=1)
        widening = 1 + 1 / counts
        evaluator = log_softmax(prior - features.shape[1] / 2 * np.log(widening) - distance / (2 * widening), axis=1)
        xi = proposal - source
        goal = (np.exp(evaluator) * xi).sum(axis=1)
        strength = self._strength(source, xi, goal)
        return log_softmax(source + strength[:, None] * xi, axis=1), strength

    @staticmethod
    def _strength(source: Array, xi: Array, goal: Array) -> Array:
        """Find where E_p(lambda)[xi], which grows with lambda, meets ``goal``; the nearer end where it does not."""

        def short(strength: Array) -> npt.NDArray[np.bool_]:
            tilted = np.exp(log_softmax(source + strength[:, None] * xi, axis=1))
            further: npt.NDArray[np.bool_] = (tilted * xi).sum(axis=1) < goal
            return further

        low = np.zeros(len(goal))
        high = np.ones(len(goal))
        none = ~short(low)
        full = short(high)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            further = short(middle)
            low = np.where(further, middle, low)
            high = np.where(further, high, middle)
        return np.where(none, 0.0, np.where(full, 1.0, (low + high) / 2))

    def step(self, state: GAINState, batch: Batch) -> Result[GAINState]:
        taps = self.engine.run(batch, taps=(Tap.POOLED, Tap.LOGITS))
        logits = taps[Tap.LOGITS][0]
        features = self._scaled(taps[Tap.POOLED][0])
        if not np.isfinite(logits).all():  # an infinite feature must not enter the sums
            raise FozoError("the model's logits are not finite; nothing was changed: check its weights")
        source = log_softmax(logits.astype(np.float64), axis=1)
        prediction: Array = source
        strength = np.zeros(len(source))
        if state.images:
            prediction, strength = self.corrected(state, features, source)  # Eq. 6-16
        p = np.exp(prediction)
        confidence = np.exp(source[np.arange(len(p)), p.argmax(axis=1)])  # zeta: the source's, in the prediction
        weights = confidence[:, None] * p
        learnt = GAINState(
            images=state.images + len(p),
            mass=state.mass + weights.sum(axis=0),
            total=state.total + p.sum(axis=0),
            squares=state.squares + (weights**2).sum(axis=0),
            first=state.first + weights.T @ features,
            second=state.second + weights.T @ features**2,
        )
        return Result(prediction.astype(logits.dtype), learnt, {"strength": float(strength.mean())})
