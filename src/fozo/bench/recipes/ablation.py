"""Align by itself: its parts, one by one, and whether it ever does harm. The paper has no such numbers.

    fozo bench ablation --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR

The ablation is on classes and corruptions that Align may be tuned on: those outside the held-out groups, and the four
extra corruptions beside four that hardly show in an image's descriptor. Expected: the tables of docs/ablation.md, by
``python -m benchmarks.narrow RUNS``. It takes an hour on a core.
"""

from fozo.bench.plan import AVERAGE, Methods, Recipe, StreamPlan, grid
from fozo.bench.recipes.comparison import PLAIN_AND_ALIGN, TWO_PASSES
from fozo.data.corruptions import EXTRA_KINDS, KINDS
from fozo.data.groups import TUNING

WITH_TWO_PASSES: Methods = {**PLAIN_AND_ALIGN, **TWO_PASSES}
HIDDEN = ("elastic_transform", "jpeg_compression", "pixelate", "zoom_blur")  # hardly change an image's descriptor
MIXED = tuple(kind for pair in zip(EXTRA_KINDS, HIDDEN, strict=True) for kind in pair)

RECIPES = (
    Recipe(  # streams begin with clean images, as that of a camera that was put up in good weather
        name="ablation",
        title="Ablation of Align: eight corruptions, balanced and narrow content, continual",
        cost="37,000 passes",
        calibration=1000,
        rows=grid(
            {
                **PLAIN_AND_ALIGN,
                "without CLS": ("align", {"cls_strength": 0.0}),
                "without std": ("align", {"std_strength": 0.0}),
                "without mean": ("align", {"mean_strength": 0.0}),
                "content ignored": ("align", {"content_strength": 0.0}),
                "without content_error": ("align", {"content_error": 0.0}),
                "groups of 16": ("align", {"group_size": 16}),
                "without equaliser": ("align", {"equaliser_strength": 0.0}),
            },
            {
                **{
                    f"severity {level}": StreamPlan(
                        "clean", "continual", ("clean", *MIXED), level, 128, batch_size=32, classes="tuning"
                    )
                    for level in (5, 3)
                },
                **{
                    group: StreamPlan(
                        "clean", "continual", ("clean", *EXTRA_KINDS, *HIDDEN[:2]), 3, 56, batch_size=16, classes=group
                    )
                    for group in TUNING
                },
            },
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
