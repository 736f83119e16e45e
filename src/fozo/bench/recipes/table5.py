"""Table 5: what each component of FOZO adds; ImageNet-C (5k, level 5), continual.

    fozo bench table5 --model timm:vit_base_patch16_224.augreg2_in21k_ft_in1k --imagenet DIR --imagenet-c DIR

Expected: NoAdapt 55.1, entropy only 57.3, with alignment 60.1, with dynamic perturbation 62.7.
Cost: 75,000 + 3 x 28 x 75,000 = 6.4 million forward passes: 2 hours on the paper's RTX 4090.
"""

from fozo.bench.plan import AVERAGE, Experiment, Recipe
from fozo.bench.recipes._paper import FIVE_K

RECIPE = Recipe(
    name="table5",
    title="Table 5: components of FOZO on ImageNet-C (5k, level 5), continual",
    cost="6.4 million passes",
    note="The paper does not give the passes; its last row equals FOZO at 28 in Table 2. Its NoAdapt is 55.1 here and "
    "55.57 in Table 1. Without dynamic perturbation, epsilon stays at 0.5.",
    rows=(
        Experiment("NoAdapt", "noadapt", {}, FIVE_K, paper={AVERAGE: 55.1}),
        Experiment(
            "Entropy only", "fozo", {"passes": 28, "weight": 0.0, "schedule.decay": 1.0}, FIVE_K, paper={AVERAGE: 57.3}
        ),
        Experiment(
            "+ Deep-shallow alignment", "fozo", {"passes": 28, "schedule.decay": 1.0}, FIVE_K, paper={AVERAGE: 60.1}
        ),
        Experiment("+ Dynamic perturbation", "fozo", {"passes": 28}, FIVE_K, paper={AVERAGE: 62.7}),
    ),
)
