"""Does FOZO ever do harm? Clean images and all 15 corruptions, continual, beside the unadapted model.

    fozo bench harmless --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR --severity 1

Expected: what docs/results.md shows for three models and all severities; the paper has no such numbers.
Cost: 4,096 images a row: 16,000 forward passes, 13 minutes on one core with a ViT-Tiny.
"""

from fozo.bench.experiment import StreamPlan
from fozo.bench.recipe import Recipe, grid
from fozo.data.corruptions import KINDS

PLAN = StreamPlan(data="imagenet", kinds=("clean", *KINDS), images=256)

RECIPE = Recipe(
    name="harmless",
    title="FOZO beside the unadapted model on clean images and 15 corruptions, continual",
    cost="16,000 passes",
    calibration=512,
    rows=grid(
        {"NoAdapt": ("noadapt", {}), "FOZO": ("fozo", {}), "FOZO, 2 passes": ("fozo", {"passes": 2})},
        {"Avg": PLAN},
    ),
)
