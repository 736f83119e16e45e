"""Ablation of Align, part by part, on the four extra corruptions, which it was tuned on.

    fozo bench alignment --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR

Expected: what docs/method.md shows for ViT-Tiny; the paper has no such numbers. What tells content from drift has an
ablation of its own, ``content``.
The corruptions are at level 5. Cost: 10 rows, four streams of about 270 images: 11,000 forward passes, 10 minutes on a
core.
"""

from fozo.bench.plan import Methods, Recipe, StreamPlan, grid
from fozo.data.corruptions import EXTRA_KINDS

STREAMS = {
    "continual": StreamPlan(kinds=EXTRA_KINDS, images=64),
    "mixed": StreamPlan(kinds=EXTRA_KINDS, images=64, scenario="mixed"),
    "batches of 1": StreamPlan(kinds=EXTRA_KINDS, images=64, batch_size=1),
    "gradual": StreamPlan(kinds=EXTRA_KINDS, images=8, scenario="gradual", batch_size=8),  # 36 short domains
}
VARIANTS: Methods = {
    "NoAdapt": ("noadapt", {}),
    "Align": ("align", {}),
    "no equaliser": ("align", {"equaliser_strength": 0.0}),
    "no alignment of the mean": ("align", {"mean_strength": 0.0}),
    "no alignment of the std": ("align", {"std_strength": 0.0}),
    "no alignment of CLS": ("align", {"cls_strength": 0.0}),
    "twice the strength (equaliser 1)": (
        "align",
        {"mean_strength": 0.3, "std_strength": 0.4, "cls_strength": 0.6, "equaliser_strength": 1.0},
    ),
    "one domain": (
        "align",
        {"retrieval.dimensions": 0.0, "camera_baseline": False},
    ),  # all the same
    "{passes} passes": ("align", {"passes": 2}),
    "passes = auto": ("align", {"passes": "auto"}),
}

RECIPE = Recipe(
    name="alignment",
    title="Ablation of Align: extra corruptions at level 5, 64 images each",
    cost="11,000 passes",
    calibration=512,
    rows=grid(VARIANTS, STREAMS),
)
