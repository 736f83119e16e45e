"""GAIN has no public program, so no trace: its equations, written a second time one number at a time, judge it."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fozo.methods.gain import GAIN, GAINState
from fozo.types import Tap
from tests.helpers import run
from tests.methods.rival_traces import close, engine, pixels


class Slow:
    """The equations in plain Python: no array is wider than a number. ``lambda`` is found by trying 10,001 of them."""

    def __init__(self, weight: Any, kappa: float = 3.0, floor: float = 1e-6) -> None:
        self.c = [[float(x) for x in row] for row in weight]
        self.k0 = kappa
        self.floor = floor
        self.K = len(self.c)
        self.D = len(self.c[0])
        self.n = [0.0] * self.K
        self.nhat = [0.0] * self.K
        self.Q = [0.0] * self.K
        self.U = [[0.0] * self.D for _ in range(self.K)]
        self.V = [[0.0] * self.D for _ in range(self.K)]
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
    method._prototypes = method._prototypes * 0.1
    slow = Slow(method._prototypes)
    state = method.init()
    inside = 0
    for start in range(0, 30, 6):
        taps = run(engine(), pixels("stream")[start : start + 6])
        features = taps[Tap.POOLED][0] * 0.3
        logits = taps[Tap.LOGITS][0].astype(np.float64)
        s = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        expected, strengths = slow.step(features.tolist(), s.tolist())
        result = step(method, state, features, logits)
        state = result.state
        np.testing.assert_allclose(np.exp(result.logits), expected, atol=2e-4)  # the slow lambda is one of 10,001
        assert result.metrics["strength"] == pytest.approx(np.mean(strengths), abs=2e-4)
        inside += sum(0.001 < strength < 0.999 for strength in strengths)
    assert inside >= 5
    for ours, theirs in ((state.mass, slow.n), (state.total, slow.nhat), (state.squares, slow.Q)):
        np.testing.assert_allclose(ours, theirs, atol=1e-2)
    means, counts, variance, prior = method.gaussians(state)
    sums = {"n": state.mass, "nhat": state.total, "Q": state.squares, "U": state.first, "V": state.second}
    vars(slow).update({name: array.tolist() for name, array in sums.items()})
    for gaussian, expected_gaussian in zip((means, counts, variance, np.exp(prior)), slow.gaussians(), strict=True):
        close(gaussian, np.array(expected_gaussian), "Gaussians from the same sums")


def step(method: GAIN, state: GAINState, features: Any, logits: Any) -> Any:
    """A step on an engine whose features and logits are given."""
    taps = {Tap.POOLED: features[None], Tap.LOGITS: logits[None]}
    method.engine = SimpleNamespace(run=lambda batch, **asked: taps)
    return method.step(state, None)  # type: ignore[arg-type]


def test_unit_length_is_of_features_and_weight_rows() -> None:
    """Scaling features or head changes nothing then, and without it does."""
    taps = run(engine(), pixels("stream")[:24])
    features = taps[Tap.POOLED][0]
    logits = taps[Tap.LOGITS][0]
    unit = GAIN(engine())
    close(np.linalg.norm(unit._prototypes, axis=1), np.ones(10), "lengths of the weight rows")
    for method, equal in ((unit, True), (GAIN(engine(), preset="raw"), False)):
        outputs = []
        for scale in (1.0, 3.0):
            first = step(method, method.init(), scale * features, logits)
            outputs.append(step(method, first.state, scale * features, logits).logits)
        assert np.allclose(outputs[0], outputs[1], atol=1e-9) == equal


def test_the_strength_is_none_where_the_evaluator_sides_with_the_source() -> None:
    """qbar = s: no tilt towards qhat gains anything; qbar = qhat: all of it is."""
    s = np.array([[0.7, 0.2, 0.1]])
    qhat = np.array([[0.1, 0.3, 0.6]])
    xi = np.log(qhat / s)
    for qbar, expected in ((s, 0.0), (qhat, 1.0), ([[0.9, 0.1, 0.0]], 0.0), ([[0.0, 0.0, 1.0]], 1.0)):
        goal = (np.asarray(qbar) * xi).sum(axis=1)
        close(GAIN._strength(np.log(s), xi, goal), [expected], f"strength with {qbar}")
