"""Quick look: all ten methods on four corruptions, 128 images each; minutes on a laptop with a ViT-Tiny.

    fozo bench quick --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR

Expected: no numbers of the paper are for this setting; adapted methods should beat NoAdapt on contrast and fog.
Cost: 512 images a method, 7,700 forward passes: about 10 minutes on one core with a ViT-Tiny.
"""

from fozo.bench.experiment import StreamPlan, Value
from fozo.bench.recipe import Recipe, Row

SMALL = StreamPlan(kinds=("gaussian_noise", "defocus_blur", "fog", "contrast"), severity=3, images=128, batch_size=32)
METHODS: dict[str, tuple[str, dict[str, Value]]] = {
    "NoAdapt": ("noadapt", {}),
    "LAME": ("lame", {}),
    "T3A": ("t3a", {}),
    "TENT": ("tent", {}),
    "SAR": ("sar", {}),
    "EATA": ("eata", {}),
    "DeYO": ("deyo", {}),
    "FOA": ("foa", {"passes": 2}),
    "ZOA": ("zoa", {"passes": 2}),
    "FOZO (official)": ("fozo", {"passes": 2, "preset": "official"}),
    "FOZO": ("fozo", {}),
}

RECIPE = Recipe(
    name="quick",
    title="A quick look: ten methods, four corruptions, 128 images each, level 3",
    cost="7,700 passes",
    calibration=256,
    rows=tuple(Row(label, method, options, SMALL) for label, (method, options) in METHODS.items()),
)
