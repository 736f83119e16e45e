"""What each ingredient of FOZO's own preset is worth: the four extra corruptions, which it was tuned on, level 5.

    fozo bench alignment --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR

Expected: what docs/method.md shows for ViT-Tiny; the paper has no such numbers.
Cost: 13 rows, three streams of 256 images and one of 576: 19,000 forward passes, 15 minutes on a core.
"""

from fozo.bench.experiment import StreamPlan, Value
from fozo.bench.recipe import Recipe, grid
from fozo.data.corruptions import EXTRA_KINDS

STREAMS = {
    "continual": StreamPlan(kinds=EXTRA_KINDS, images=64),
    "mixed": StreamPlan(kinds=EXTRA_KINDS, images=64, scenario="mixed"),
    "batches of 1": StreamPlan(kinds=EXTRA_KINDS, images=64, batch_size=1),
    "gradual": StreamPlan(kinds=EXTRA_KINDS, images=16, scenario="gradual", batch_size=16),  # 36 short domains
}
VARIANTS: dict[str, tuple[str, dict[str, Value]]] = {
    "NoAdapt": ("noadapt", {}),
    "FOZO": ("fozo", {}),
    "images as they are": ("fozo", {"detail": 0.0}),
    "tokens as they are": ("fozo", {"mean": 0.0, "spread": 0.0}),
    "mean of tokens as it is": ("fozo", {"mean": 0.0}),
    "spread of tokens as it is": ("fozo", {"spread": 0.0}),
    "half the strength": ("fozo", {"mean": 0.075, "spread": 0.1, "detail": 0.35}),
    "twice the strength (detail 1)": ("fozo", {"mean": 0.3, "spread": 0.4, "detail": 1.0}),
    "no doubt about few images": ("fozo", {"doubt": 0.0}),
    "all memories alike": ("fozo", {"recall.dimensions": 0.0}),
    "64 images at a time": ("fozo", {"together": 64}),
    "2 passes": ("fozo", {"passes": 2}),
    "passes = auto": ("fozo", {"passes": "auto"}),
}

RECIPE = Recipe(
    name="alignment",
    title="Ingredients of FOZO's own preset, extra corruptions at level 5, 64 images each",
    cost="19,000 passes",
    calibration=512,
    rows=grid(VARIANTS, STREAMS),
)
