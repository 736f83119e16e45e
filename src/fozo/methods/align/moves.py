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

import numpy as np
import numpy.typing as npt

from fozo.core.moments import TINY, shrinkage
from fozo.core.statistics import SourceStatistics
from fozo.types import Affine, Array, Floats, Knobs, Move, Tap, Taps

Single = npt.NDArray[np.float32]
MAX_LOG_SCALE = np.log(2.0)
"""No move scales a feature by more than a factor of two: a channel that is dead on one side has no sensible ratio."""
NAMES = ("patch_mean", "patch_log_variance", "cls")
PLAUSIBLE = 1e4
"""Clean standard deviations that block updates may be away from their average: a black, white or checkered image, or
pure noise, is below a hundred."""


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


class Targets:
    """Where tokens of clean images of *this content* are, and how much of a deviation from there is drift.

    Calibration knows the average clean image y*, and how clean images of other content differ from it
    (:mod:`fozo.core.content`): with d the average content of the domain's images less that of calibration, their
    tokens are expected at

        target = y* + W d

    The regression is not exact for narrow content: in each layer, a squared error of ``content_error`` times the
    squared correction W d itself is expected. And n images differ from their average by chance, by a squared error
    of u / n, where u is the part of one image's variance that its content does not explain. So of a mean squared
    deviation D in a layer, in units of the variance over clean images, with an expected squared error of

        U = content_error |W d|^2 + u / n

    the part max(0, 1 - U / D) is believed: James and Stein's estimate. Few images make U large by chance alone, so
    nothing else has to hold back the first moves of a domain; clean images of narrow content deviate by U, and are
    left alone.
    """

    def __init__(
        self, source: SourceStatistics, head: Affine, depth: int, content: float, content_error: float
    ) -> None:
        """``content``: part of the correction for content that is made; ``content_error``: error expected of it."""
        self.depth, self.content, self.content_error = depth, content, content_error
        regression, counts = source.regression(), layer_counts(depth)
        self.offsets = source.content.basis.vectors(head) - regression.mean
        """Content vector of each class less that of calibration, ``[classes, k]``."""
        average, scale, weights, chance, centre = ([] for _ in range(5))
        for name, count in zip(NAMES, counts, strict=True):
            part = getattr(source, name)
            average.append(part.mean[:count])
            centre.append(np.diff(part.mean[:count], axis=0, prepend=0.0))
            # A feature that is constant on clean images must not make every deviation infinite, nor must all of them.
            scale.append(np.maximum(part.std, max(1e-3 * part.std.mean(), 1e-9))[:count])
            weights.append(regression.weights[name][:, :count])
            chance.append(regression.unexplained[name][:count].mean(axis=1, keepdims=True))
        self.average, self.scale, self.chance = (np.concatenate(each)[None] for each in (average, scale, chance))
        """Of clean images, ``[1, layers, d]``, and u, ``[1, layers, 1]``."""
        self.weights = np.concatenate(weights, axis=1)
        """W, ``[k, layers, d]``."""
        self.centre: Single = np.concatenate(centre)[None].astype(np.float32)
        """Average block updates of clean images, ``[1, layers, d]``."""
        self.unit: Single = self.scale.astype(np.float32)
        self._balance = (1 / np.repeat(np.maximum(counts, 1), counts)).astype(np.float32)

    def plausible(self, vectors: Single) -> npt.NDArray[np.bool_]:
        """Say of each image whether its standardised block updates can be those of a picture: ``[B]``."""
        if vectors.min() >= -PLAUSIBLE / 2 and vectors.max() <= PLAUSIBLE / 2:  # then their mean square is as well
            return np.ones(len(vectors), dtype=np.bool_)
        with np.errstate(over="ignore", invalid="ignore"):
            layers = np.einsum("nld,nld->nl", vectors, vectors) / np.float32(vectors.shape[2])
            squares = np.einsum("nl,l->n", layers, self._balance)
        within: npt.NDArray[np.bool_] = squares <= PLAUSIBLE**2  # False for NaN
        return within

    def find(self, vectors: Single, contents: Single, images: Array) -> tuple[Single, Array, Array]:
        """Return expected block updates and targets ``[n, layers, d]`` for domains, and how far each layer's deviation
        is believed ``[n, layers, 1]``.

        Args:
            vectors: what blocks add to images of the domains on average, standardised, ``[n, layers, d]``.
            contents: average content of these images less that of calibration, ``[n, k]``.
            images: how many images these averages rest on, ``[n]``.
        """
        updates = vectors[:, :, : self.unit.shape[2]] * self.unit + self.centre
        offsets = self.content * contents.astype(np.float64)
        target = np.einsum("nk,kld->nld", offsets, self.weights)  # on this thread, as BLAS is not
        chance = self.chance / np.maximum(images, 1e-50)[:, None, None]
        error = self.content_error * self._mean_square(target) + chance  # U
        target += self.average
        deviation = self._mean_square(unmoved(updates, self.depth) - target)  # D
        return updates, target, shrinkage(error, deviation)

    def _mean_square(self, values: Array) -> Array:
        """Of each layer, in units of the variance over clean images: ``[n, layers, 1]``."""
        ratio = values / self.scale
        squares: Array = np.einsum("nld,nld->nl", ratio, ratio)[:, :, None] / values.shape[2]
        return squares


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
