"""The forward-only methods on five kinds of stream: one corruption of each family at level 3, 1 or 2 forward passes.

    fozo bench streams --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR --seeds 0,1,2

Expected: what docs/results.md shows for ViT-Tiny; the paper has the continual column only, on other images.
Cost: 1,248 images a method and seed, 14,000 forward passes a seed: 10 minutes on one core with a ViT-Tiny.
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
    **{label: rivals.METHODS[label] for label in ("NoAdapt", "LAME", "T3A", "FOA", "ZOA", "FOZO", "Align")},
    "Align, 2 passes": ("align", {"passes": 2}),
}

RECIPE = Recipe(
    name="streams",
    title="Forward-only methods on five kinds of stream, four corruptions at level 3",
    cost="14,000 passes",
    calibration=512,
    rows=grid(METHODS, STREAMS),
)
