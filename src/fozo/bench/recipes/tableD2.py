"""Table D.2: the moving average factor beta of Eq. 12 from 0.1 to 0.9; ImageNet-C (5k, level 5), continual, 2 passes.

    fozo bench tableD2 --model timm:vit_base_patch16_224.augreg2_in21k_ft_in1k --imagenet DIR --imagenet-c DIR

Expected: 59.52 at 0.9, the default; all nine are in the data below.
Cost: 9 x 2 x 75,000 = 1.35 million forward passes: half an hour on the paper's RTX 4090.
"""

from fozo.bench.plan import Recipe
from fozo.bench.recipes._paper import sweep

RECIPE = Recipe(
    name="tableD2",
    title="Table D.2: moving average factor beta of Eq. 12, ImageNet-C (5k, level 5), continual, 2 passes",
    cost="1.35 million passes",
    rows=sweep("beta", "schedule.ema_decay", "59.02 59.05 59.14 59.23 59.27 59.26 59.38 59.50 59.52"),
)
