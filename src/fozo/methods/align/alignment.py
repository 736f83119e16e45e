"""Moving tokens part of the way back to where they are on clean data, before every block, in closed form.

For layer l let m_l be the mean of the stream's patch tokens as they enter block l, and s_l the logarithm of their
variance (both per feature, averaged over images), and k_l the CLS token; m*_l, s*_l and k*_l the same on clean data.
With strengths a, b and g in [0, 1] the moves before block l are

    patches:  x  ->  e * (x - m_l) + m_l + a (m*_l - m_l),        e = exp(b (s*_l - s_l) / 2)
    CLS:      x  ->  x + g (k*_l - k_l)

A move changes what all later blocks see, so m_l and s_l under today's moves are not what they were under yesterday's,
and moving every layer by its own old deviation corrects the same error twelve times. What stays put is what each
*block adds*: the update m_l - m'_{l-1}, where m' is the mean after the move (for the others likewise). So block updates
are what is remembered, and :func:`plan` walks through the layers, adding updates and deciding moves on the way.

The CLS token is moved in the first half of the model only: there it carries the drift, later on the content, which is
nobody's to move.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fozo.core.moments import log_variance
from fozo.types import Array, Knobs, Move, Tap, Taps

MAX_LOG_SCALE = np.log(2.0)
"""No move scales a feature by more than a factor of two: a channel that is dead on one side has no sensible ratio."""


def moved_cls(depth: int) -> int:
    """How many CLS tokens are moved: those entering the second block and the ones after, to the middle of the model."""
    return depth // 2


@dataclass(frozen=True)
class TokenStatistics:
    """Statistics of an image's tokens, or targets, or what each block adds to them, or one number for each layer.

    ``mean`` and ``log_variance`` of the patch tokens entering each block are ``[..., L, d]``, ``cls`` is the CLS token
    as it leaves each of the first L // 2 blocks, ``[..., L // 2, d]``. As block updates, layer 0 of each holds the
    value itself.
    """

    mean: Array
    log_variance: Array
    cls: Array

    def each(self, function: Callable[..., Array], *others: TokenStatistics) -> TokenStatistics:
        """Apply a function to the three of them, or to those of several."""
        rows = (self, *others)
        return TokenStatistics(
            function(*(row.mean for row in rows)),
            function(*(row.log_variance for row in rows)),
            function(*(row.cls for row in rows)),
        )

    def flat(self) -> Array:
        """One vector for each image: ``[n, width]``."""
        return np.concatenate(
            [part.reshape(len(part), -1) for part in (self.mean, self.log_variance, self.cls)], axis=1
        )

    @staticmethod
    def width(depth: int, dim: int) -> int:
        """Length of a vector of :meth:`flat`."""
        return (2 * depth + moved_cls(depth)) * dim

    @classmethod
    def of_flat(cls, rows: Array, depth: int, dim: int) -> TokenStatistics:
        """Read what :meth:`flat` made."""
        layers = rows.reshape(len(rows), -1, dim)
        return cls(layers[:, :depth], layers[:, depth : 2 * depth], layers[:, 2 * depth :])

    @classmethod
    def unmoved(cls, updates: TokenStatistics) -> TokenStatistics:
        """Where tokens would be without any move, if blocks added the same ``updates`` (``[n, L, d]``) then."""
        return updates.each(lambda update: np.cumsum(update, axis=1))


def plan(updates: TokenStatistics, target: TokenStatistics, strengths: TokenStatistics) -> Knobs:
    """Decide the moves for images whose blocks are expected to add ``updates``.

    Args:
        updates: expected ones, ``[B or 1, ...]``.
        target: where clean images have their tokens, ``[B or 1, ...]``.
        strengths: a, b and g for each layer, ``[B or 1, layers, 1]``.

    Returns:
        Moves of shape ``[1, B or 1, L, d]`` in float64.
    """
    count, depth, dim = updates.mean.shape
    scale, shift, cls_shift = (np.zeros((count, depth, dim)) for _ in range(3))
    mean = log_var = cls = np.zeros((count, dim))
    for layer in range(depth):
        mean = mean + updates.mean[:, layer]
        log_var = log_var + updates.log_variance[:, layer]
        wanted = strengths.log_variance[:, layer] * (target.log_variance[:, layer] - log_var) / 2
        log_scale = np.clip(wanted, -MAX_LOG_SCALE, MAX_LOG_SCALE)
        moved = mean + strengths.mean[:, layer] * (target.mean[:, layer] - mean)
        scale[:, layer] = np.exp(log_scale)
        shift[:, layer] = moved - scale[:, layer] * mean
        mean, log_var = moved, log_var + 2 * log_scale
        if layer < moved_cls(depth):  # as it leaves this block, and enters the next
            cls = cls + updates.cls[:, layer]
            cls_shift[:, layer + 1] = strengths.cls[:, layer] * (target.cls[:, layer] - cls)
            cls = cls + cls_shift[:, layer + 1]
    return Knobs(cls=Move(np.ones((1, 1, depth, dim)), cls_shift[None]), patches=Move(scale[None], shift[None]))


def block_updates(taps: Taps, knobs: Knobs) -> TokenStatistics:
    """Read from a pass under the moves of :func:`plan` what each block added: ``[B, ...]``."""
    assert knobs.patches is not None and knobs.cls is not None  # plan always sets both
    mean = taps[Tap.PATCH_MEAN][0].astype(np.float64)
    log_var = log_variance(taps[Tap.PATCH_VARIANCE][0])
    cls = taps[Tap.CLS][0].astype(np.float64)[:, : moved_cls(mean.shape[1])]
    scale, shift, cls_shift = knobs.patches.scale[0], knobs.patches.shift[0], knobs.cls.shift[0]
    moved = scale * mean + shift
    moved_log_var = log_var + 2 * np.log(scale)
    moved_again = cls + cls_shift[:, 1 : 1 + cls.shape[1]]
    mean[:, 1:] -= moved[:, :-1]
    log_var[:, 1:] -= moved_log_var[:, :-1]
    cls[:, 1:] -= moved_again[:, :-1]
    return TokenStatistics(mean, log_var, cls)
