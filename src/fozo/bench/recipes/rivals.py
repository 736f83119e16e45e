"""All fifteen methods side by side: 15 corruptions, continual, at 1 or 2 passes, and CAZO at its 41; FOZO twice.

    fozo bench rivals --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR --severity 3

Expected: docs/results.md has them on the longer streams of the recipe ``evidence``.
Cost: 1,920 images a method, about 146,000 forward passes (a backward pass counted as two): 100 minutes on one core.
CAZO alone makes 79,000 of them; ``--methods`` can leave it out.
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
    "NEO": ("neo", {}),
    "GAIN": ("gain", {}),
    "PEA": ("pea", {}),
    "CAZO": ("cazo", {}),
}

RECIPE = Recipe(
    name="rivals",
    title="All fifteen methods on 15 corruptions, continual",
    cost="146,000 passes",
    calibration=512,
    rows=tuple(Experiment(label, method, options, SHORT) for label, (method, options) in METHODS.items()),
)
