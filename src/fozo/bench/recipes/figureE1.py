"""Figure E.1: all corruptions mixed in one stream; ImageNet-C (5k, level 5).

    fozo bench figureE1 --model timm:vit_base_patch16_224.augreg2_in21k_ft_in1k --imagenet DIR --imagenet-c DIR

Expected: the paper shows curves without numbers; FOZO ends above ZOA and FOA.
Cost: 5,010 images (334 of each corruption), 410,000 forward passes: 10 minutes on the paper's RTX 4090.
"""

from fozo.bench.plan import Experiment, Recipe, StreamPlan

MIXED = StreamPlan(scenario="mixed", images=334)

RECIPE = Recipe(
    name="figureE1",
    title="Figure E.1: mixed shifts, ImageNet-C (5k, level 5)",
    cost="410,000 passes",
    note="The paper shows curves and no numbers: FOZO should end above ZOA and FOA. 5000 images are drawn there from "
    "all corruptions; here every corruption gives the same 334.",
    rows=(
        Experiment("FOA", "foa", {"passes": 28}, MIXED),
        Experiment("ZOA", "zoa", {"passes": 28}, MIXED),
        Experiment("FOZO", "fozo", {"passes": 26}, MIXED),
    ),
)
