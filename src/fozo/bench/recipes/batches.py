"""FOZO's own preset at every batch size, from single images up: clean images, then four corruptions at level 3.

    fozo bench batches --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR

Expected: what docs/results.md shows for ViT-Tiny; the paper has batches of 4 to 128 in Figure 3, on other images.
Cost: 4 rows, four streams of 320 images: 6,500 forward passes, 5 minutes on one core with a ViT-Tiny.
"""

from dataclasses import replace

from fozo.bench.experiment import StreamPlan, Value
from fozo.bench.recipe import Recipe, grid
from fozo.bench.recipes.streams import FAMILIES

PLAN = StreamPlan(data="imagenet", kinds=("clean", *FAMILIES), severity=3, images=64)
SIZES = (1, 8, 32, 128)
METHODS: dict[str, tuple[str, dict[str, Value]]] = {
    "NoAdapt": ("noadapt", {}),
    "FOZO": ("fozo", {}),
    "FOZO, 2 passes": ("fozo", {"passes": 2}),
    "FOZO, passes = auto": ("fozo", {"passes": "auto"}),
}

RECIPE = Recipe(
    name="batches",
    title="FOZO at every batch size, clean images and four corruptions at level 3",
    cost="6,500 passes",
    calibration=512,
    rows=grid(METHODS, {f"B = {size}": replace(PLAN, batch_size=size) for size in SIZES}),
)
