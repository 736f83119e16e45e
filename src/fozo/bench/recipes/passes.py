"""Accuracy per forward pass: what more passes buy each forward-only method, continual, four corruptions at level 3.

    fozo bench passes --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR

Expected: what docs/results.md shows for ViT-Tiny; the paper's Figure 1 is drawn against seconds, on other images.
Cost: 192 images a row, 172 passes in all rows together: 33,000 forward passes, 23 minutes on one core with a ViT-Tiny.
"""

from fozo.bench.plan import Experiment, Recipe, StreamPlan
from fozo.bench.recipes.streams import FAMILIES
from fozo.types import Value

PLAN = StreamPlan(kinds=FAMILIES, severity=3, images=48, batch_size=16)
PASSES = (2, 4, 8, 28)
METHODS: dict[str, tuple[str, dict[str, Value], tuple[int, ...]]] = {
    "NoAdapt": ("noadapt", {}, ()),
    "LAME": ("lame", {}, ()),
    "T3A": ("t3a", {}, ()),
    "FOA": ("foa", {}, PASSES),
    "ZOA": ("zoa", {}, PASSES),
    "FOZO": ("fozo", {}, PASSES),
    "Align": ("align", {}, (1, *PASSES)),
}

RECIPE = Recipe(
    name="passes",
    title="Accuracy per forward pass, four corruptions at level 3, continual",
    cost="33,000 passes",
    calibration=512,
    rows=tuple(
        Experiment(
            f"{label}, {n} passes" if n > 1 else label,
            method,
            {**options, "passes": n},
            PLAN,
            x=n,
            axis=f"passes of {label}",
        )
        if n
        else Experiment(label, method, options, PLAN)
        for label, (method, options, passes) in METHODS.items()
        for n in passes or (0,)
    ),
)
