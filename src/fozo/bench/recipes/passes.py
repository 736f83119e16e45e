"""Accuracy per forward pass: what more passes buy each forward-only method, continual, four corruptions at level 3.

    fozo bench passes --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR

Expected: what docs/results.md shows for ViT-Tiny; the paper's Figure 1 is drawn against seconds, on other images.
Cost: 192 images a row, 172 passes in all rows together: 33,000 forward passes, 23 minutes on one core with a ViT-Tiny.
"""

from fozo.bench.plan import Experiment, Recipe, StreamPlan
from fozo.bench.recipes.streams import FAMILIES

PLAN = StreamPlan(kinds=FAMILIES, severity=3, images=48, batch_size=16)
PASSES = (2, 4, 8, 28)
METHODS: dict[str, tuple[int, ...]] = {
    "NoAdapt": (), "LAME": (), "T3A": (), "FOA": PASSES, "ZOA": PASSES, "FOZO": PASSES, "Align": (1, *PASSES),
}  # fmt: skip
"""Passes of each method, which is called like its label; none where they cannot be chosen."""

RECIPE = Recipe(
    name="passes",
    title="Accuracy per forward pass, four corruptions at level 3, continual",
    cost="33,000 passes",
    calibration=512,
    rows=tuple(
        Experiment(
            name if n == 1 else f"{name}, {n} passes", name.lower(), {"passes": n}, PLAN, x=n, axis=f"passes of {name}"
        )
        if n
        else Experiment(name, name.lower(), {}, PLAN)
        for name, passes in METHODS.items()
        for n in passes or (0,)
    ),
)
