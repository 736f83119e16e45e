"""CAZO: zeroth-order descent on a small adapter, with steps scaled by its curvature (CVPR 2026).

A bottleneck adapter stands beside the MLP of block 3. Its few hundred numbers theta are perturbed two-sidedly along k
random directions z ~ N(0, 1/D), where D estimates the curvature as a running mean of squared gradients; the gradient
is the mean of (L(theta + eps z) - L(theta - eps z)) / (2 eps) z. The loss is FOA's: the CLS tokens' statistics against
the source's, and the entropy. One more pass, at the new theta and shifted as in FOA, gives the prediction: 41 in all.

Preset ``official`` is the authors' program. ``paper`` leaves out two slips of it: dropout is active in every pass, also
in the one that predicts and with other masks on the two sides of a difference (``dropout``), and the step is multiplied
by eps, so that the stated rate of 0.01 is 0.001 (``scaled_step``). As in the program, D begins at 1, is divided by
1 - (1 - nu)^t all the same, and does not learn from the first gradient; and the gradient has the curvature in it
already. What differs: the program's ``reset`` keeps the adapter's LayerNorm and draws new weights; here it is exact. A
batch of one has no standard deviation and borrows the features of the images before it, as in FOZO.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fozo.core.noise import Noise, PhiloxNoise, Purpose, generator
from fozo.core.objective import Objective
from fozo.errors import FozoError
from fozo.methods.common.matching import MatchingMethod
from fozo.methods.common.options import below_one, one_of, positive, share, sweep
from fozo.methods.registry import register
from fozo.types import Array, Batch, Floats, State, Tap


@dataclass(frozen=True)
class CAZOConfig:
    """Everything about CAZO that can be chosen. The defaults are those of the authors' script."""

    passes: int = 41  # Forward passes for each batch: two for each direction, and one for the prediction
    rate: float = 0.01
    epsilon: float = 0.1  # How far theta is perturbed
    nu: float = 0.8  # Weight of a new squared gradient in the curvature
    momentum: float = 0.0  # Weight of the past in the direction of descent; the program's other choice is 0.9
    weight: float = 0.4  # Of the statistics against the entropy
    blocks: str = "3"  # Blocks that have an adapter, such as ``3,7``
    placement: str = "parallel"  # an adapter reads what the MLP reads, or (``sequential``) what it returns
    width: int = 2  # Hidden values of an adapter
    dropout: float = 0.1  # Share of the hidden values that every pass drops
    scaled_step: bool = True  # Whether the step is multiplied by epsilon
    window: int = 64  # Images over which the statistics of a batch of one are taken: itself and those just before it

    def __post_init__(self) -> None:
        if self.passes < 3 or self.passes % 2 == 0:
            raise FozoError(f"cazo takes an odd number of passes from 3 on, not {self.passes}")
        one_of("cazo", ("parallel", "sequential"), placement=self.placement)
        positive("cazo", rate=self.rate, epsilon=self.epsilon, width=self.width)
        share("cazo", nu=self.nu)
        below_one("cazo", momentum=self.momentum, dropout=self.dropout)
        if not all(block.strip().isdecimal() for block in self.blocks.split(",")):
            raise FozoError(f"cazo: blocks {self.blocks!r} must be like 3 or 3,7")


@register(
    "cazo", passes="41, 2k + 1", adapts="a bottleneck adapter at block 3", paper="CAZO, CVPR 2026",
    needs={"source", "tokens", "torch"}, draws=True,
    tuning=sweep("rate", 1e-2, 6.25e-4, 2.5e-3, 4e-2),
)  # fmt: skip
class CAZO(MatchingMethod[CAZOConfig]):
    """Zeroth-order descent on an adapter, with steps scaled by its curvature.

    Beside what every :class:`fozo.Method` takes:

    Args:
        start: the adapter's numbers to start from instead of drawn ones.
        noise: directions to use instead of the seeded ones.
        keep: draws of dropout to use instead of the seeded ones, ``(pass, [adapters, B, T, width]) -> booleans``.
    """

    PRESETS: ClassVar = {"official": CAZOConfig(), "paper": CAZOConfig(dropout=0.0, scaled_step=False)}
    EXTRAS: ClassVar = ("start", "noise", "keep")
    SHARES_PREPARED = False
    STATE: ClassVar = ("theta", "curvature", "velocity", "steps", "shift", "window")

    def prepare(self) -> None:
        from fozo.methods.common.adapters import Adapters

        c = self.config
        blocks = [int(block) for block in c.blocks.split(",")]
        self.adapters = Adapters(self.engine, blocks, c.width, c.placement == "parallel")
        self.noise: Noise = self.extras["noise"] or PhiloxNoise(self.seed)
        self.keep = self.extras["keep"] or self._keep
        self.start = self._drawn(len(blocks)) if self.extras["start"] is None else np.array(self.extras["start"], float)
        if self.start.shape != (len(self.adapters),) or not np.isfinite(self.start).all():
            shape = list(self.start.shape)
            raise FozoError(f"cazo: start must be {len(self.adapters)} finite numbers, not of shape {shape}")
        self.objective = Objective(weight=c.weight)
        self.passes_per_image, self.parameters = float(c.passes), len(self.adapters)

    def _drawn(self, count: int) -> Array:
        """A LayerNorm that does nothing, small random weights down, and zeros up: no effect yet."""
        dim, width = self.engine.spec.dim, self.config.width
        numbers, bound = generator(self.seed, Purpose.ADAPTERS), 1 / math.sqrt(dim)
        each = [
            np.concatenate([np.ones(dim), np.zeros(dim), numbers.uniform(-bound, bound, width * dim),
                            np.zeros(width + dim * width + dim)])
            for _ in range(count)
        ]  # fmt: skip
        return np.concatenate(each)

    def _keep(self, step: int, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
        """Draw which hidden values stay: always the same for the same step and shape."""
        draws = generator(self.seed, Purpose.DROPOUT, step).random(shape)
        return np.asarray(draws < 1 - self.config.dropout)

    def begin(self) -> None:
        self.theta, self.velocity = self.start, np.zeros_like(self.start)
        self.curvature = np.ones_like(self.start)
        self.steps = 0
        self.begin_matching(self.config.window, scale=1.0)

    def step(self, batch: Batch) -> Floats:
        c, t, k = self.config, self.steps, self.config.passes // 2
        curvature = self.curvature / (1 - (1 - c.nu) ** t) if t else self.curvature
        directions = self.noise(t, (k, len(self.theta))) / np.sqrt(curvature)
        gradient, means = np.zeros_like(self.theta), []
        for j, z in enumerate(directions):
            losses = []
            for side, sign in enumerate((1, -1)):
                loss, pooled, _ = self._evaluate(batch, self.theta + sign * c.epsilon * z, t * c.passes + 2 * j + side)
                losses.append(loss)
                means.append(pooled.mean(axis=0, dtype=np.float64))
            gradient += (losses[0] - losses[1]) / (2 * c.epsilon) * z
        gradient /= k
        if not np.isfinite(gradient).all():
            raise FozoError("cazo's losses are not finite; nothing was changed: reset it or lower its rate")
        if t:
            self.curvature = (1 - c.nu) * self.curvature + c.nu * gradient**2
        self.steps = t + 1
        self.velocity = c.momentum * self.velocity + (1 - c.momentum) * gradient
        self.theta = self.theta - c.rate * (c.epsilon if c.scaled_step else 1.0) * self.velocity
        loss, pooled, features = self._evaluate(batch, self.theta, t * c.passes + 2 * k)
        prediction = self.engine.head()(self.shifted(pooled))
        self.shift.observe(np.mean(means, axis=0))
        self.window.push(features)
        self.report(loss=loss)
        return prediction

    def _evaluate(self, batch: Batch, theta: Array, number: int) -> tuple[float, Floats, Floats]:
        """Loss of a pass, what the head reads in it, and its features; ``number`` is the pass's address for dropout."""
        c, keep = self.config, None
        if c.dropout:
            keep = self.keep(number, (len(self.adapters.adapters), len(batch), self.adapters.tokens, c.width))
        taps = self.adapters.run(batch, theta, keep, 1 - c.dropout)
        features, pooled = taps[Tap.FEATURES][0], taps[Tap.POOLED][0]
        loss = self.objective(self.source.features, self.moments(features), self.engine.head()(pooled))
        return loss, pooled, features

    def pooled(self, batch: Batch) -> Floats:
        pooled: Floats = self.adapters.run(batch, self.theta, None, 1.0)[Tap.POOLED][0]  # without dropout
        return pooled

    def assign(self, variables: State) -> None:
        if variables["curvature"].astype(np.float64).min() <= 0:
            raise FozoError("the state's curvature is not positive; give a state that was saved whole")
        super().assign(variables)
