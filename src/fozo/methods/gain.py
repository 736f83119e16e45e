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
from fozo.methods.base import Method
from fozo.methods.common.options import positive, sweep
from fozo.methods.registry import register
from fozo.types import Array, Batch, Floats, State, Tap

BISECTIONS = 40  # Halvings of [0, 1] until the strength is known: to 1e-12


@dataclass(frozen=True)
class GAINConfig:
    """Everything about GAIN that can be chosen."""

    kappa: float = 3.0  # kappa_0: how many images a class's weight row, the variance of 1 and the uniform prior are
    floor: float = 1e-6  # The least variance
    unit_length: bool = True  # Whether features and weight rows are scaled to length 1 before Gaussians see them

    def __post_init__(self) -> None:
        positive("gain", kappa=self.kappa, floor=self.floor)


@register(
    "gain", passes="1", adapts="class means and variances", paper="GAIN, 2026 preprint", needs={"tokens"},
    tuning=sweep("kappa", 3.0, 10.0, 30.0, 100.0),
)  # fmt: skip
class GAIN(Method[GAINConfig]):
    """Class Gaussians learned from the stream, with a strength for each image."""

    PRESETS: ClassVar = {"paper": GAINConfig(), "raw": GAINConfig(unit_length=False)}
    STATE: ClassVar = ("images", "mass", "total", "squares", "first", "second")

    def prepare(self) -> None:
        self.prototypes: Array = self._scaled(self.engine.head().weight.T)

    def _scaled(self, rows: Floats) -> Array:
        exact = np.asarray(rows, dtype=np.float64)
        length = np.linalg.norm(exact, axis=1, keepdims=True)
        return exact / np.maximum(length, 1e-12) if self.config.unit_length else exact

    def begin(self) -> None:
        classes, width = self.prototypes.shape
        self.images = 0
        self.mass: Array = np.zeros(classes)  # n: images of each class, each weighed by the source's confidence in it
        self.total: Array = np.zeros(classes)  # nhat: the same without that weight
        self.squares: Array = np.zeros(classes)  # Q: sum of squared weights
        self.first: Array = np.zeros((classes, width))  # U: weighted sum of features
        self.second: Array = np.zeros((classes, width))  # V: weighted sum of squared features

    def gaussians(self) -> tuple[Array, Array, Array, Array]:
        """Means ``[K, h]``, counts ``[K]``, variance ``[h]`` and log prior ``[K]`` from the sums (Eq. 74-88)."""
        kappa = self.config.kappa
        counts = kappa + self.mass
        means = (kappa * self.prototypes + self.first) / counts[:, None]
        seen = self.mass > 0
        mass = np.where(seen, self.mass, 1.0)
        scatter = np.where(seen[:, None], self.second - self.first**2 / mass[:, None], 0.0).sum(axis=0)
        freedom = np.where(seen, self.mass - self.squares / mass, 0.0).sum()
        variance = np.maximum((kappa + scatter) / (kappa + freedom), self.config.floor)
        prior = np.log(counts) - 2 * np.log(kappa + self.total)
        return means, counts, variance, prior - np.log(np.exp(prior - prior.max()).sum()) - prior.max()

    def corrected(self, features: Array, source: Array) -> tuple[Array, Array]:
        """Log-probabilities of the tilted prediction, and the strength of each image; ``source`` is log s."""
        means, counts, variance, prior = self.gaussians()
        scale = np.sqrt(variance)
        z, m = features / scale, means / scale
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

        low, high = np.zeros(len(goal)), np.ones(len(goal))
        none, full = ~short(low), short(high)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            further = short(middle)
            low, high = np.where(further, middle, low), np.where(further, high, middle)
        return np.where(none, 0.0, np.where(full, 1.0, (low + high) / 2))

    def step(self, batch: Batch) -> Floats:
        taps = self.engine.run(batch, taps=(Tap.POOLED, Tap.LOGITS))
        logits = taps[Tap.LOGITS][0]
        features = self._scaled(taps[Tap.POOLED][0])
        if not np.isfinite(logits).all():  # an infinite feature must not enter the sums
            raise FozoError("the model's logits are not finite; nothing was changed: check its weights")
        source = log_softmax(logits.astype(np.float64), axis=1)
        prediction: Array = source
        strength = np.zeros(len(source))
        if self.images:
            prediction, strength = self.corrected(features, source)  # Eq. 6-16
        p = np.exp(prediction)
        confidence = np.exp(source[np.arange(len(p)), p.argmax(axis=1)])  # zeta: the source's, in the prediction
        weights = confidence[:, None] * p
        self.mass = self.mass + weights.sum(axis=0)
        self.total = self.total + p.sum(axis=0)
        self.squares = self.squares + (weights**2).sum(axis=0)
        self.first = self.first + weights.T @ features
        self.second = self.second + weights.T @ features**2
        self.images += len(p)
        self.report(strength=float(strength.mean()))
        return prediction.astype(logits.dtype)

    def assign(self, variables: State) -> None:
        if any(variables[name].min() < 0 for name in self.STATE if name not in ("images", "first")):
            raise FozoError("the state's sums of weights are negative; give a state that was saved whole")
        super().assign(variables)
