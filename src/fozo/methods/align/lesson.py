"""Lessons: what a group of images teaches Align, in the precision in which it is remembered, and as text for a journal.

All that a batch changes follows from its lessons, so a journal of them is replayed exactly, without model or images.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass

import numpy as np

from fozo.errors import FozoError
from fozo.methods.align.retrieval import DomainEstimate, Stored
from fozo.types import Array

MAX_IMAGES = 1 << 16
"""Images of one lesson, at most: a forged line could claim anything."""


@dataclass(frozen=True)
class Lesson:
    """Of n images: their domains, what is remembered of each ``[n, width]``, and how clean they look ``[n]``."""

    domains: DomainEstimate
    values: Stored
    clean: Array

    def encode(self) -> dict[str, object]:
        """Turn it into what JSON can hold."""
        parts = (self.domains.mean, self.domains.variance, self.domains.descriptor, self.clean)
        data = b"".join(np.ascontiguousarray(part, dtype="<f8").tobytes() for part in parts)
        data += np.ascontiguousarray(self.values, dtype="<f2").tobytes()
        return {"images": len(self.values), "data": base64.b64encode(zlib.compress(data)).decode()}

    @classmethod
    def decode(cls, facts: object, features: int, width: int) -> Lesson:
        """Read what :meth:`encode` made, for descriptors and memories of these widths."""
        try:
            if not isinstance(facts, dict):
                raise ValueError("no lesson")
            images, text = facts["images"], facts["data"]
            if type(images) is not int or not 0 <= images <= MAX_IMAGES or type(text) is not str:
                raise ValueError("no number of images, or no data")
            numbers = images * (3 * features + 1)
            size = 8 * numbers + 2 * images * width
            unpacker = zlib.decompressobj()
            data = unpacker.decompress(base64.b64decode(text, validate=True), size + 1)  # never more than is needed
            if len(data) != size or not unpacker.eof:
                raise ValueError("data of another length")
            doubles = np.frombuffer(data, "<f8", numbers).astype(np.float64)
            values = np.frombuffer(data, "<f2", offset=8 * numbers).astype(np.float16).reshape(images, width)
            mean, variance, descriptor = doubles[: -images or None].reshape(3, images, features)
            lesson = cls(DomainEstimate(mean, variance, descriptor), values, doubles[len(doubles) - images :])
            if not (np.isfinite(doubles).all() and np.isfinite(values).all() and (variance > 0).all()):
                raise ValueError("numbers that are not finite")
        except (KeyError, ValueError, zlib.error) as error:
            raise FozoError(f"a lesson of the journal cannot be read ({error}); use a copy from before") from error
        return lesson
