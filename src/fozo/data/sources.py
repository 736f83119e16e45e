"""Domain sources: give the pixels of any image under any domain, at the model's size.

Two of them, behind one interface: images that are stored corrupted (ImageNet-C) and images that are stored
clean and corrupted as they are read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from fozo.data.corruptions import EXTRA_KINDS, KINDS, corrupt, frost_source
from fozo.data.images import RESIZE_RATIO, Pixels, resize_crop
from fozo.data.sets.base import CLEAN, Domain, ImageSet


class DomainSource(Protocol):
    """What a stream needs from its data."""

    @property
    def images(self) -> ImageSet:
        """The labelled list of images that every domain shows."""

    def domains(self) -> tuple[Domain, ...]:
        """List the domains on offer."""

    def load(self, domain: Domain, index: int) -> Pixels:
        """Give image ``index`` under ``domain`` as ``uint8 [size, size, 3]``; called from many threads."""

    def describe(self, used: Collection[Domain]) -> Mapping[str, object]:
        """Say in plain values all that the pixels of the used domains depend on."""


def prepare(images: ImageSet, pixels: Pixels, size: int) -> Pixels:
    """Bring an image to the model's size.

    Ready-made crops of the right size stay untouched. Stored corrupted images of another size (ImageNet-C
    for a 384 px model, CIFAR-C) are resized whole, for they were cropped when they were made. Everything
    else gets ImageNet's Resize and CenterCrop.
    """
    if pixels.shape[:2] == (size, size) and images.size is not None:
        return pixels
    return resize_crop(pixels, size, resize=size if _whole(images) else None)


def _whole(images: ImageSet) -> bool:
    return images.corrupted and images.size is not None


def describe_preparation(images: ImageSet, size: int) -> str:
    """Put :func:`prepare` in words."""
    if images.size == (size, size):
        return f"{size} px crops as they are"
    if _whole(images):
        return f"Resize({size}, bilinear)"
    return f"Resize({round(size * RESIZE_RATIO)}, bilinear) + CenterCrop({size})"


@dataclass(frozen=True)
class Stored:
    """Images as they are in the files, corrupted or clean."""

    images: ImageSet
    size: int

    def domains(self) -> tuple[Domain, ...]:
        """Those in the files."""
        return self.images.domains

    def load(self, domain: Domain, index: int) -> Pixels:
        """Read and resize."""
        return prepare(self.images, self.images.read(index, domain), self.size)

    def describe(self, used: Collection[Domain]) -> Mapping[str, object]:
        """Preparation, and what the tree's own record says of its making."""
        facts: dict[str, object] = {"preparation": describe_preparation(self.images, self.size), "corruption": "stored"}
        record = self.images.record or {}
        facts |= {f"corruption_{key}": record[key] for key in ("seed", "quality") if key in record}
        if any(domain.kind == "frost" for domain in used) and "frost" in record:
            facts["frost"] = record["frost"]
        return facts


@dataclass(frozen=True)
class Corrupting:
    """Clean images, corrupted as they are read: first cropped to the model's size, as ImageNet-C was.

    The noise depends on (image name, kind, severity, seed) and nothing else, so it is the same in every
    scenario, batch size and thread, and the same as in a tree made by ``fozo corrupt``, up to the JPEG coding
    that files go through and these pixels do not.
    """

    images: ImageSet
    size: int
    seed: int = 0

    def domains(self) -> tuple[Domain, ...]:
        """Clean, and every kind at every severity."""
        return CLEAN, *(Domain(kind, level) for kind in (*KINDS, *EXTRA_KINDS) for level in range(1, 6))

    def load(self, domain: Domain, index: int) -> Pixels:
        """Read, resize, corrupt."""
        pixels = prepare(self.images, self.images.read(index), self.size)
        if domain == CLEAN:
            return pixels
        # The name that the image has in a corrupted tree, whatever the format of the clean file.
        name = str(PurePosixPath(self.images.samples[index].path).with_suffix(".JPEG"))
        return corrupt(pixels, domain.kind, domain.severity, self.seed, image_id=name)

    def describe(self, used: Collection[Domain]) -> Mapping[str, object]:
        """Preparation and, where they matter, the seed and where the frost's textures come from."""
        facts: dict[str, object] = {"preparation": describe_preparation(self.images, self.size)}
        kinds = {domain.kind for domain in used if domain != CLEAN}
        facts["corruption"] = "on the fly" if kinds else "none"
        if kinds:
            facts["corruption_seed"] = self.seed
        if "frost" in kinds:
            facts["frost"] = frost_source()
        return facts
