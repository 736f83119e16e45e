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

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fozo.core.blas import one_blas_thread
from fozo.core.moments import shrinkage
from fozo.core.statistics import Statistics
from fozo.core.tokens import displacement, packed, pooled_moments, transport, unpacked
from fozo.methods.align.slots import HALF_LIFE, Covariances, Slot
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
MOST_HALF = 6e4
"""Half precision holds numbers up to 65,504."""


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
    movable: npt.NDArray[np.bool_]
    """Layers that are moved, ``[layers]``."""

    def square(self, values: Array) -> Array:
        """|y|^2 of each layer."""
        return np.asarray(np.square(values / self.std).mean(axis=-1))

    def pulled(self, updates: Floats, slot: Slot, strength: float) -> tuple[Array, Array, Array]:
        """x, x' - x and |W d|^2 of each layer, from what each block adds."""
        by_content = np.einsum("k,kld->ld", slot.content, self.weights)  # W d; on this thread, as BLAS is not
        content_square = self.square(by_content)
        target = self.mean + by_content
        unmoved = np.cumsum(updates, axis=0, dtype=np.float64)
        error = CONTENT_ERROR * content_square + self.chance / slot.images
        part = strength * self.movable * shrinkage(error, self.square(unmoved - target))
        tokens = np.zeros_like(target)
        shifts = np.zeros_like(target)
        moved = np.zeros(target.shape[1:])
        for layer, update in enumerate(updates):
            tokens[layer] = moved + update
            shifts[layer] = part[layer] * (target[layer] - tokens[layer])
            moved = tokens[layer] + shifts[layer]
        return tokens, shifts, content_square


@dataclass(frozen=True)
class Moves:
    """What is done to the tokens of one domain's images."""

    patches: Array
    """v: added to the patches that enter each block, ``[L, d]``."""
    cls: Array
    """Added to the CLS token that enters each block, ``[L, d]``."""
    matrices: Floats
    """M - I of the aligned blocks, ``[A, d, d]``; of none where covariances move nothing."""


class CleanTokens:
    """What clean images say of the tokens of a model, ready to move those of a slot."""

    def __init__(self, source: Statistics, head: Affine, spec: Spec) -> None:
        regression = source.regression()
        self.spec = spec
        self.class_content = source.content.basis.vectors(head) - regression.mean
        """Content vector of each class less that of calibration, ``[classes, k]``."""

        def layers(name: str, count: int, first: int) -> Layers:
            moments = getattr(source, name)
            # A feature that is constant on clean images must not make every deviation infinite, nor must all of them.
            std = np.maximum(moments.std, max(1e-3 * moments.std.mean(), 1e-9))
            chance = regression.unexplained[name].mean(axis=1)
            weights = regression.weights[name][:, :count]
            return Layers(moments.mean[:count], std[:count], weights, chance[:count], np.arange(count) >= first)

        self.patches = layers("patch_mean", spec.depth, first=1)
        self.cls = layers("cls", spec.depth // 2 if spec.class_token else 0, first=0)
        self.aligned = np.array(spec.aligned, np.intp)
        self.moments = source.patch_moments
        self.roots = np.zeros((0, spec.dim, spec.dim))
        self.units = np.zeros((0, spec.dim), np.float32)
        if self.moments is not None:
            self.roots = self.moments.roots
            variances = np.diagonal(self.moments.covariance, axis1=1, axis2=2)
            self.units = np.sqrt(np.maximum(variances, 1e-12))
        self.squared_units = packed(self.units[:, :, None] * self.units[:, None])
        """What covariances are divided by in a slot, upper triangle."""

    def no_covariances(self) -> Covariances:
        """What is known of covariances before the first image."""
        triangles = np.zeros(self.squared_units.shape, np.float16)
        blocks = len(self.units)
        return Covariances(0.0, np.zeros(self.units.shape, np.float32), triangles, triangles, np.zeros(blocks), 0.0)

    def with_moments(self, known: Covariances, moments: Floats) -> Covariances:
        """Take in the patch moments ``[B, A, d + 1, d]`` of a group."""
        count = len(moments)
        before = known.images * 0.5 ** (count / HALF_LIFE)
        total = before + count
        (mean, covariance) = pooled_moments(moments)
        apart = (mean - known.mean).astype(np.float32)
        apart_units = apart / self.units
        new = packed(covariance.astype(np.float32)) / self.squared_units
        new += packed(apart_units[:, :, None] * apart_units[:, None]) * np.float32(before / total)
        new *= np.float32(count / total)
        new += known.second * np.float32(before / total)
        return replace(
            known,
            images=total,
            mean=known.mean + apart * np.float32(count / total),
            second=np.clip(new, -MOST_HALF, MOST_HALF).astype(np.float16),
            unmapped=known.unmapped + count,
        )

    def mapped(self, slot: Slot) -> Slot:
        """Compute the maps of a slot again, if half as many new images have come as it has."""
        known = slot.covariances
        if self.moments is None or known is None or not known.images or known.unmapped < REFRESH * known.images:
            return slot
        share = known.images / (known.images + PRIOR_IMAGES)
        seconds = unpacked(known.second * self.squared_units, self.spec.dim).astype(np.float64)
        maps = np.zeros_like(seconds)
        displacements = np.zeros_like(known.displacement)
        with one_blas_thread():
            for block, second in enumerate(seconds):
                covariance = share * second + (1 - share) * self.moments.covariance[block]
                to_clean = transport(self.roots[block], covariance)
                displacements[block] = displacement(to_clean, covariance)
                maps[block] = to_clean - np.eye(len(to_clean))
        moves = packed(maps).astype(np.float16)
        return replace(slot, covariances=replace(known, transport=moves, displacement=displacements, unmapped=0.0))

    def moves(self, slot: Slot, mean_strength: float, cls_strength: float, covariance_strength: float) -> Moves | None:
        """Decide the moves of a slot's images."""
        if not slot.images:
            return None
        (tokens, patches, content_square) = self.patches.pulled(slot.mean_update, slot, mean_strength)
        (_, cls_shifts, _) = self.cls.pulled(slot.cls_update, slot, cls_strength)
        cls = np.zeros_like(patches)
        cls[1 : 1 + len(cls_shifts)] = cls_shifts  # what leaves a block moved enters the next one
        part = covariance_strength * self.matrix_belief(slot, content_square)
        if slot.covariances is None or not part.any():
            return Moves(patches, cls, np.zeros((0, *self.roots.shape[1:])))
        matrices = unpacked(slot.covariances.transport, self.spec.dim) * part.astype(np.float32)[:, None, None]
        patches[self.aligned] -= np.einsum("ad,ade->ae", tokens[self.aligned], matrices)
        return Moves(patches, cls, matrices)

    def matrix_belief(self, slot: Slot, content_square: Array) -> Array:
        """(1 - U / D)+ of every aligned block; of none where no covariances are known."""
        known = slot.covariances
        if self.moments is None or known is None or not known.images:
            return np.zeros(0)
        content = content_square[self.aligned] - (1 - self.patches.chance[self.aligned]) / slot.images
        chance = self.moments.displacement * known.images / (known.images + PRIOR_IMAGES) ** 2
        error = chance + CONTENT_DISPLACEMENT * np.maximum(content, 0)
        return shrinkage(error, known.displacement)

    def knobs(self, moves: Sequence[Moves | None], owners: npt.NDArray[np.intp]) -> Knobs:
        """Put together the moves of several domains, of which ``owners`` has each image's, ``[B]`` or one for all."""
        shape = (len(moves), self.spec.depth, self.spec.dim)
        patches = np.zeros(shape, np.float32)
        cls = np.zeros(shape, np.float32)
        matrices = np.zeros((len(moves), len(self.aligned), self.spec.dim, self.spec.dim), np.float32)
        for index, domain_moves in enumerate(moves):
            if domain_moves is not None:
                patches[index] = domain_moves.patches
                cls[index] = domain_moves.cls
                matrices[index, : len(domain_moves.matrices)] = domain_moves.matrices
        if not (patches.any() or cls.any()):
            return NO_KNOBS
        still = np.ones((1, 1, *shape[1:]), np.float32)
        knobs = Knobs(cls=Move(still, cls[None, owners]), patches=Move(still, patches[None, owners]))
        if not matrices.any():
            return knobs
        diagonal = np.arange(self.spec.dim)
        matrices[:, :, diagonal, diagonal] += 1
        return replace(knobs, matrices=matrices[None, owners])

    def added(self, moves: Moves | None, means: Array, cls: Array) -> tuple[Array, Array]:
        """What blocks added to a group: its means entering each block, and its CLS leaving each, less what entered."""
        entered = means.copy()
        cls_entered = cls[: len(self.cls.mean)].copy()
        if moves is not None:
            if len(moves.matrices):
                entered[self.aligned] += np.einsum("ad,ade->ae", means[self.aligned], moves.matrices)
            entered += moves.patches
            cls_entered[:-1] += moves.cls[1 : len(cls_entered)]
        mean_update = means.copy()
        mean_update[1:] -= entered[:-1]
        cls_update = cls[: len(cls_entered)].copy()
        cls_update[1:] -= cls_entered[:-1]
        return mean_update, cls_update

    def plausible(self, means: Floats) -> npt.NDArray[np.bool_]:
        """Say of each image whether its tokens can be those of a picture: ``[B]``."""
        with np.errstate(over="ignore", invalid="ignore"):
            deviation = np.abs((means - self.patches.mean) / self.patches.std).mean(axis=(1, 2))
        plausible: npt.NDArray[np.bool_] = deviation <= PLAUSIBLE  # False for NaN
        return plausible
