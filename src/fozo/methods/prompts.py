"""Where the methods that learn prompts start."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fozo.core.noise import uniform_prompts
from fozo.engines.base import Spec
from fozo.errors import FozoError


def starting_prompts(spec: Spec, count: int, seed: int, given: npt.ArrayLike | None = None) -> npt.NDArray[np.float64]:
    """Return ``count`` prompts ``[count, d]``: the user's own, or random ones within a bound.

    The bound is that of visual prompt tuning, a Xavier initialisation of the patch embedding.
    """
    if count < 1:
        raise FozoError(f"at least one prompt is needed, not {count}")
    if given is None:
        bound = math.sqrt(6 / (3 * math.prod(spec.patch_size) + spec.dim))
        return uniform_prompts(seed, count, spec.dim, bound)
    prompts = np.array(given, dtype=np.float64)
    if prompts.shape != (count, spec.dim) or not np.isfinite(prompts).all():
        raise FozoError(f"prompts must be finite and of shape {[count, spec.dim]}, not {list(prompts.shape)}")
    return prompts
