"""Aligning: how patch and CLS tokens of a domain are moved towards those of clean images of the same content.

Calibration knows the average clean image y*, and how images of other content differ from it
(:mod:`fozo.core.content`): with d the domain's content, its tokens are expected at t = y* + W d, with an error as large
as W d. Squares |y|^2 are means over features in units of the deviations of clean images; of a squared deviation D whose
expected error is U, the part (1 - U / D)+ is believed (James and Stein, 1961).

**Means.** A move changes what later blocks see; what hardly changes is what each block *adds*. So additions a_l are
remembered, and moves are decided on the way through the blocks:

    t_l  = mu*_l + W_l d
    m_l  = a_0 + ... + a_l                                     the mean without moves
    b_l  = (1 - U / D)+,    U = 0.4 |W_l d|^2 + u_l / n,       D = |m_l - t_l|^2
    x_l  = a_l + x'_(l-1),  x'_l = x_l + 0.15 b_l (t_l - x_l), x'_0 = x_0

and likewise for CLS, by 0.3, as it leaves the blocks of the first half: later it encodes content.

**Covariances**, of the blocks in the first half (:mod:`fozo.core.tokens` has T and D):

    S_l <- (n S_l + 16 S*_l) / (n + 16)                        a few images know little of a covariance
    U_l  = c_l n / (n + 16)^2 + 1.5 (|W_l d|^2 - (1 - u_l) / n)+
    M_l  = I + 0.3 (1 - U_l / D_l)+ (T_l - I)

c_l is what chance displaces one clean image by, and narrow clean content displaces covariances in proportion to
|W d|^2. Patches entering block l become x M_l + v_l, with v_l = x'_l - x_l M_l, about the domain's mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fozo.core.descriptor import Single
from fozo.core.moments import shrinkage
from fozo.core.statistics import Statistics
from fozo.core.tokens import displacement, pooled_moments, transport
from fozo.methods.align.slots import HALF_LIFE, Covariances, Half, Slot
from fozo.types import NO_KNOBS, Affine, Array, Floats, Knobs, Move, Spec

CONTENT_ERROR = 0.4
"""Squared error of targets, in units of |W d|^2."""
CONTENT_DISPLACEMENT = 1.5
"""Displacement of a covariance by content, in units of |W d|^2; on clean narrow groups it is 0.2 to 0.3."""
PRIOR_IMAGES = 16.0
"""Clean images that a covariance starts from."""
REFRESH = 0.5
"""Maps are computed again after this part of n new images."""
PLAUSIBLE = 1e4
"""Clean standard deviations that tokens may be away from their average: a black, white or checkered image, or pure
noise, is below a hundred."""


@dataclass(frozen=True)
class Layers:
    """One kind of statistic on clean images: of patch means, or of CLS tokens."""

    mean: Array
    """mu*, ``[layers, d]``."""
    std: Array
    weights: Array
    """W, ``[k, layers, d]``."""
    chance: Array
    """u: the part of one image's variance that its content leaves unexplained, ``[layers]``."""

    def target(self, content: Array) -> tuple[Array, Array]:
        """t and |W d|^2 of each layer."""
        shift = np.einsum("k,kld->ld", content, self.weights)  # on this thread, as BLAS is not
        return self.mean + shift, self.square(shift)

    def square(self, values: Array) -> Array:
        """|y|^2 of each layer."""
        return np.asarray(np.square(values / self.std).mean(axis=-1))

    def belief(self, values: Array, target: Array, content_square: Array, images: float) -> Array:
        """b of each layer."""
        error = CONTENT_ERROR * content_square + self.chance / images
        return shrinkage(error, self.square(values - target))


class CleanTokens:
    """What clean images say of the tokens of a model, ready to move those of a slot."""

    def __init__(self, source: Statistics, head: Affine, spec: Spec) -> None:
        regression = source.regression()
        self.spec = spec
        self.class_content = source.content.basis.vectors(head) - regression.mean
        """Content vector of each class less that of calibration, ``[classes, k]``."""

        def layers(name: str, count: int) -> Layers:
            moments = getattr(source, name)
            # A feature that is constant on clean images must not make every deviation infinite, nor must all of them.
            std = np.maximum(moments.std, max(1e-3 * moments.std.mean(), 1e-9))
            chance = regression.unexplained[name].mean(axis=1)
            return Layers(moments.mean[:count], std[:count], regression.weights[name][:, :count], chance[:count])

        self.patches = layers("patch_mean", spec.depth)
        self.cls = layers("cls", spec.depth // 2 if spec.class_token else 0)
        self.moments = source.patch_moments
        width = spec.dim
        self.triangle = np.triu_indices(width)
        self.roots = np.zeros((0, width, width))
        self.units = np.zeros((0, width))
        if self.moments is not None:
            self.roots = self.moments.roots
            variances = np.diagonal(self.moments.covariance, axis1=1, axis2=2).astype(np.float64)
            self.units = np.sqrt(np.maximum(variances, 1e-12))

    def packed(self, matrix: Array, block: int) -> Half:
        """The upper triangle of a symmetric matrix in units of clean deviations."""
        scaled = matrix / np.outer(self.units[block], self.units[block])
        return np.clip(scaled[self.triangle], -6e4, 6e4).astype(np.float16)

    def unpacked(self, packed: Half, block: int) -> Array:
        return self._symmetric(packed) * np.outer(self.units[block], self.units[block])

    def _symmetric(self, packed: Half) -> Array:
        matrix = np.zeros((self.spec.dim, self.spec.dim))
        matrix[self.triangle] = packed
        matrix.T[self.triangle] = packed
        return matrix

    def mapped(self, slot: Slot) -> Slot:
        """Compute the maps of a slot again, if half as many new images have come as it has."""
        known = slot.covariances
        if self.moments is None or known is None or not known.images or known.unmapped < REFRESH * known.images:
            return slot
        weight = known.images / (known.images + PRIOR_IMAGES)
        maps = np.zeros_like(known.transport)
        displacements = np.zeros_like(known.displacement)
        for block, root in enumerate(self.roots):
            clean = self.moments.covariance[block].astype(np.float64)
            covariance = weight * self.unpacked(known.second[block], block) + (1 - weight) * clean
            to_clean = transport(root, covariance)
            displacements[block] = displacement(to_clean, covariance)
            maps[block] = (to_clean - np.eye(len(root)))[self.triangle].astype(np.float16)
        mapped = replace(known, transport=maps, displacement=displacements, unmapped=0.0)
        return replace(slot, covariances=mapped)

    def knobs(self, slot: Slot, mean_strength: float, cls_strength: float, covariance_strength: float) -> Knobs:
        """Decide the moves of a slot's images."""
        if not slot.images:
            return NO_KNOBS
        depth = self.spec.depth
        aligned = self.spec.aligned
        target, content_square = self.patches.target(slot.content)
        unmoved = np.cumsum(slot.mean_update, axis=0, dtype=np.float64)
        belief = mean_strength * self.patches.belief(unmoved, target, content_square, slot.images)
        matrix_belief = covariance_strength * self._matrix_belief(slot, content_square)

        transports = slot.covariances.transport if slot.covariances is not None else ()
        shift = np.zeros((depth, self.spec.dim))
        matrices = np.zeros((len(aligned), self.spec.dim, self.spec.dim), np.float32)
        mean = np.zeros(self.spec.dim)
        for layer in range(depth):
            mean = mean + slot.mean_update[layer]  # x
            moved = mean if layer == 0 else mean + belief[layer] * (target[layer] - mean)  # x'
            shift[layer] = moved - mean
            block = layer - aligned.start
            if 0 <= block < len(matrix_belief) and matrix_belief[block]:
                partial = matrix_belief[block] * self._symmetric(transports[block])
                matrices[block] = partial
                shift[layer] -= mean @ partial
            mean = moved
        return self._as_knobs(shift, self._cls_shift(slot, cls_strength), matrices)

    def _matrix_belief(self, slot: Slot, content_square: Array) -> Array:
        """(1 - U / D)+ of every aligned block; nothing where no covariances are known."""
        known = slot.covariances
        if self.moments is None or known is None or not known.images:
            return np.zeros(0)
        aligned = np.array(self.spec.aligned)
        content = content_square[aligned] - (1 - self.patches.chance[aligned]) / slot.images
        chance = self.moments.displacement * known.images / (known.images + PRIOR_IMAGES) ** 2
        error = chance + CONTENT_DISPLACEMENT * np.maximum(content, 0)
        return shrinkage(error, known.displacement)

    def _cls_shift(self, slot: Slot, strength: float) -> Array:
        """Moves of CLS as it enters each block: what leaves one of the first half enters the next moved."""
        shift = np.zeros((self.spec.depth, self.spec.dim))
        half = len(self.cls.mean)
        target, content_square = self.cls.target(slot.content)
        unmoved = np.cumsum(slot.cls_update, axis=0, dtype=np.float64)
        belief = strength * self.cls.belief(unmoved, target, content_square, slot.images)
        token = np.zeros(self.spec.dim)
        for layer in range(min(half, self.spec.depth - 1)):
            token = token + slot.cls_update[layer]
            shift[layer + 1] = belief[layer] * (target[layer] - token)
            token = token + shift[layer + 1]
        return shift

    def _as_knobs(self, shift: Array, cls_shift: Array, matrices: Single) -> Knobs:
        if not (shift.any() or cls_shift.any()):
            return NO_KNOBS
        still = np.ones((1, 1, *shift.shape), np.float32)
        patches = Move(still, shift[None, None].astype(np.float32))
        cls = Move(still, cls_shift[None, None].astype(np.float32))
        if not matrices.any():
            return Knobs(cls=cls, patches=patches)
        matrices += np.eye(self.spec.dim, dtype=np.float32)
        return Knobs(cls=cls, patches=patches, matrices=matrices[None, None])

    def plausible(self, means: Floats) -> npt.NDArray[np.bool_]:
        """Say of each image whether its tokens can be those of a picture: ``[B]``."""
        with np.errstate(over="ignore", invalid="ignore"):
            deviation = np.abs((means - self.patches.mean) / self.patches.std).mean(axis=(1, 2))
        plausible: npt.NDArray[np.bool_] = deviation <= PLAUSIBLE  # False for NaN
        return plausible

    def added(self, knobs: Knobs, means: Array, cls: Array) -> tuple[Array, Array]:
        """What blocks added to a group: its means entering each block, and its CLS leaving each, less what entered."""
        half = len(self.cls.mean)
        mean_update = means.copy()
        cls_update = cls[:half].copy()
        entered = means[:-1]
        cls_entered = cls[: half - 1] if half else cls[:0]
        if knobs.matrices is not None:
            entered = entered.copy()
            for block, layer in enumerate(self.spec.aligned):
                if layer < len(entered):
                    entered[layer] = entered[layer] @ knobs.matrices[0, 0, block]
        if knobs.patches is not None and knobs.cls is not None:
            entered = entered + knobs.patches.shift[0, 0, :-1]
            cls_entered = cls_entered + knobs.cls.shift[0, 0, 1 : len(cls_entered) + 1]
        mean_update[1:] -= entered
        cls_update[1:] -= cls_entered
        return mean_update, cls_update

    def no_covariances(self) -> Covariances:
        """What is known of covariances before the first image."""
        aligned, width = self.units.shape
        triangles = np.zeros((aligned, width * (width + 1) // 2), np.float16)
        return Covariances(0.0, np.zeros((aligned, width), np.float32), triangles, triangles, np.zeros(aligned), 0.0)

    def with_moments(self, known: Covariances, moments: Floats) -> Covariances:
        """Take in the patch moments ``[B, A, d + 1, d]`` of a group."""
        count = len(moments)
        before = known.images * 0.5 ** (count / HALF_LIFE)
        total = before + count
        mean, covariance = pooled_moments(moments)
        apart = mean - known.mean
        second = np.empty_like(known.second)
        for block in range(len(second)):
            old = self.unpacked(known.second[block], block)
            between = np.outer(apart[block], apart[block]) * (before * count / total**2)
            second[block] = self.packed((before * old + count * covariance[block]) / total + between, block)
        return replace(
            known,
            images=total,
            mean=(known.mean + apart * (count / total)).astype(np.float32),
            second=second,
            unmapped=known.unmapped + count,
        )
