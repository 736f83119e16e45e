"""Align by itself: its parts, one by one, and whether it ever does harm. The paper has no such numbers.

    fozo bench alignment --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR

The ablations are on what Align was tuned on: the four extra corruptions, and six groups of classes. Expected: what
docs/method.md and ``python -m benchmarks.narrow RUNS`` show. Each takes 10 to 20 minutes on a core.
"""

from __future__ import annotations

from fozo.bench.plan import AVERAGE, Methods, Recipe, StreamPlan, grid
from fozo.bench.recipes.comparison import PLAIN_AND_ALIGN, TWO_PASSES
from fozo.data.corruptions import EXTRA_KINDS, KINDS
from fozo.data.groups import TUNING

WITH_TWO_PASSES: Methods = {**PLAIN_AND_ALIGN, **TWO_PASSES}
TWICE = {"mean_strength": 0.3, "std_strength": 0.4, "cls_strength": 0.6, "equaliser_strength": 1.0}

RECIPES = (
    Recipe(
        name="alignment",
        title="Ablation of Align: extra corruptions at level 5, 64 images each",
        cost="11,000 passes",
        calibration=512,
        rows=grid(
            {
                **PLAIN_AND_ALIGN,
                "no equaliser": ("align", {"equaliser_strength": 0.0}),
                "no alignment of the mean": ("align", {"mean_strength": 0.0}),
                "no alignment of the std": ("align", {"std_strength": 0.0}),
                "no alignment of CLS": ("align", {"cls_strength": 0.0}),
                "twice the strength (equaliser 1)": ("align", TWICE),
                "one domain": ("align", {"retrieval.dimensions": 0.0, "camera_baseline": False}),  # all the same
                "{passes} passes": ("align", {"passes": 2}),
                "passes = auto": ("align", {"passes": "auto"}),
            },
            {
                "continual": StreamPlan(kinds=EXTRA_KINDS, images=64),
                "mixed": StreamPlan(kinds=EXTRA_KINDS, images=64, scenario="mixed"),
                "batches of 1": StreamPlan(kinds=EXTRA_KINDS, images=64, batch_size=1),
                # 36 short domains
                "gradual": StreamPlan(kinds=EXTRA_KINDS, images=8, scenario="gradual", batch_size=8),
            },
        ),
    ),
    Recipe(  # each stream begins with clean images, as that of a camera that was put up in good weather
        name="content",
        title="Content and drift: six groups of classes, clean, then under four corruptions at level 3",
        cost="12,000 passes",
        calibration=1000,
        rows=grid(
            {
                **PLAIN_AND_ALIGN,
                "content ignored": ("align", {"content_strength": 0.0}),
                "content not doubted": ("align", {"content_error": 0.0}),
                "no reference of its own": ("align", {"camera_baseline": False}),
            },
            {
                group: StreamPlan("clean", "continual", ("clean", *EXTRA_KINDS), 3, 96, batch_size=16, classes=group)
                for group in TUNING
            },
        ),
    ),
    Recipe(  # the last row shows what the equaliser gains where images lack detail or contrast, and elsewhere
        name="vs_noadapt",
        title="Align against NoAdapt on clean images and 15 corruptions, continual",
        cost="20,000 passes",
        calibration=512,
        rows=grid(
            {**WITH_TWO_PASSES, "Align, no equaliser": ("align", {"equaliser_strength": 0.0})},
            {AVERAGE: StreamPlan(data="clean", kinds=("clean", *KINDS), images=256)},
        ),
    ),
    Recipe(  # the 508 classes in all held-out groups, mixed
        name="held_out",
        title="Align against NoAdapt on held-out classes, clean and under 15 corruptions, continual",
        cost="20,000 passes",
        calibration=1000,
        rows=grid(
            WITH_TWO_PASSES,
            {AVERAGE: StreamPlan("clean", kinds=("clean", *KINDS), images=320, batch_size=32, classes="held_out")},
        ),
    ),
)
