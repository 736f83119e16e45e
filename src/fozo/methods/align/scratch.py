"""Memory to work in: the same pages for every batch, because fresh ones cost time."""

from __future__ import annotations

import threading

import numpy as np

from fozo.core.descriptor import Single
from fozo.types import Array


class Scratch(threading.local):
    """A thread's own, whichever adapter works on it: many cameras of one model (``_siblings``) share it.

    What one step leaves here is good until the next one on the same thread.
    """

    def __init__(self, image_shape: tuple[int, int, int]) -> None:
        self._room = np.empty((0, *image_shape), dtype=np.float32)
        self.gains: tuple[Array, Single] | None = None
        """A deficit, and the gains that make up for it: a treatment that is kept needs them again and again."""

    def space(self, images: int) -> Single:
        """Where coefficients and then equalised images go."""
        if len(self._room) < images:
            self._room = np.empty((images, *self._room.shape[1:]), dtype=np.float32)
        return self._room[:images]
