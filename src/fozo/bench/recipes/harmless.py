"""Does FOZO ever do harm? Clean images and all 15 corruptions, continual, beside the unadapted model.

    fozo bench harmless --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR --severity 1

The last row leaves the equaliser out, to show what it is worth where images lack detail or contrast, and where not.
Expected: what docs/results.md shows for three models and all severities; the paper has no such numbers.
Cost: 4,096 images a row: 20,000 forward passes, 20 minutes on one core with a ViT-Tiny.
"""

from fozo.bench.experiment import StreamPlan, Value
from fozo.bench.recipe import AVERAGE, Recipe, grid
from fozo.data.corruptions import KINDS

PLAN = StreamPlan(data="imagenet", kinds=("clean", *KINDS), images=256)
METHODS: dict[str, tuple[str, dict[str, Value]]] = {
    "NoAdapt": ("noadapt", {}),
    "FOZO": ("fozo", {}),
    "FOZO, 2 passes": ("fozo", {"passes": 2}),
    "FOZO, images as they are": ("fozo", {"detail": 0.0}),
}

RECIPE = Recipe(
    name="harmless",
    title="FOZO beside the unadapted model on clean images and 15 corruptions, continual",
    cost="20,000 passes",
    calibration=512,
    rows=grid(METHODS, {AVERAGE: PLAN}),
)
