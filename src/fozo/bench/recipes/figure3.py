"""Figure 3: number of prompts (1-10) and batch size (4-128); ImageNet-C (Gaussian noise, level 5).

    fozo bench figure3 --model timm:vit_base_patch16_224.augreg2_in21k_ft_in1k --imagenet DIR --imagenet-c DIR

Expected (the text gives four points of the figure): 62.5 with 8 prompts; 60.9, 62.3 and 61.2 at batches of 4, 32, 128.
Cost: 16 x 28 x 50,000 = 22 million forward passes: 7 hours on the paper's RTX 4090. ``--images 2000`` shows the shape.
"""

from fozo.bench.plan import AVERAGE, Experiment, Recipe, StreamPlan
from fozo.types import Value


def _row(axis: str, x: int, paper: dict[int, float], batch_size: int = 64, **options: Value) -> Experiment:
    noise = StreamPlan(kinds=("gaussian_noise",), images=50_000, batch_size=batch_size)
    known = {AVERAGE: paper[x]} if x in paper else {}
    return Experiment(f"{axis} = {x}", "fozo", {"passes": 28, **options}, noise, x=x, axis=axis, paper=known)


RECIPE = Recipe(
    name="figure3",
    title="Figure 3: prompts and batch size, ImageNet-C (Gaussian noise, level 5)",
    cost="22 million passes",
    note="The paper gives neither the passes nor the number of images; 28 and 50,000 are assumptions.",
    rows=(
        *(_row("prompts", count, {8: 62.5}, prompts=count) for count in range(1, 11)),
        *(_row("batch size", size, {4: 60.9, 32: 62.3, 128: 61.2}, size) for size in (4, 8, 16, 32, 64, 128)),
    ),
)
