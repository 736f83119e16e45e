"""Table 3: forward-only methods on a model quantised to 8 bits by PTQ4ViT; ImageNet-C (5k, level 5), continual.

    fozo bench table3 --model timm:vit_base_patch16_224.augreg2_in21k_ft_in1k --imagenet DIR --imagenet-c DIR

The model is quantised first, on 32 of the clean images that are not in the stream, and the scales are saved beside the
results. An INT8 file (``fozo export --int8``) as --model is run as it is, on integer kernels; leave ZOA out there
(--methods noadapt,lame,t3a,foa,fozo,align), because it changes LayerNorms, which ONNX files keep to themselves.

Expected (the paper's averages): NoAdapt 54.48, LAME 52.79, T3A 52.67, FOA 57.07, ZOA 56.91, FOZO 58.00.
Cost: 7 x 75,000 images, 750,000 forward passes in all, each longer than an unquantised one.
"""

from fozo.bench.plan import Experiment, Recipe
from fozo.bench.recipes._paper import FIVE_K, rows

BITS = "ptq4vit8"
PAPER = """
NoAdapt | noadapt | 56.2 55.9 56.5 45.8 34.6 52.1 43.5 61.4 62.1 65.9 77.3 30.4 43.5 65.5 66.5 54.48
LAME    | lame    | 55.8 55.6 56.2 45.5 33.6 51.7 42.7 58.4 61.1 64.5 77.1 16.4 42.0 64.9 66.3 52.79
T3A     | t3a     | 56.0 56.4 57.8 42.3 36.1 53.0 43.7 62.3 58.2 56.4 77.3 11.1 43.9 66.9 68.6 52.67
FOA     | foa 2   | 56.5 56.5 57.3 47.7 36.2 53.1 45.1 63.2 64.6 69.9 77.4 48.6 46.0 66.2 67.6 57.07
ZOA     | zoa 2   | 57.1 56.8 57.7 47.8 37.6 54.1 46.7 63.4 62.9 65.3 77.4 46.2 46.1 67.0 67.4 56.91
FOZO    | fozo 2  | 57.5 56.6 57.7 49.3 38.3 54.1 47.7 64.1 64.7 68.1 77.1 51.4 48.5 66.6 68.2 58.00
"""

RECIPE = Recipe(
    name="table3",
    title="Table 3: forward-only methods on an 8-bit model, ImageNet-C (5k, level 5), continual",
    cost="750,000 passes",
    note="The paper does not say how many passes FOA, ZOA and FOZO make here; two are taken, as in its Table 1.",
    rows=(*rows(PAPER, BITS), Experiment("Align", "align", stream=FIVE_K, quantise=BITS)),  # ours is not in the paper
)
