"""Table D.1: the decay factor alpha of Eq. 12 from 0.1 to 0.9; ImageNet-C (5k, level 5), continual, 2 passes.

    fozo bench tableD1 --model timm:vit_base_patch16_224.augreg2_in21k_ft_in1k --imagenet DIR --imagenet-c DIR

Expected: 59.52 at 0.9, the default; all nine are in the data below.
Cost: 9 x 2 x 75,000 = 1.35 million forward passes: half an hour on the paper's RTX 4090.
"""

from fozo.bench.plan import Recipe
from fozo.bench.recipes._paper import sweep

RECIPE = Recipe(
    name="tableD1",
    title="Table D.1: decay factor alpha of Eq. 12, ImageNet-C (5k, level 5), continual, 2 passes",
    cost="1.35 million passes",
    rows=sweep("alpha", "schedule.decay", "59.13 59.15 59.04 59.34 59.33 59.45 59.47 59.50 59.52"),
)
