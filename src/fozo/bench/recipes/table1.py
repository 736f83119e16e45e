"""Table 1: forward-only methods at 1 or 2 forward passes; ImageNet-C (5k, level 5), continual.

    fozo bench table1 --model timm:vit_base_patch16_224.augreg2_in21k_ft_in1k --imagenet DIR --imagenet-c DIR

Expected (the paper's averages): NoAdapt 55.57, LAME 54.16, T3A 53.76, FOA 58.13, ZOA 58.56, FOZO 59.52.
Cost: 6 x 75,000 images, 675,000 forward passes in all: 20 minutes on the paper's RTX 4090.
"""

from fozo.bench.plan import Recipe
from fozo.bench.recipes._paper import rows

PAPER = """
NoAdapt | noadapt | 57.1 57.0 57.7 46.8 35.9 52.8 45.9 62.4 62.6 65.8 78.0 32.1 45.3 67.0 67.4 55.57 94 819 0
LAME    | lame    | 56.7 56.4 57.4 46.2 35.2 52.1 45.1 58.6 61.8 62.9 77.7 24.6 43.9 66.8 66.9 54.16 97 819 0
T3A     | t3a     | 56.8 57.7 59.1 40.8 36.9 53.2 46.1 62.2 59.6 60.4 78.2 12.1 45.5 68.2 69.5 53.76 311 823 0
FOA     | foa 2   | 57.2 57.5 58.1 48.6 37.7 54.3 47.6 64.2 65.2 66.8 78.0 51.3 48.6 67.7 69.1 58.13 224 831 2304
ZOA     | zoa 2   | 58.0 58.0 59.5 49.8 39.5 55.3 49.0 64.6 64.3 66.8 78.0 48.9 50.2 67.8 68.7 58.56 198 859 26145
FOZO    | fozo 2  | 57.8 57.8 58.9 50.2 39.2 55.3 49.2 65.3 66.8 67.5 78.6 56.9 51.0 68.3 70.1 59.52 179 831 2304
"""

RECIPE = Recipe(
    name="table1",
    title="Table 1: forward-only methods on ImageNet-C (5k, level 5), continual",
    cost="675,000 passes",
    note="The paper's times and memory are of an RTX 4090; compare ratios to NoAdapt, not seconds.",
    rows=rows(PAPER),
)
