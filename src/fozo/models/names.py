"""What the name of a published model tells and its weights do not: normalisation, image size, activation.

The names are timm's, ``architecture.tag``. A wrong mean and std cost about twenty points of accuracy and raise no
error, so whatever is not in the tables below is left unknown, and the user is asked. ``tests/models/test_names.py``
holds every claim made here against timm's own list.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

from fozo.core.normalisation import CLIP, HALF, IMAGENET, Normalisation

NORMALISATION: dict[str, Normalisation] = {
    "augreg": HALF, "augreg2": HALF, "orig": HALF, "sam": HALF,
    "fb": IMAGENET, "dino": IMAGENET, "mae": IMAGENET, "lvd142m": IMAGENET,
    "openai": CLIP, "laion2b": CLIP, "laion400m": CLIP, "datacompxl": CLIP, "dfn2b": CLIP, "dfn5b": CLIP,
    "metaclip": CLIP, "metaclip2": CLIP, "tinyclip": CLIP,
}  # fmt: skip
"""Mean and std by the first word of the tag, which names the recipe that the weights were trained by."""
EXCEPTIONS = {("large", "laion2b"): HALF}
"""OpenCLIP trained this one model of its series with another normalisation than CLIP's."""

# Only the families whose head reads CLS; any other word in the name (siglip, gap, rope, ...) is another architecture.
NAME = re.compile(
    r"(vit|deit3?)_(?P<size>[a-z]+)_patch\d+(_plus)?(?P<clip>_clip)?(?P<quick>_quickgelu)?((_reg4)?_dinov2|_(?P<image>\d+))"
)

WIDTHS = {
    "tiny": (192,), "xsmall": (256,), "small": (384,), "medium": (512,), "betwixt": (640,), "base": (768, 896),
    "large": (1024,), "huge": (1280,), "giant": (1408, 1536), "gigantic": (1664,),
}  # fmt: skip
"""Widths of the tokens by the size in the name (base is wider in the _plus models, giant in DINOv2's)."""


def widths_from_name(name: str) -> tuple[int, ...] | None:
    """Return the widths that a model of this name can have; ``None`` for an unknown name."""
    match = NAME.fullmatch(name.partition(".")[0])
    return None if match is None else WIDTHS.get(match["size"])


@dataclass(frozen=True)
class Hints:
    """What a state dict cannot say. ``None`` means: infer it, or ask."""

    name: str = "vit"
    heads: int | None = None
    image_size: tuple[int, int] | None = None
    """The size that the model was trained for."""
    resize_to: tuple[int, int] | None = None
    """The size that the user wants instead: the position embedding is resampled."""
    norm_epsilon: float = 1e-6
    activation: str = "gelu"
    pool: str | None = None
    """What the head reads, of :data:`fozo.models.vit.POOLS`."""
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    labels: tuple[str, ...] | None = None
    """Names of the classes, in the order of the head's outputs."""
    antialias: bool = True
    """Whether a position embedding is resampled with antialiasing (timm does, transformers does not)."""


def names_by_tag(tag: str, classes: int) -> tuple[str, ...] | None:
    """Name the classes by the end of a timm tag: 1000 of ``in1k`` are ImageNet's, as timm calls them."""
    if classes != 1000 or not tag.endswith("in1k"):
        return None
    return tuple(files("fozo.models").joinpath("imagenet_names.txt").read_text(encoding="utf-8").splitlines())


def hints_from_name(name: str) -> Hints:
    """Read a timm name such as ``vit_tiny_patch16_224.augreg_in21k_ft_in1k``; the bare architecture tells less."""
    architecture, _, tag = name.partition(".")
    match = NAME.fullmatch(architecture)
    if match is None:
        return Hints(name=name)
    recipe = tag.split("_")[0]
    mean, std = EXCEPTIONS.get((match["size"], recipe)) or NORMALISATION.get(recipe) or (None, None)
    return Hints(
        name=name,
        image_size=(int(match["image"]), int(match["image"])) if match["image"] else None,
        norm_epsilon=1e-5 if match["clip"] else 1e-6,
        activation="quick_gelu" if match["quick"] else "gelu",
        mean=mean,
        std=std,
    )
