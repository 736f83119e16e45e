"""Domain sources: the pixels of any image under any domain, at the model's size.

Images are either stored corrupted (ImageNet-C), or stored clean and corrupted as they are read.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import ClassVar, Protocol

import numpy as np

from fozo.data.corruptions import EXTRA_KINDS, KINDS, corrupt, frost_source
from fozo.data.images import Pixels, Size, covered, fit, luminance, resize_crop, sides
from fozo.data.sets.base import CLEAN, Domain, ImageSet
from fozo.io import atomic_write


class DomainSource(Protocol):
    """What a stream needs from its data."""

    @property
    def images(self) -> ImageSet:
        """The labelled images, the same in every domain."""

    @property
    def domains(self) -> tuple[Domain, ...]: ...

    def load(self, domain: Domain, index: int) -> Pixels:
        """Image ``index`` under ``domain`` as ``uint8 [height, width, channels]``; called from many threads."""

    def describe(self, used: Collection[Domain]) -> Mapping[str, object]:
        """All that the pixels of the used domains depend on, as JSON values."""


def prepare(images: ImageSet, pixels: Pixels, size: Size, channels: int = 3) -> Pixels:
    """Bring an image to the model's size and channels; streams and corrupted trees share this rule.

    Photographs of many sizes get ImageNet's Resize and CenterCrop, also one that happens to have the model's size: so
    published accuracies were measured. Ready-made crops of the model's size stay as they are. Stored corrupted images
    of another size are resized whole: they were cropped when they were made. Models of one channel see the luminance.
    """
    if images.size is None:
        pixels = resize_crop(pixels, size)
    else:
        pixels = fit(pixels, size, resize=size if images.corrupted else None)
    return luminance(pixels) if channels == 1 else pixels


def describe_preparation(images: ImageSet, size: Size, channels: int = 3) -> str:
    high, wide = sides(size)
    final = f"{high}" if high == wide else f"{high}x{wide}"
    gray = " + luminance" if channels == 1 else ""
    if images.size == (high, wide):
        return f"{final} px crops as they are{gray}"
    if images.corrupted and images.size is not None:
        return f"Resize({final}, bilinear){gray}"
    before = f"{covered(high)}" if high == wide else f"{covered(high)}x{covered(wide)}"
    return f"Resize({before}, bilinear) + CenterCrop({final}){gray}"


@dataclass(frozen=True)
class StoredImages:
    """Images as they are in the files, corrupted or clean."""

    images: ImageSet
    size: Size
    channels: int = 3

    @property
    def domains(self) -> tuple[Domain, ...]:
        return self.images.domains

    def load(self, domain: Domain, index: int) -> Pixels:
        return prepare(self.images, self.images.read(index, domain), self.size, self.channels)

    def describe(self, used: Collection[Domain]) -> Mapping[str, object]:
        record = self.images.record or {}
        named = {f"corruption_{key}": record[key] for key in ("seed", "quality") if key in record}
        if any(domain.kind == "frost" for domain in used) and "frost" in record:
            named["frost"] = record["frost"]
        preparation = describe_preparation(self.images, self.size, self.channels)
        return {"preparation": preparation, "corruption": "stored", **named}


@dataclass(frozen=True)
class Corrupting:
    """Clean images, corrupted as they are read: first cropped to the model's size, as ImageNet-C was.

    The noise depends on (image name, kind, severity, seed) and nothing else. ``fozo corrupt`` writes the same pixels,
    in colour and as JPEG. ``folder`` keeps the pixels, for a benchmark whose rows all see the same images: a file has
    the bytes of one image, and one of another length is made again. It is for one set of images at one size.
    """

    images: ImageSet
    size: Size
    seed: int = 0
    channels: int = 3
    folder: Path | None = None
    domains: ClassVar = (CLEAN, *(Domain(kind, level) for kind in (*KINDS, *EXTRA_KINDS) for level in range(1, 6)))

    def load(self, domain: Domain, index: int) -> Pixels:
        kept = None if self.folder is None else self.folder / domain.name / str(index)
        if kept is not None and kept.is_file():
            shape, found = (*sides(self.size), self.channels), kept.read_bytes()
            if len(found) == prod(shape):
                return np.frombuffer(found, np.uint8).reshape(shape)
        pixels = prepare(self.images, self.images.read(index), self.size, self.channels)
        pixels = pixels if domain == CLEAN else self.corrupt(pixels, domain, index)
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(kept) as file:
                file.write(pixels.tobytes())
        return pixels

    def corrupt(self, clean: Pixels, domain: Domain, index: int) -> Pixels:
        name = corrupted_name(self.images.samples[index].path)
        return corrupt(clean, domain.kind, domain.severity, self.seed, image_id=name)

    def describe(self, used: Collection[Domain]) -> Mapping[str, object]:
        preparation = describe_preparation(self.images, self.size, self.channels)
        kinds = {domain.kind for domain in used if domain != CLEAN}
        if not kinds:
            return {"preparation": preparation, "corruption": "none"}
        frost = {"frost": frost_source()} if "frost" in kinds else {}
        return {"preparation": preparation, "corruption": "on the fly", "corruption_seed": self.seed, **frost}


def corrupted_name(path: str) -> str:
    """Name an image as it is called in a corrupted tree, whatever the format of the clean file."""
    return str(PurePosixPath(path).with_suffix(".JPEG"))
