"""Ablation of what tells content from drift in Align, on the six groups of classes that it was tuned on.

    fozo bench content --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR

Each stream is of one group, begins with clean images and goes on with the four extra corruptions at level 3, as a
camera's does that was put up in good weather. Expected: what ``python -m benchmarks.narrow RUNS`` makes of the runs;
the paper has no such numbers.
Cost: 5 rows of about 2,300 images: 12,000 forward passes, 10 minutes on a core.
"""

from fozo.bench.plan import Methods, Recipe, StreamPlan, grid
from fozo.data.corruptions import EXTRA_KINDS
from fozo.data.groups import TUNING

STREAMS = {
    group: StreamPlan(
        data="clean", kinds=("clean", *EXTRA_KINDS), severity=3, images=96, batch_size=16, classes=group
    )
    for group in TUNING
}  # fmt: skip
VARIANTS: Methods = {
    "NoAdapt": ("noadapt", {}),
    "Align": ("align", {}),
    "content ignored": ("align", {"content_strength": 0.0}),
    "content not doubted": ("align", {"content_error": 0.0}),
    "no reference of its own": ("align", {"camera_baseline": False}),
}

RECIPE = Recipe(
    name="content",
    title="Content and drift: six groups of classes, clean, then under four corruptions at level 3",
    cost="12,000 passes",
    calibration=1000,
    rows=grid(VARIANTS, STREAMS),
)
