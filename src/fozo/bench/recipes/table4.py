"""Table 4: forward-only methods on ImageNet-R and -Sketch; and on ImageNet-V2, which the paper names without numbers.

    fozo bench table4 --model timm:vit_base_patch16_224.augreg2_in21k_ft_in1k --imagenet DIR \
        --imagenet-r DIR --imagenet-sketch DIR --imagenet-v2 DIR

Expected (R, Sketch): NoAdapt 59.5, 44.9; LAME 58.9, 44.4; T3A 55.1, 48.3; FOA 63.2, 49.7; ZOA 63.6, 49.8;
FOZO 64.1, 50.5. FOA's lambda is 0.2 on ImageNet-R, as its authors have it.
Cost: 30,000 + 50,889 + 10,000 images, 9 passes each for the six methods: 820,000 forward passes.
"""

from fozo.bench.plan import Experiment, Recipe, StreamPlan
from fozo.types import Value

SETS = {"R": "imagenet-r", "Sketch": "imagenet-sketch", "V2": "imagenet-v2"}
PAPER = {
    "NoAdapt": {"R": 59.5, "Sketch": 44.9},
    "LAME": {"R": 58.9, "Sketch": 44.4},
    "T3A": {"R": 55.1, "Sketch": 48.3},
    "FOA": {"R": 63.2, "Sketch": 49.7},
    "ZOA": {"R": 63.6, "Sketch": 49.8},
    "FOZO": {"R": 64.1, "Sketch": 50.5},
}


def _row(label: str, numbers: dict[str, float], column: str, data: str) -> Experiment:
    options: dict[str, Value] = {"passes": 2} if label in ("FOA", "ZOA", "FOZO") else {}
    if (label, column) == ("FOA", "R"):
        options["weight"] = 0.2
    paper = {column: numbers[column]} if column in numbers else {}
    return Experiment(label, label.lower(), options, StreamPlan(data=data, kinds=("clean",)), column, paper=paper)


RECIPE = Recipe(
    name="table4",
    title="Table 4: ImageNet-R, ImageNet-Sketch and ImageNet-V2",
    cost="820,000 passes",
    note="Sets whose folder is not given are left out. The paper has no numbers for ImageNet-V2.",
    rows=tuple(_row(label, numbers, column, data) for label, numbers in PAPER.items() for column, data in SETS.items()),
)
