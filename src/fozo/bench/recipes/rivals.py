"""All ten methods side by side: 15 corruptions, continual, at 1 or 2 forward passes; FOZO under all presets.

    fozo bench rivals --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR --severity 3

Expected: what docs/results.md shows for ViT-Tiny and DeiT-Tiny at severities 3 and 5; the paper has no such numbers.
Cost: 1,920 images a method, about 60,000 forward passes (a backward pass counted as two): 40 minutes on one core.
"""

from fozo.bench.experiment import StreamPlan, Value
from fozo.bench.recipe import Recipe, Row

SHORT = StreamPlan(images=128)
METHODS: dict[str, tuple[str, dict[str, Value]]] = {
    "NoAdapt": ("noadapt", {}),
    "LAME": ("lame", {}),
    "T3A": ("t3a", {}),
    "FOA": ("foa", {"passes": 2}),
    "ZOA": ("zoa", {"passes": 2}),
    "FOZO (paper)": ("fozo", {"passes": 2, "preset": "paper"}),
    "FOZO (official)": ("fozo", {"passes": 2, "preset": "official"}),
    "FOZO": ("fozo", {}),
    "TENT": ("tent", {}),
    "EATA": ("eata", {}),
    "SAR": ("sar", {}),
    "DeYO": ("deyo", {}),
}

RECIPE = Recipe(
    name="rivals",
    title="All ten methods on 15 corruptions, continual",
    cost="60,000 passes",
    calibration=512,
    rows=tuple(Row(label, method, options, SHORT) for label, (method, options) in METHODS.items()),
)
