"""Moving patch tokens part of the way back to where they are on clean data, before every block, in closed form.

For layer l let m_l be the mean of the stream's patch tokens as they enter block l, and s_l the logarithm of their
variance (both per feature, averaged over images); m*_l and s*_l the same on clean data. With strengths a (mean) and
b (standard deviation) in [0, 1] the move before block l is

    x  ->  e * (x - m_l) + m_l + a (m*_l - m_l),        e = exp(b (s*_l - s_l) / 2)

A move changes what all later blocks see, so m_l and s_l under today's moves are not what they were under yesterday's,
and moving every layer by its own old deviation corrects the same error twelve times. What stays put is what each
*block adds*: the update m_l - m'_{l-1}, where m' is the mean after the move (for the log-variance likewise). So block
updates are what is remembered, and :func:`plan` walks through the layers, adding updates and deciding moves on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fozo.core.moments import log_variance
from fozo.types import Array, Move, Tap, Taps

MAX_LOG_SCALE = np.log(2.0)
"""No move scales a feature by more than a factor of two: a channel that is dead on one side has no sensible ratio."""


@dataclass(frozen=True)
class PatchStatistics:
    """Mean and log-variance of patch tokens, ``[..., L, d]`` each: a target, or what each block adds to them.

    As block updates, layer 0 holds the mean and log-variance of the embedded image themselves.
    """

    mean: Array
    log_variance: Array


def plan(updates: PatchStatistics, target: PatchStatistics, strengths: Array) -> Move:
    """Decide the moves for images whose blocks are expected to add ``updates``.

    Args:
        updates: expected ones, ``[B or 1, L, d]``.
        target: where clean images have their patch tokens, ``[L, d]``.
        strengths: ``[B or 1, 2]``: a and b for each image or for all.

    Returns:
        A move of shape ``[1, B or 1, L, d]`` in float64.
    """
    depth, dim = target.mean.shape
    scales, shifts = [], []
    mean: Array = np.zeros((len(strengths), dim))
    log_var = mean
    a, b = strengths[:, :1], strengths[:, 1:]
    for layer in range(depth):
        mean = mean + updates.mean[:, layer]
        log_var = log_var + updates.log_variance[:, layer]
        log_scale = np.clip(b * (target.log_variance[layer] - log_var) / 2, -MAX_LOG_SCALE, MAX_LOG_SCALE)
        moved = mean + a * (target.mean[layer] - mean)
        scale = np.exp(log_scale)
        scales.append(scale)
        shifts.append(moved - scale * mean)
        mean, log_var = moved, log_var + 2 * log_scale
    return Move(np.stack(scales, axis=1)[None], np.stack(shifts, axis=1)[None])


def block_updates(taps: Taps, move: Move) -> PatchStatistics:
    """Read from a pass under a move what each block added: ``[B, L, d]``."""
    mean = taps[Tap.PATCH_MEAN].astype(np.float64)
    log_var = log_variance(taps[Tap.PATCH_VARIANCE])
    moved = move.scale * mean + move.shift
    moved_log_var = log_var + 2 * np.log(move.scale)
    mean[:, :, 1:] -= moved[:, :, :-1]
    log_var[:, :, 1:] -= moved_log_var[:, :, :-1]
    return PatchStatistics(mean[0], log_var[0])
