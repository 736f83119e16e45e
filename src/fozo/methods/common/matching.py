"""What FOA, ZOA and FOZO share: the first prompts, and the activation shift."""

import math

import numpy as np
import numpy.typing as npt

from fozo.core.moments import MovingAverage
from fozo.core.noise import starting_prompts
from fozo.errors import FozoError, check_counts
from fozo.types import Array, Floats, Spec

SHIFT_DECAY = 0.9  # weight of the past in the moving average of what the head reads


def shifted(pooled: Floats, source_mean: Array, shift: MovingAverage) -> Floats:
    """Move what the head reads ``[..., h]`` towards the source, once a batch has been seen."""
    if not shift.count:
        return pooled
    return (pooled + (source_mean - shift.average)).astype(pooled.dtype)


def first_prompts(spec: Spec, count: int, seed: int, start: npt.ArrayLike | None = None) -> Array:
    """Return ``count`` prompts ``[count, d]`` to start from: the user's own, or random ones."""
    check_counts(prompts=count)
    if start is None:
        return starting_prompts(seed, count, spec.dim, math.prod(spec.patch_size))
    prompts = np.array(start, dtype=np.float64)
    if prompts.shape != (count, spec.dim) or not np.isfinite(prompts).all():
        raise FozoError(f"prompts must be finite and of shape {[count, spec.dim]}, not {list(prompts.shape)}")
    return prompts
