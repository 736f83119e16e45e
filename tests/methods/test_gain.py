"""GAIN has no public program, so no trace: its equations, written a second time one number at a time, judge it."""

import math
from typing import Any

import numpy as np
import pytest

from fozo.methods.gain import GAIN
from fozo.types import Tap
from tests.helpers import run
from tests.methods.rival_traces import close, engine, pixels


class Slow:
    """The equations in plain Python: no array is wider than a number. ``lambda`` is found by trying 10,001 of them."""

    def __init__(self, weight: Any, kappa: float = 3.0, floor: float = 1e-6) -> None:
        self.c, self.k0, self.floor = [[float(x) for x in row] for row in weight], kappa, floor
        self.K, self.D = len(self.c), len(self.c[0])
        self.n, self.nhat, self.Q = ([0.0] * self.K for _ in range(3))
        self.U, self.V = ([[0.0] * self.D for _ in range(self.K)] for _ in range(2))
        self.first = True

    def gaussians(self) -> tuple[list[list[float]], list[float], list[float], list[float]]:
        K, D, k0 = self.K, self.D, self.k0
        m = [[(k0 * self.c[k][j] + self.U[k][j]) / (k0 + self.n[k]) for j in range(D)] for k in range(K)]
        kappa = [k0 + self.n[k] for k in range(K)]
        nu = sum(self.n[k] - self.Q[k] / self.n[k] for k in range(K) if self.n[k] > 0)
        v = []
        for j in range(D):
            R = sum(self.V[k][j] - self.U[k][j] ** 2 / self.n[k] for k in range(K) if self.n[k] > 0)
            v.append(max((k0 + R) / (k0 + nu), self.floor))
        pi = [(k0 + self.n[k]) / (k0 + self.nhat[k]) ** 2 for k in range(K)]
        total = sum(pi)
        return m, kappa, v, [x / total for x in pi]

    @staticmethod
    def softmax(scores: list[float]) -> list[float]:
        top = max(scores)
        odds = [math.exp(x - top) for x in scores]
        return [x / sum(odds) for x in odds]

    def predict(self, z: list[float], s: list[float]) -> tuple[list[float], float]:
        m, kappa, v, pi = self.gaussians()
        K = range(self.K)
        d = [sum((z[j] - m[k][j]) ** 2 / v[j] for j in range(self.D)) for k in K]
        qhat = self.softmax([math.log(pi[k]) - d[k] / 2 for k in K])
        h = [1 + 1 / kappa[k] for k in K]
        qbar = self.softmax([math.log(pi[k]) - self.D / 2 * math.log(h[k]) - d[k] / (2 * h[k]) for k in K])
        xi = [math.log(qhat[k] / s[k]) for k in K]
        G = sum(qbar[k] * xi[k] for k in K)

        def goal(strength: float) -> float:
            terms = [math.log(s[k]) + strength * xi[k] for k in K]
            top = max(terms)
            return strength * G - top - math.log(sum(math.exp(x - top) for x in terms))

        best = max((i / 10_000 for i in range(10_001)), key=goal)
        return self.softmax([math.log(s[k]) + best * xi[k] for k in K]), best

    def step(self, features: Any, probabilities: Any) -> tuple[Any, list[float]]:
        found = [(s, 0.0) if self.first else self.predict(z, s) for z, s in zip(features, probabilities, strict=True)]
        self.first = False
        for z, s, (p, _) in zip(features, probabilities, found, strict=True):
            zeta = s[max(range(self.K), key=lambda k: p[k])]
            for k in range(self.K):
                w = zeta * p[k]
                self.n[k] += w
                self.nhat[k] += p[k]
                self.Q[k] += w * w
                for j in range(self.D):
                    self.U[k][j] += w * z[j]
                    self.V[k][j] += w * z[j] ** 2
        return np.array([p for p, _ in found]), [strength for _, strength in found]


def test_it_is_its_equations() -> None:
    """On the golden model and stream, with features scaled so that qhat is not certain and strengths lie inside."""
    method = GAIN(engine(), preset="raw")
    method.prototypes = method.prototypes * 0.1
    slow = Slow(method.prototypes)
    inside = 0
    for start in range(0, 30, 6):
        taps = run(engine(), pixels("stream")[start : start + 6])
        features, logits = taps[Tap.POOLED][0] * 0.3, taps[Tap.LOGITS][0].astype(np.float64)
        s = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        expected, strengths = slow.step(features.tolist(), s.tolist())
        method.engine = _Fixed(features, logits)  # type: ignore[assignment]
        got = np.exp(method.step(None))  # type: ignore[arg-type]
        np.testing.assert_allclose(got, expected, atol=2e-4)  # the slow lambda is one of 10,001
        assert method.metrics()["strength"] == pytest.approx(np.mean(strengths), abs=2e-4)
        inside += sum(0.001 < strength < 0.999 for strength in strengths)
    assert inside >= 5
    for name, theirs in (("mass", slow.n), ("total", slow.nhat), ("squares", slow.Q)):
        np.testing.assert_allclose(getattr(method, name), theirs, atol=1e-2)
    means, counts, variance, prior = method.gaussians()
    slow.n, slow.nhat, slow.Q = method.mass.tolist(), method.total.tolist(), method.squares.tolist()
    slow.U, slow.V = method.first.tolist(), method.second.tolist()
    for own, other in zip((means, counts, variance, np.exp(prior)), slow.gaussians(), strict=True):
        close(own, np.array(other), "Gaussians from the same sums")


class _Fixed:
    """An engine whose features and logits are given."""

    def __init__(self, features: Any, logits: Any) -> None:
        self.taps = {Tap.POOLED: features[None], Tap.LOGITS: logits[None]}

    def run(self, batch: object, taps: object = None) -> Any:
        return self.taps


def test_unit_length_is_of_features_and_weight_rows() -> None:
    """Scaling features or head changes nothing then, and without it does."""
    images = pixels("stream")[:24]
    unit, raw = GAIN(engine()), GAIN(engine(), preset="raw")
    close(np.linalg.norm(unit.prototypes, axis=1), np.ones(10), "lengths of the weight rows")
    taps = run(engine(), images)
    features, logits = taps[Tap.POOLED][0], taps[Tap.LOGITS][0]
    for method, equal in ((unit, True), (raw, False)):
        found = []
        for scale in (1.0, 3.0):
            method.reset()
            method.engine = _Fixed(scale * features, logits)  # type: ignore[assignment]
            found.append([method.step(None) for _ in range(2)][1])  # type: ignore[arg-type]
        assert np.allclose(found[0], found[1], atol=1e-9) == equal


def test_the_strength_is_none_where_the_evaluator_sides_with_the_source() -> None:
    """qbar = s: no tilt towards qhat gains anything; qbar = qhat: all of it is."""
    s, qhat = np.array([[0.7, 0.2, 0.1]]), np.array([[0.1, 0.3, 0.6]])
    xi = np.log(qhat / s)
    for qbar, expected in ((s, 0.0), (qhat, 1.0), ([[0.9, 0.1, 0.0]], 0.0), ([[0.0, 0.0, 1.0]], 1.0)):
        goal = (np.asarray(qbar) * xi).sum(axis=1)
        close(GAIN._strength(np.log(s), xi, goal), [expected], f"strength with {qbar}")
