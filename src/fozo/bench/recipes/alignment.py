"""Ablation of Align, part by part: the four extra corruptions and two groups of classes, all of which it was tuned on.

    fozo bench alignment --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR

Expected: what docs/method.md shows for ViT-Tiny; the paper has no such numbers.
The corruptions are at level 5; the narrow streams begin clean and go on at level 3.
Cost: 13 rows, three streams of 256 images and three of about 300: 23,000 forward passes, 20 minutes on a core.
"""

from dataclasses import replace

from fozo.bench.plan import Methods, Recipe, StreamPlan, grid
from fozo.data.corruptions import EXTRA_KINDS

NARROW = StreamPlan(data="clean", kinds=("clean", *EXTRA_KINDS), severity=3, images=60, batch_size=16)
STREAMS = {
    "continual": StreamPlan(kinds=EXTRA_KINDS, images=64),
    "mixed": StreamPlan(kinds=EXTRA_KINDS, images=64, scenario="mixed"),
    "batches of 1": StreamPlan(kinds=EXTRA_KINDS, images=64, batch_size=1),
    "gradual": StreamPlan(kinds=EXTRA_KINDS, images=8, scenario="gradual", batch_size=8),  # 36 short domains
    "birds": replace(NARROW, classes="birds"),
    "clothing": replace(NARROW, classes="clothing"),
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
    "content ignored": ("align", {"content_strength": 0.0}),
    "content not doubted": ("align", {"doubt": 0.0}),
    "no reference of its own": ("align", {"own_reference": False}),
    "one domain": ("align", {"retrieval.dimensions": 0.0, "own_reference": False}),  # all look alike
    "2 passes": ("align", {"passes": 2}),
    "passes = auto": ("align", {"passes": "auto"}),
}

RECIPE = Recipe(
    name="alignment",
    title="Ablation of Align: extra corruptions at level 5, 64 images each; birds and clothing at level 3",
    cost="23,000 passes",
    calibration=512,
    rows=grid(VARIANTS, STREAMS),
)
