"""Quick look: all methods but CAZO on four corruptions, 128 images each; minutes on a laptop with a ViT-Tiny.

    fozo bench quick --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR

Expected: no numbers of the paper are for this setting; docs/results.md says what to expect of a short stream.
Cost: 512 images a method, 11,200 forward passes: about 15 minutes on one core with a ViT-Tiny.
"""

from fozo.bench.plan import Experiment, Recipe, StreamPlan
from fozo.bench.recipes.rivals import METHODS

SMALL = StreamPlan(kinds=("gaussian_noise", "defocus_blur", "fog", "contrast"), severity=3, images=128, batch_size=32)

RECIPE = Recipe(
    name="quick",
    title="A quick look: fourteen methods, four corruptions, 128 images each, level 3",
    cost="11,200 passes",
    calibration=256,
    rows=tuple(
        Experiment(label, method, options, SMALL)
        for label, (method, options) in METHODS.items()
        if method != "cazo"  # whose 41 passes take longer than all the others together
    ),
)
