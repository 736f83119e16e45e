"""Narrow content, as a camera sees it: each stream is of one group of classes (dogs, food, ...), none tuned on.

    fozo bench narrow --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR --seeds 0,1,2

Clean images and a corruption of each family at level 3, every domain begun afresh. A method that pulls statistics to
those of all classes takes a change of content for a corruption; here it shows. Calibration is on all classes.
Expected: what ``python -m benchmarks.narrow RUNS`` makes of the runs; the paper has no such numbers.
Cost: 4,900 images a method and seed, 360,000 forward passes (a backward pass counted as two), 200,000 of them
CAZO's: four hours on one core, 100 minutes without it.
"""

from fozo.bench.plan import Methods, Recipe, StreamPlan, grid
from fozo.bench.recipes import rivals
from fozo.data.groups import HELD_OUT

KINDS = ("clean", "gaussian_noise", "defocus_blur", "fog", "brightness", "jpeg_compression")
STREAMS = {
    group: StreamPlan(
        data="clean", scenario="episodic", kinds=KINDS, severity=3, images=60, batch_size=16, classes=group
    )
    for group in HELD_OUT
}  # fmt: skip
METHODS: Methods = {label: method for label, method in rivals.METHODS.items() if label != "FOZO (paper)"}

RECIPE = Recipe(
    name="narrow",
    title="All fifteen methods on narrow content: 14 groups of classes, clean and under five corruptions at level 3",
    cost="360,000 passes",
    calibration=1000,
    rows=grid(METHODS, STREAMS),
)
