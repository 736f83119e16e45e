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
import numpy.typing as npt

from fozo.core.moments import TINY
from fozo.types import Floats, Knobs, Move, Tap, Taps

Single = npt.NDArray[np.float32]

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


class BlockUpdates:
    """Reads from passes under the moves of :func:`plan`, or none, what each block added.

    A move makes a x + b of a statistic x; a is 1 but for the means. So the block behind it added x_l - a x_{l-1} - b,
    where x_l is what the next one reads. All that does not depend on the pass is computed once, here.
    """

    def __init__(self, knobs: Knobs, centre: Floats, unit: Floats, depth: int) -> None:
        """Updates are told in ``unit`` about ``centre``, both ``[1, layers, d]``."""
        rows = 1 if knobs.patches is None else knobs.patches.scale.shape[1]
        self.depth, self.half = depth, moved_cls(depth)
        factors = np.ones((rows, *unit.shape[1:]), dtype=np.float32)
        shifts = np.zeros_like(factors)
        factor, shift = (TokenStatistics.of_layers(part, depth) for part in (factors, shifts))
        if knobs.patches is not None:
            scale = knobs.patches.scale[0, :, :-1]
            factor.mean[:, 1:], shift.mean[:, 1:] = scale, knobs.patches.shift[0, :, :-1]
            shift.log_variance[:, 1:] = 2 * np.log(scale)
        if knobs.cls is not None:
            shift.cls[:, 1:] = knobs.cls.shift[0, :, 1 : self.half]
        for first in (factor.mean, factor.log_variance, factor.cls):
            first[:, :1] = 0  # nothing was before it
        self._per_unit = (1 / unit).astype(np.float32)
        self._offset = (shifts + centre) * self._per_unit
        self._factor = factors[:, 1:] * self._per_unit[:, 1:]

    def __call__(self, taps: Taps) -> Single:
        """Read a pass: ``[B, layers, d]``."""
        tokens, variances, leaving = (taps[tap][0] for tap in (Tap.PATCH_MEAN, Tap.PATCH_VARIANCE, Tap.CLS))
        layers = np.empty((len(tokens), *self._offset.shape[1:]), dtype=np.float32)
        entering = TokenStatistics.of_layers(layers, self.depth)
        entering.mean[...] = tokens
        np.add(variances, TINY, out=entering.log_variance, casting="same_kind")
        np.log(entering.log_variance, out=entering.log_variance)
        entering.cls[...] = leaving[:, : self.half]
        found = layers * self._per_unit
        found -= self._offset
        found[:, 1:] -= self._factor * layers[:, :-1]
        return found


def joined(parts: list[Knobs]) -> Knobs:
    """Moves of several rows of images as one."""

    def one(moves: list[Move | None]) -> Move:
        scales, shifts = zip(*((move.scale, move.shift) for move in moves if move is not None), strict=True)
        return Move(np.concatenate(scales, axis=1), np.concatenate(shifts, axis=1))

    return Knobs(cls=one([part.cls for part in parts]), patches=one([part.patches for part in parts]))
