"""Align against NoAdapt: does adaptation ever do harm? Clean images and all 15 corruptions, continual.

    fozo bench vs_noadapt --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR --severity 1

The last row leaves the equaliser out, to show what it gains where images lack detail or contrast, and elsewhere.
Expected: docs/method.md has some of it, and held_out on other classes; the paper has no such numbers.
Cost: 4,096 images a row: 20,000 forward passes, 20 minutes on one core with a ViT-Tiny.
"""

from fozo.bench.plan import AVERAGE, Methods, Recipe, StreamPlan, grid
from fozo.data.corruptions import KINDS

PLAN = StreamPlan(data="clean", kinds=("clean", *KINDS), images=256)
METHODS: Methods = {
    "NoAdapt": ("noadapt", {}),
    "Align": ("align", {}),
    "Align, {passes} passes": ("align", {"passes": 2}),
    "Align, no equaliser": ("align", {"equaliser_strength": 0.0}),
}

RECIPE = Recipe(
    name="vs_noadapt",
    title="Align against NoAdapt on clean images and 15 corruptions, continual",
    cost="20,000 passes",
    calibration=512,
    rows=grid(METHODS, {AVERAGE: PLAN}),
)
