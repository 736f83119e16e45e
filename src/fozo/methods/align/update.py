"""Updates: what a group of images teaches Align, in the precision in which it is remembered, and as text for a journal.

All that a batch changes follows from its updates, so a journal of them is replayed exactly, without model or images.
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
"""Images of one update, at most: a forged line could claim anything."""


@dataclass(frozen=True)
class Update:
    """Of n images: their domains, what is remembered of each, and how clean they look ``[n]``."""

    domains: DomainEstimate
    stored: Stored
    clean: Array

    def __len__(self) -> int:
        """Count the images."""
        return len(self.stored)

    def encode(self) -> dict[str, object]:
        """Turn it into what JSON can hold."""
        parts = (self.domains.mean, self.domains.variance, self.domains.descriptor, self.clean)
        data = b"".join(np.ascontiguousarray(part, dtype="<f8").tobytes() for part in parts)
        singles = (self.stored.scales, self.stored.contents)
        data += b"".join(np.ascontiguousarray(part, dtype="<f4").tobytes() for part in singles)
        data += self.stored.codes.tobytes()
        return {"images": len(self), "data": base64.b64encode(zlib.compress(data)).decode()}

    @classmethod
    def decode(cls, facts: object, features: int, form: tuple[int, int, int]) -> Update:
        """Read what :meth:`encode` made, for descriptors of so many features and memories of this form."""
        try:
            if not isinstance(facts, dict):
                raise ValueError("no update")
            images, text = facts["images"], facts["data"]
            if type(images) is not int or not 0 <= images <= MAX_IMAGES or type(text) is not str:
                raise ValueError("no number of images, or no data")
            layers, width, contents = form
            doubles, singles = images * (3 * features + 1), images * (layers + contents)
            size = 8 * doubles + 4 * singles + images * layers * width
            unpacker = zlib.decompressobj()
            data = unpacker.decompress(base64.b64decode(text, validate=True), size + 1)  # never more than is needed
            if len(data) != size or not unpacker.eof:
                raise ValueError("data of another length")
            wide = np.frombuffer(data, "<f8", doubles).astype(np.float64)
            single = np.frombuffer(data, "<f4", singles, offset=8 * doubles).astype(np.float32)
            codes = np.frombuffer(data, np.int8, offset=8 * doubles + 4 * singles).reshape(images, layers, width)
            mean, variance, descriptor = wide[: -images or None].reshape(3, images, features)
            scales, shown = single[: images * layers], single[images * layers :]
            update = cls(
                DomainEstimate(mean, variance, descriptor),
                Stored(codes, scales.reshape(images, layers), shown.reshape(images, contents)),
                wide[len(wide) - images :],
            )
            if not (np.isfinite(wide).all() and np.isfinite(single).all() and (variance > 0).all()):
                raise ValueError("numbers that are not finite")
        except (KeyError, ValueError, zlib.error) as error:
            raise FozoError(f"a update of the journal cannot be read ({error}); use a copy from before") from error
        return update
