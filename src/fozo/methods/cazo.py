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

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from fozo.core.moments import MovingAverage, Window
from fozo.core.noise import Noise, PhiloxNoise, Purpose, check_seed, generator
from fozo.core.objective import Objective
from fozo.errors import FozoError
from fozo.methods.common.matching import SHIFT_DECAY, shifted
from fozo.methods.common.options import below_one, one_of, positive, share, sweep
from fozo.methods.common.twin import PerThread
from fozo.methods.method import Method, Result
from fozo.methods.registry import register
from fozo.state import State
from fozo.types import Array, Batch, Floats, Tap

if TYPE_CHECKING:
    pass

Masks = npt.NDArray[np.bool_]
Keep = Callable[[int, tuple[int, ...]], Masks]


@dataclass(frozen=True)
class CAZOConfig:
    """Everything about CAZO that can be chosen. The defaults are those of the authors' script."""

    passes: int = 41
    """Forward passes for each batch: two for each direction, and one for the prediction."""
    rate: float = 0.01
    """Learning rate."""
    epsilon: float = 0.1
    """How far theta is perturbed."""
    nu: float = 0.8
    """Weight of a new squared gradient in the curvature."""
    momentum: float = 0.0
    """Weight of the past in the direction of descent; the program's other choice is 0.9."""
    weight: float = 0.4
    """Weight of the statistics against the entropy."""
    blocks: str = "3"
    """Blocks that have an adapter, such as ``3,7``."""
    placement: str = "parallel"
    """An adapter reads what the MLP reads (``parallel``), or what it returns (``sequential``)."""
    width: int = 2
    """Hidden values of an adapter."""
    dropout: float = 0.1
    """Share of the hidden values that every pass drops."""
    scaled_step: bool = True
    """Whether the step is multiplied by epsilon."""
    window: int = 64
    """Images over which the statistics of a batch of one are taken: itself and those just before it."""

    def __post_init__(self) -> None:
        if self.passes < 3 or self.passes % 2 == 0:
            raise FozoError(f"cazo takes an odd number of passes from 3 on, not {self.passes}")
        one_of("cazo", ("parallel", "sequential"), placement=self.placement)
        positive("cazo", rate=self.rate, epsilon=self.epsilon, width=self.width)
        share("cazo", nu=self.nu)
        below_one("cazo", momentum=self.momentum, dropout=self.dropout)
        if self.window < 2:
            raise FozoError(f"cazo: window must be at least 2 images, not {self.window}")
        if not all(block.strip().isdecimal() for block in self.blocks.split(",")):
            raise FozoError(f"cazo: blocks {self.blocks!r} must be like 3 or 3,7")


@dataclass(frozen=True)
class CAZOState(State):
    """The adapter's numbers, what scales its steps, and the averages that the loss and the prediction use."""

    theta: Array
    curvature: Array
    """D: running mean of squared gradients."""
    velocity: Array
    shift: MovingAverage
    """What the head reads ``[h]``."""
    window: Window
    steps: int = 0

    def __post_init__(self) -> None:
        """Refuse a curvature that no steps can be scaled by."""
        if self.curvature.min() <= 0:
            raise ValueError("its curvature is not positive")


@register(
    "cazo", passes="41, 2k + 1", adapts="a bottleneck adapter at block 3", paper="CAZO, CVPR 2026",
    needs={"statistics", "tokens", "torch"}, draws=True,
    tuning=sweep("rate", 1e-2, 6.25e-4, 2.5e-3, 4e-2),
)  # fmt: skip
class CAZO(Method[CAZOConfig, CAZOState]):
    """Zeroth-order descent on an adapter, with steps scaled by its curvature.

    Beside what every :class:`fozo.Method` takes:

    Args:
        start: the adapter's numbers to start from instead of drawn ones.
        noise: directions to use instead of the seeded ones.
        keep: draws of dropout to use instead of the seeded ones, ``(pass, [adapters, B, T, width]) -> booleans``.
    """

    PRESETS: ClassVar = {"official": CAZOConfig(), "paper": CAZOConfig(dropout=0.0, scaled_step=False)}
    EXTRAS: ClassVar = ("start", "noise", "keep")

    def prepare(self) -> None:
        from fozo.methods.common.adapters import Adapters

        config = self.config
        engine = self.engine
        blocks = [int(block) for block in config.blocks.split(",")]
        parallel = config.placement == "parallel"
        self._twins = PerThread(partial(Adapters, engine, blocks, config.width, parallel))
        self.parameter_count = len(self._twins())
        start = self._extras["start"]
        self._start = self._drawn(len(blocks)) if start is None else np.array(start, dtype=np.float64)
        if self._start.shape != (self.parameter_count,) or not np.isfinite(self._start).all():
            shape = list(self._start.shape)
            raise FozoError(f"cazo: start must be {self.parameter_count} finite numbers, not of shape {shape}")
        self._noise: Noise = self._extras["noise"] or PhiloxNoise(self.seed)
        self._keep: Keep = self._extras["keep"] or Dropout(self.seed, config.dropout)
        self._objective = Objective(weight=config.weight)

    def _drawn(self, count: int) -> Array:
        """A LayerNorm that does nothing, small random weights down, and zeros up: no effect yet."""
        dim = self.engine.spec.dim
        width = self.config.width
        bound = 1 / math.sqrt(dim)
        numbers = generator(self.seed, Purpose.ADAPTERS)
        adapters: list[Array] = []
        for _ in range(count):
            down = numbers.uniform(-bound, bound, width * dim)
            adapters += [np.ones(dim), np.zeros(dim), down, np.zeros(width + dim * width + dim)]
        return np.concatenate(adapters)

    def init(self) -> CAZOState:
        spec = self.engine.spec
        return CAZOState(
            theta=self._start,
            curvature=np.ones_like(self._start),
            velocity=np.zeros_like(self._start),
            shift=MovingAverage.empty((spec.head_width,)),
            window=Window.empty((spec.depth, spec.dim)),
        )

    def step(self, state: CAZOState, batch: Batch) -> Result[CAZOState]:
        config = self.config
        first_pass = state.steps * config.passes
        gradient, mean_pooled = self._gradient(state, batch, first_pass)
        curvature = state.curvature
        if state.steps:
            curvature = (1 - config.nu) * curvature + config.nu * gradient**2
        velocity = config.momentum * state.velocity + (1 - config.momentum) * gradient
        rate = config.rate * (config.epsilon if config.scaled_step else 1.0)
        theta = state.theta - rate * velocity
        loss, pooled, features = self._evaluate(state, batch, theta, first_pass + config.passes - 1)
        learnt = CAZOState(
            theta=theta,
            curvature=curvature,
            velocity=velocity,
            shift=state.shift.update(mean_pooled, SHIFT_DECAY),
            window=state.window.push(features, config.window),
            steps=state.steps + 1,
        )
        return Result(self._predicted(state, pooled), learnt, {"loss": loss}, passes=float(config.passes))

    def predict_step(self, state: CAZOState, batch: Batch) -> Result[CAZOState]:
        pooled = self._twins().run(batch, state.theta, None, 1.0)[Tap.POOLED][0]  # without dropout
        return Result(self._predicted(state, pooled), state)

    def _predicted(self, state: CAZOState, pooled: Floats) -> Floats:
        return self.engine.head()(shifted(pooled, self.statistics.pooled.mean, state.shift))

    def _gradient(self, state: CAZOState, batch: Batch, first_pass: int) -> tuple[Array, Array]:
        """The mean gradient along random directions, and the mean of what the head reads in these passes."""
        config = self.config
        count = config.passes // 2
        scale = state.curvature
        if state.steps:
            scale = scale / (1 - (1 - config.nu) ** state.steps)
        directions = self._noise(state.steps, (count, len(state.theta))) / np.sqrt(scale)
        gradient = np.zeros_like(state.theta)
        means: list[Array] = []
        for index, direction in enumerate(directions):
            move = config.epsilon * direction
            number = first_pass + 2 * index
            loss_ahead, pooled_ahead, _ = self._evaluate(state, batch, state.theta + move, number)
            loss_behind, pooled_behind, _ = self._evaluate(state, batch, state.theta - move, number + 1)
            gradient += (loss_ahead - loss_behind) / (2 * config.epsilon) * direction
            means += [pooled.mean(axis=0, dtype=np.float64) for pooled in (pooled_ahead, pooled_behind)]
        gradient /= count
        if not np.isfinite(gradient).all():
            raise FozoError("cazo's losses are not finite; nothing was changed: reset it or lower its rate")
        return gradient, np.mean(means, axis=0)

    def _evaluate(self, state: CAZOState, batch: Batch, theta: Array, number: int) -> tuple[float, Floats, Floats]:
        """Loss of a pass, what the head reads in it, and its features; ``number`` is the pass's address for dropout."""
        config = self.config
        adapters = self._twins()
        keep: Masks | None = None
        if config.dropout:
            keep = self._keep(number, (len(adapters.adapters), len(batch), adapters.tokens, config.width))
        taps = adapters.run(batch, theta, keep, 1 - config.dropout)
        features = taps[Tap.FEATURES][0]
        pooled = taps[Tap.POOLED][0]
        moments = state.window.moments(features, config.window)
        loss = self._objective(self.statistics.features, moments, self.engine.head()(pooled))
        return loss, pooled, features


class Dropout:
    """The standard draws of dropout: which hidden values stay, always the same for the same pass and shape."""

    def __init__(self, seed: int, share: float) -> None:
        check_seed(seed)
        self.seed = seed
        self.share = share

    def __call__(self, step: int, shape: tuple[int, ...]) -> Masks:
        draws = generator(self.seed, Purpose.DROPOUT, step).random(shape)
        return np.asarray(draws < 1 - self.share)
