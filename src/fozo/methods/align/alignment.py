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

from fozo.core.moments import TINY
from fozo.types import Floats, Knobs, Move, Tap, Taps

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

    mean: Floats
    log_variance: Floats
    cls: Floats

    def each(self, function: Callable[..., Floats], *others: TokenStatistics) -> TokenStatistics:
        """Apply a function to the three of them, or to those of several."""
        rows = (self, *others)
        return TokenStatistics(
            function(*(row.mean for row in rows)),
            function(*(row.log_variance for row in rows)),
            function(*(row.cls for row in rows)),
        )

    def flat(self) -> Floats:
        """One vector for each image: ``[n, width]``."""
        return self.layers().reshape(len(self.mean), -1)

    @staticmethod
    def width(depth: int, dim: int) -> int:
        """Length of a vector of :meth:`flat`."""
        return (2 * depth + moved_cls(depth)) * dim

    @classmethod
    def of_flat(cls, rows: Floats, depth: int, dim: int) -> TokenStatistics:
        """Read what :meth:`flat` made."""
        return cls.of_layers(rows.reshape(len(rows), -1, dim), depth)

    def layers(self) -> Floats:
        """All layers of the three one after the other: ``[n, layers, d]``."""
        return np.concatenate([self.mean, self.log_variance, self.cls], axis=1)

    @classmethod
    def of_layers(cls, layers: Floats, depth: int) -> TokenStatistics:
        """Views of what :meth:`layers` made."""
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
        Moves of shape ``[1, B or 1, L, d]`` in the precision of the updates.
    """
    count, depth, dim = updates.mean.shape
    moves = np.empty((4, 1, count, depth, dim), dtype=updates.mean.dtype)
    cls_scale, cls_shift, scale, shift = moves
    cls_scale[...], cls_shift[...] = 1, 0
    mean = log_var = cls = np.zeros((count, dim), dtype=moves.dtype)
    for layer in range(depth):
        mean = mean + updates.mean[:, layer]
        moved = mean + strengths.mean[:, layer] * (target.mean[:, layer] - mean)
        log_var = log_var + updates.log_variance[:, layer]
        log_scale = strengths.log_variance[:, layer] / 2 * (target.log_variance[:, layer] - log_var)
        np.minimum(np.maximum(log_scale, -MAX_LOG_SCALE, out=log_scale), MAX_LOG_SCALE, out=log_scale)
        log_var += 2 * log_scale
        factor = np.exp(log_scale, out=log_scale)
        scale[0, :, layer] = factor
        shift[0, :, layer] = moved - factor * mean
        mean = moved
        if layer < moved_cls(depth):  # as it leaves this block, and enters the next
            cls = cls + updates.cls[:, layer]
            by = strengths.cls[:, layer] * (target.cls[:, layer] - cls)
            cls_shift[0, :, layer + 1] = by
            cls += by
    return Knobs(cls=Move(cls_scale, cls_shift), patches=Move(scale, shift))


def block_updates(taps: Taps, knobs: Knobs) -> TokenStatistics:
    """Read from a pass under the moves of :func:`plan`, or none, what each block added: ``[B, ...]``."""
    tokens, variances, leaving = (taps[tap][0] for tap in (Tap.PATCH_MEAN, Tap.PATCH_VARIANCE, Tap.CLS))
    count, depth, dim = tokens.shape
    half = moved_cls(depth)
    layers = np.empty((count, 2 * depth + half, dim), dtype=np.float32)
    found = TokenStatistics.of_layers(layers, depth)
    logs = np.log(variances + np.float32(TINY))
    moved, moved_logs, moved_cls_tokens = tokens, logs, leaving
    if knobs.patches is not None:
        scale, shift = knobs.patches.scale[0], knobs.patches.shift[0]
        moved, moved_logs = scale * tokens + shift, logs + 2 * np.log(scale)
    if knobs.cls is not None:
        moved_cls_tokens = leaving[:, :half] + knobs.cls.shift[0][:, 1 : 1 + half]
    for part, values, after in (
        (found.mean, tokens, moved),
        (found.log_variance, logs, moved_logs),
        (found.cls, leaving[:, :half], moved_cls_tokens[:, :half]),
    ):
        part[:, :1] = values[:, :1]
        np.subtract(values[:, 1:], after[:, :-1], out=part[:, 1:], casting="same_kind")
    return found


def joined(parts: list[Knobs]) -> Knobs:
    """Moves of several rows of images as one."""

    def one(moves: list[Move | None]) -> Move:
        scales, shifts = zip(*((move.scale, move.shift) for move in moves if move is not None), strict=True)
        return Move(np.concatenate(scales, axis=1), np.concatenate(shifts, axis=1))

    return Knobs(cls=one([part.cls for part in parts]), patches=one([part.patches for part in parts]))
