"""Moves: shift and scale tokens before every block, part of the way back to where they are on clean images.

For layer l let m_l be the mean of the stream's patch tokens as they enter block l, and s_l the logarithm of their
variance (both per feature, averaged over images), and k_l the CLS token; m*_l, s*_l and k*_l the same on clean data.
With strengths a, b and g in [0, 1] the moves before block l are

    patches:  x  ->  e * (x - m_l) + m_l + a (m*_l - m_l),        e = exp(b (s*_l - s_l) / 2)
    CLS:      x  ->  x + g (k*_l - k_l)

A move changes what all later blocks see, so m_l and s_l under today's moves are not what they were under yesterday's,
and moving every layer by its own old deviation corrects the same error twelve times. What hardly changes is what each
*block adds*: the update m_l - m'_{l-1}, where m' is the mean after the move (for the others likewise). So block updates
are remembered, and :func:`plan` walks through the layers, adding updates and deciding moves on the way.

The CLS token is moved in the first half of the model only, where it carries the drift. In later layers CLS encodes
content, so it is left unchanged.

All such statistics, targets and updates of an image are one array ``[layers, d]``: the means of the patch tokens
entering each of the L blocks, their log variances, and the CLS token leaving each of the first L // 2 blocks
(:func:`split`). As block updates, the first layer of each holds the value itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fozo.core.moments import TINY
from fozo.types import Floats, Knobs, Move, Tap, Taps

if TYPE_CHECKING:
    from fozo.methods.align.targets import Targets

Single = npt.NDArray[np.float32]
MAX_LOG_SCALE = np.log(2.0)
"""No move scales a feature by more than a factor of two: a channel that is dead on one side has no sensible ratio."""


def layer_counts(depth: int) -> tuple[int, int, int]:
    """Layers of means, of log variances and of CLS tokens in a model of ``depth`` blocks."""
    return depth, depth, depth // 2


def split(layers: Floats, depth: int) -> tuple[Floats, Floats, Floats]:
    """Views of the means, log variances and CLS tokens in ``[n, layers, d]``."""
    return layers[:, :depth], layers[:, depth : 2 * depth], layers[:, 2 * depth :]


def unmoved(updates: Floats, depth: int) -> Floats:
    """Where tokens would be without any move, if blocks added the same ``updates`` (``[n, layers, d]``) then."""
    sums = np.empty_like(updates)
    for part, summed in zip(split(updates, depth), split(sums, depth), strict=True):
        np.cumsum(part, axis=1, out=summed)
    return sums


def plan(updates: Floats, target: Floats, strengths: Floats, depth: int) -> Knobs:
    """Decide the moves for images whose blocks are expected to add ``updates``.

    Args:
        updates: expected ones, ``[B or 1, layers, d]``.
        target: where clean images have their tokens, ``[B or 1, layers, d]``.
        strengths: a, b and g for each layer, ``[B or 1, layers, 1]``.
        depth: blocks of the model.

    Returns:
        Moves of shape ``[1, B or 1, L, d]`` in the precision of the updates.
    """
    mean_updates, log_updates, cls_updates = split(updates, depth)
    mean_target, log_target, cls_target = split(target, depth)
    mean_strength, log_strength, cls_strength = split(strengths, depth)
    count, _, dim = updates.shape
    moves = np.empty((4, 1, count, depth, dim), dtype=updates.dtype)
    cls_scale, cls_shift, scale, shift = moves
    cls_scale[...], cls_shift[...] = 1, 0
    mean = log_var = cls = np.zeros((count, dim), dtype=moves.dtype)
    for layer in range(depth):
        mean = mean + mean_updates[:, layer]
        moved = mean + mean_strength[:, layer] * (mean_target[:, layer] - mean)
        log_var = log_var + log_updates[:, layer]
        log_scale = log_strength[:, layer] / 2 * (log_target[:, layer] - log_var)
        np.minimum(np.maximum(log_scale, -MAX_LOG_SCALE, out=log_scale), MAX_LOG_SCALE, out=log_scale)
        log_var += 2 * log_scale
        factor = np.exp(log_scale, out=log_scale)
        scale[0, :, layer] = factor
        shift[0, :, layer] = moved - factor * mean
        mean = moved
        if layer < cls_updates.shape[1]:  # as it leaves this block, and enters the next
            cls = cls + cls_updates[:, layer]
            by = cls_strength[:, layer] * (cls_target[:, layer] - cls)
            cls_shift[0, :, layer + 1] = by
            cls += by
    return Knobs(cls=Move(cls_scale, cls_shift), patches=Move(scale, shift))


class BlockUpdates:
    """Reads from passes under the moves of :func:`plan`, or none, what each block added.

    A move makes a x + b of a statistic x; a is 1 but for the means. So the block behind it added x_l - a x_{l-1} - b,
    where x_l is what the next one reads. What does not depend on the pass is computed once, here.
    """

    def __init__(self, knobs: Knobs, clean: Targets) -> None:
        """Updates are read in units of clean images', about their average."""
        unit, depth = clean.unit, clean.depth
        rows = 1 if knobs.patches is None else knobs.patches.scale.shape[1]
        factors = np.ones((rows, *unit.shape[1:]), dtype=np.float32)
        shifts = np.zeros_like(factors)
        if knobs.patches is not None and knobs.cls is not None:
            mean_shift, log_shift, cls_shift = split(shifts, depth)
            scale = knobs.patches.scale[0, :, :-1]
            factors[:, 1:depth] = scale
            mean_shift[:, 1:] = knobs.patches.shift[0, :, :-1]
            log_shift[:, 1:] = 2 * np.log(scale)
            cls_shift[:, 1:] = knobs.cls.shift[0, :, 1 : depth // 2]
        factors[:, [0, depth, 2 * depth][: 2 + (depth > 1)]] = 0  # nothing was before the first layer of each
        self.depth = depth
        self._per_unit = (1 / unit).astype(np.float32)
        self._offset = (shifts + clean.centre) * self._per_unit
        self._factor = factors[:, 1:] * self._per_unit[:, 1:]

    def __call__(self, taps: Taps) -> Single:
        """Read a pass: ``[B, layers, d]``."""
        tokens = taps[Tap.PATCH_MEAN][0]
        layers = np.empty((len(tokens), *self._offset.shape[1:]), dtype=np.float32)
        mean, log_variance, cls = split(layers, self.depth)
        mean[...] = tokens
        np.add(taps[Tap.PATCH_VARIANCE][0], TINY, out=log_variance, casting="same_kind")
        np.log(log_variance, out=log_variance)
        cls[...] = taps[Tap.CLS][0][:, : self.depth // 2]
        updates = layers * self._per_unit
        updates -= self._offset
        updates[:, 1:] -= self._factor * layers[:, :-1]
        return updates
