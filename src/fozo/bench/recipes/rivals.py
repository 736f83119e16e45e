"""All eleven methods side by side: 15 corruptions, continual, at 1 or 2 forward passes; FOZO under both presets.

    fozo bench rivals --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR --severity 3

Expected: what docs/results.md shows for ViT-Tiny and DeiT-Tiny at severities 3 and 5; the paper has no such numbers.
Cost: 1,920 images a method, about 60,000 forward passes (a backward pass counted as two): 40 minutes on one core.
"""

from fozo.bench.plan import Experiment, Methods, Recipe, StreamPlan

SHORT = StreamPlan(images=128)
METHODS: Methods = {
    "NoAdapt": ("noadapt", {}),
    "LAME": ("lame", {}),
    "T3A": ("t3a", {}),
    "FOA": ("foa", {"passes": 2}),
    "ZOA": ("zoa", {"passes": 2}),
    "FOZO (paper)": ("fozo", {"passes": 2, "preset": "paper"}),
    "FOZO": ("fozo", {"passes": 2}),
    "Align": ("align", {}),
    "TENT": ("tent", {}),
    "EATA": ("eata", {}),
    "SAR": ("sar", {}),
    "DeYO": ("deyo", {}),
}

RECIPE = Recipe(
    name="rivals",
    title="All eleven methods on 15 corruptions, continual",
    cost="60,000 passes",
    calibration=512,
    rows=tuple(Experiment(label, method, options, SHORT) for label, (method, options) in METHODS.items()),
)
