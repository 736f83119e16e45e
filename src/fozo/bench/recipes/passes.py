"""Accuracy per forward pass: what more passes buy the methods that can make more, four corruptions at level 3.

    fozo bench passes --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR

Expected: docs/results.md has gains against passes; the paper's Figure 1 is drawn against seconds, on other images.
Cost: 192 images a row, 257 passes in all rows together (a backward pass counted as two): 50,000 forward passes, 35
minutes on one core with a ViT-Tiny.
"""

from fozo.bench.plan import Experiment, Recipe, StreamPlan
from fozo.bench.recipes.streams import FAMILIES

PLAN = StreamPlan(kinds=FAMILIES, severity=3, images=48, batch_size=16)
PASSES = (2, 4, 8, 28)
METHODS: dict[str, tuple[int, ...]] = {
    "NoAdapt": (), "LAME": (), "T3A": (), "FOA": PASSES, "ZOA": PASSES, "FOZO": PASSES, "Align": (1, *PASSES),
    "TENT": (), "EATA": (), "SAR": (), "DeYO": (), "NEO": (), "GAIN": (), "PEA": (2, 4, 8), "CAZO": (3, 9, 41),
}  # fmt: skip
"""Passes of each method, which is called like its label; none where they cannot be chosen."""


def _row(name: str, n: int) -> Experiment:
    label = name if n == 1 else f"{name}, {{passes}} passes"
    return Experiment(label, name.lower(), {"passes": n}, PLAN, x=n, axis=f"passes of {name}")


RECIPE = Recipe(
    name="passes",
    title="Accuracy per forward pass, four corruptions at level 3, continual",
    cost="50,000 passes",
    calibration=512,
    rows=tuple(
        _row(name, n) if n else Experiment(name, name.lower(), {}, PLAN)
        for name, passes in METHODS.items()
        for n in passes or (0,)
    ),
)
