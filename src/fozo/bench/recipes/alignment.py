"""What each ingredient of FOZO's own preset is worth: the four extra corruptions, which it was tuned on, level 5.

    fozo bench alignment --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR

Expected: what docs/method.md shows for ViT-Tiny; the paper has no such numbers.
Cost: 11 rows, three streams of 512 images each: 18,000 forward passes, 15 minutes on one core with a ViT-Tiny.
"""

from fozo.bench.experiment import StreamPlan, Value
from fozo.bench.recipe import Recipe, Row
from fozo.data.corruptions import EXTRA_KINDS

STREAMS = {
    "continual": StreamPlan(kinds=EXTRA_KINDS, images=128),
    "mixed": StreamPlan(kinds=EXTRA_KINDS, images=128, scenario="mixed"),
    "batches of 1": StreamPlan(kinds=EXTRA_KINDS, images=128, batch_size=1),
}
VARIANTS: dict[str, tuple[str, dict[str, Value]]] = {
    "NoAdapt": ("noadapt", {}),
    "FOZO": ("fozo", {}),
    "mean only": ("fozo", {"spread": 0.0}),
    "spread only": ("fozo", {"mean": 0.0}),
    "half the strength": ("fozo", {"mean": 0.075, "spread": 0.1}),
    "twice the strength": ("fozo", {"mean": 0.3, "spread": 0.4}),
    "no doubt about few images": ("fozo", {"doubt": 0.0}),
    "all memories alike": ("fozo", {"recall.dimensions": 0.0}),
    "64 images at a time": ("fozo", {"together": 64}),
    "2 passes": ("fozo", {"passes": 2}),
    "passes = auto": ("fozo", {"passes": "auto"}),
}

RECIPE = Recipe(
    name="alignment",
    title="Ingredients of FOZO's own preset, extra corruptions at level 5, 128 images each",
    cost="18,000 passes",
    calibration=512,
    rows=tuple(
        Row(label, method, options, stream, column)
        for label, (method, options) in VARIANTS.items()
        for column, stream in STREAMS.items()
    ),
)
