"""What FOA, ZOA and FOZO share: statistics of a batch's features against the source's, and the activation shift."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fozo.core.moments import Moments, Window
from fozo.core.noise import starting_prompts
from fozo.errors import FozoError, check_counts
from fozo.methods.base import Method
from fozo.methods.common.stateful import C
from fozo.types import Array, Batch, Floats, Knobs, Spec, State, Tap


class MovingAverage:
    """An exponential moving average of arrays, in which the past has the weight ``decay``.

    Its state is one variable called ``name``, without a row before the first array and with one after it.
    """

    def __init__(self, name: str, shape: tuple[int, ...], decay: float) -> None:
        self.name, self.shape, self.decay = name, shape, decay
        self.average: Array | None = None

    def update(self, new: Array) -> None:
        self.average = new if self.average is None else self.decay * self.average + (1 - self.decay) * new

    def state(self) -> State:
        return {self.name: np.empty((0, *self.shape)) if self.average is None else self.average[None]}

    def load_state(self, state: State) -> None:
        rows = state[self.name].astype(np.float64)
        if len(rows) > 1:
            raise FozoError(f"the state's {self.name!r} is {len(rows)} averages, not one; save the state again")
        self.average = rows[0] if len(rows) else None


class ActivationShift(MovingAverage):
    """A moving average of the stream's mean head input ``[width]``, and the vector from it to the source mean.

    ``scale`` multiplies what enters the average. FOA uses 1. FOZO's program adds up the means of its + and -
    passes instead of averaging them, which is a ``scale`` of 2 and shifts by about mu_S - 2 mu_T.
    """

    def __init__(self, width: int, scale: float) -> None:
        super().__init__("shift", (width,), decay=0.9)
        self.scale = scale

    def vector(self, source_mean: Array) -> Array | None:
        """Return the shift to add to this batch, or ``None`` before the first batch has been seen."""
        return None if self.average is None else source_mean - self.average

    def observe(self, mean: npt.ArrayLike) -> None:
        """Take in a batch's mean head input ``[h]``, averaged over the candidates."""
        self.update(self.scale * np.asarray(mean, dtype=np.float64))


class MatchingMethod(Method[C]):
    """A method that compares features with the source's and shifts what the head reads (from FOA).

    Subclasses have ``shift`` and ``window`` in their ``STATE``.
    """

    VARIABLE_LENGTH: ClassVar[Mapping[str, str]] = {"shift": "shifts", "window": "images"}
    shift: ActivationShift
    window: Window

    def begin_matching(self, window: int, scale: float) -> None:
        """Start shift and window again; ``scale`` is the shift's."""
        spec = self.engine.spec
        self.shift, self.window = ActivationShift(spec.head_width, scale), Window(window, (spec.depth, spec.dim))

    def moments(self, features: Floats) -> Moments:
        """Statistics of a batch ``[B, ...]``; a single image is joined by the images before it."""
        return self.window.moments(features) if len(features) < 2 else Moments.of(features)

    def shifted(self, pooled: Floats) -> Floats:
        """Move what the head reads towards the source, once a batch has been seen."""
        shift = self.shift.vector(self.source.pooled.mean)
        return pooled if shift is None else (pooled + shift).astype(pooled.dtype)

    @abstractmethod
    def pooled(self, batch: Batch) -> Floats:
        """What the head reads with what was learnt, ``[B, h]``, in one pass."""

    def predict(self, batch: Batch) -> Floats:
        self.passes_per_image = 1.0
        return self.engine.head()(self.shifted(self.pooled(batch)))

    def prompted(self, batch: Batch, prompts: Array) -> Floats:
        """What the head reads with these prompts ``[p, d]``."""
        pooled: Floats = self.engine.run(batch, Knobs(prompts=prompts[None]), (Tap.POOLED,))[Tap.POOLED][0]
        return pooled


def first_prompts(spec: Spec, count: int, seed: int, given: npt.ArrayLike | None = None) -> Array:
    """Return ``count`` prompts ``[count, d]`` to start from: the user's own, or random ones."""
    check_counts(prompts=count)
    if given is None:
        return starting_prompts(seed, count, spec.dim, math.prod(spec.patch_size))
    prompts = np.array(given, dtype=np.float64)
    if prompts.shape != (count, spec.dim) or not np.isfinite(prompts).all():
        raise FozoError(f"prompts must be finite and of shape {[count, spec.dim]}, not {list(prompts.shape)}")
    return prompts
