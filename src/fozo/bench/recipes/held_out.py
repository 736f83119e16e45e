"""Align against NoAdapt on the classes that it was not tuned on: clean images and all 15 corruptions, continual.

    fozo bench held_out --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR --seeds 0,1,2

The images are of the 508 classes in all held-out groups, mixed. ``--severity`` chooses another severity than 5.
Expected: what ``python -m benchmarks.narrow RUNS`` makes of the runs; the paper has no such numbers.
Cost: 5,120 images a row and seed: 20,000 forward passes a seed, 20 minutes on one core with a ViT-Tiny.
"""

from fozo.bench.plan import AVERAGE, Recipe, StreamPlan, grid
from fozo.bench.recipes import vs_noadapt
from fozo.data.corruptions import KINDS

PLAN = StreamPlan(data="clean", kinds=("clean", *KINDS), images=320, batch_size=32, classes="held_out")

RECIPE = Recipe(
    name="held_out",
    title="Align against NoAdapt on held-out classes, clean and under 15 corruptions, continual",
    cost="20,000 passes",
    calibration=1000,
    rows=grid(
        {label: vs_noadapt.METHODS[label] for label in ("NoAdapt", "Align", "Align, {passes} passes")}, {AVERAGE: PLAN}
    ),
)
