"""All methods at every batch size, from single images up: clean images, then four corruptions at level 3.

    fozo bench batches --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR

Expected: docs/method.md has Align beside NoAdapt; the paper has batches of 4 to 128 in Figure 3, on other images.
Cost: four streams of 320 images a row: 95,000 forward passes (a backward pass counted as two), 52,000 of them CAZO's:
an hour on one core with a ViT-Tiny. PEA at B = 1 may end because its logits are not finite, as its docstring says.
"""

from dataclasses import replace

from fozo.bench.plan import Methods, Recipe, StreamPlan, grid
from fozo.bench.recipes import rivals
from fozo.bench.recipes.streams import FAMILIES

PLAN = StreamPlan(data="clean", kinds=("clean", *FAMILIES), severity=3, images=64)
SIZES = (1, 8, 32, 128)
METHODS: Methods = {
    "NoAdapt": ("noadapt", {}),
    "Align": ("align", {}),
    "Align, {passes} passes": ("align", {"passes": 2}),
    "Align, passes = auto": ("align", {"passes": "auto"}),
    **{label: method for label, method in rivals.METHODS.items() if label not in ("NoAdapt", "Align", "FOZO (paper)")},
}

RECIPE = Recipe(
    name="batches",
    title="All methods at every batch size, clean images and four corruptions at level 3",
    cost="95,000 passes",
    calibration=512,
    rows=grid(METHODS, {f"B = {size}": replace(PLAN, batch_size=size) for size in SIZES}),
)
