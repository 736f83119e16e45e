"""Table D.3: the trade-off lambda of Eq. 15 from 0.1 to 0.9; ImageNet-C (5k, level 5), continual, 2 passes.

    fozo bench tableD3 --model timm:vit_base_patch16_224.augreg2_in21k_ft_in1k --imagenet DIR --imagenet-c DIR

Expected: 59.52 at 0.4, the default; all nine are in the data below.
Cost: 9 x 2 x 75,000 = 1.35 million forward passes: half an hour on the paper's RTX 4090.
"""

from fozo.bench.plan import Recipe
from fozo.bench.recipes._paper import sweep

RECIPE = Recipe(
    name="tableD3",
    title="Table D.3: trade-off lambda of Eq. 15, ImageNet-C (5k, level 5), continual, 2 passes",
    cost="1.35 million passes",
    rows=sweep("lambda", "weight", "59.31 59.30 59.35 59.52 59.50 59.34 59.30 59.27 59.16"),
)
