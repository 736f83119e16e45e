"""Moving patch tokens part of the way back to where they are on clean data, before every block, in closed form.

For layer l let m_l be the mean of the stream's patch tokens as they enter block l, and s_l the logarithm of their
variance (both per feature, averaged over images); m*_l and s*_l the same on clean data. With strengths a (mean) and
b (spread) in [0, 1] the move before block l is

    x  ->  e * (x - m_l) + m_l + a (m*_l - m_l),        e = exp(b (s*_l - s_l) / 2)

A move changes what all later blocks see, so m_l and s_l under today's moves are not what they were under yesterday's,
and moving every layer by its own old deviation corrects the same error twelve times. What stays put is what each
*block adds*: the response m_l - m'_{l-1}, where m' is the mean after the move (for the spread likewise). So responses
are what is remembered, and :func:`plan` walks through the layers, adding responses and deciding moves on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fozo.core.statistics import spread
from fozo.engines.base import Move, Taps

Array = npt.NDArray[np.float64]

LARGEST = np.log(2.0)
"""No move scales a feature by more than a factor of two: a channel that is dead on one side has no sensible ratio."""


@dataclass(frozen=True)
class Responses:
    """What each block adds to mean and log-variance of the patch tokens, ``[n, L, d]`` each.

    Layer 0 holds the mean and log-variance of the embedded image themselves.
    """

    mean: Array
    spread: Array


@dataclass(frozen=True)
class Target:
    """Where clean images have their patch tokens: mean and log-variance ``[L, d]``."""

    mean: Array
    spread: Array


@dataclass(frozen=True)
class Plan:
    """The moves for some images, or one for all of them: ``[1, B or 1, L, d]``, as the engine takes them."""

    scale: Array
    shift: Array

    def move(self) -> Move:
        """As the engine's knob."""
        return Move(self.scale.astype(np.float32), self.shift.astype(np.float32))


def plan(responses: Responses, target: Target, strengths: Array) -> Plan:
    """Decide the moves for images whose blocks are expected to answer with ``responses``.

    Args:
        responses: expected ones, ``[B or 1, L, d]``.
        target: where to.
        strengths: ``[B or 1, 2]``: a and b for each image or for all.
    """
    depth, dim = target.mean.shape
    scales, shifts = [], []
    mean: Array = np.zeros((len(strengths), dim))
    log_variance = mean
    a, b = strengths[:, :1], strengths[:, 1:]
    for layer in range(depth):
        mean = mean + responses.mean[:, layer]
        log_variance = log_variance + responses.spread[:, layer]
        exponent = np.clip(b * (target.spread[layer] - log_variance) / 2, -LARGEST, LARGEST)
        goal = mean + a * (target.mean[layer] - mean)
        scale = np.exp(exponent)
        scales.append(scale)
        shifts.append(goal - scale * mean)
        mean, log_variance = goal, log_variance + 2 * exponent
    return Plan(np.stack(scales, axis=1)[None], np.stack(shifts, axis=1)[None])


def observe(taps: Taps, used: Plan) -> Responses:
    """Read from a pass under the moves ``used`` what each block added: ``[B, L, d]``."""
    assert taps.patch_mean is not None and taps.patch_variance is not None
    mean = taps.patch_mean.astype(np.float64)
    log_variance = spread(taps.patch_variance)
    moved = used.scale * mean + used.shift
    moved_spread = log_variance + 2 * np.log(used.scale)
    mean[:, :, 1:] -= moved[:, :, :-1]
    log_variance[:, :, 1:] -= moved_spread[:, :, :-1]
    return Responses(mean[0], log_variance[0])
