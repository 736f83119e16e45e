"""All methods on five kinds of stream: one corruption of each family at level 3, at 1 or 2 passes, and CAZO at its 41.

    fozo bench streams --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR --seeds 0,1,2

Expected: docs/method.md has Align beside NoAdapt; the paper has the continual column only, on other images.
Cost: 1,248 images a method and seed, 90,000 forward passes a seed (a backward pass counted as two), 51,000 of them
CAZO's: an hour on one core with a ViT-Tiny.
"""

from dataclasses import replace

from fozo.bench.plan import Methods, Recipe, StreamPlan, grid
from fozo.bench.recipes import rivals

FAMILIES = ("gaussian_noise", "defocus_blur", "fog", "jpeg_compression")
PLAN = StreamPlan(kinds=FAMILIES, severity=3, images=48, batch_size=16)
STREAMS = {
    "continual": PLAN,
    "episodic": replace(PLAN, scenario="episodic"),
    "mixed": replace(PLAN, scenario="mixed"),
    "recurring": replace(PLAN, scenario="recurring", images=12, batch_size=12),  # ten rounds of everything
    "correlated": replace(PLAN, scenario="correlated"),
}
METHODS: Methods = {
    **{label: method for label, method in rivals.METHODS.items() if label != "FOZO (paper)"},
    "Align, {passes} passes": ("align", {"passes": 2}),
}

RECIPE = Recipe(
    name="streams",
    title="All methods on five kinds of stream, four corruptions at level 3",
    cost="90,000 passes",
    calibration=512,
    rows=grid(METHODS, STREAMS),
)
