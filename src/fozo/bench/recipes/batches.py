"""Align at every batch size, from single images up: clean images, then four corruptions at level 3.

    fozo bench batches --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR

Expected: what docs/results.md shows for ViT-Tiny; the paper has batches of 4 to 128 in Figure 3, on other images.
Cost: 4 rows, four streams of 320 images: 6,500 forward passes, 5 minutes on one core with a ViT-Tiny.
"""

from dataclasses import replace

from fozo.bench.plan import Methods, Recipe, StreamPlan, grid
from fozo.bench.recipes.streams import FAMILIES

PLAN = StreamPlan(data="clean", kinds=("clean", *FAMILIES), severity=3, images=64)
SIZES = (1, 8, 32, 128)
METHODS: Methods = {
    "NoAdapt": ("noadapt", {}),
    "Align": ("align", {}),
    "Align, 2 passes": ("align", {"passes": 2}),
    "Align, passes = auto": ("align", {"passes": "auto"}),
}

RECIPE = Recipe(
    name="batches",
    title="Align at every batch size, clean images and four corruptions at level 3",
    cost="6,500 passes",
    calibration=512,
    rows=grid(METHODS, {f"B = {size}": replace(PLAN, batch_size=size) for size in SIZES}),
)
