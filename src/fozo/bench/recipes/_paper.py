"""What the recipes of Tables 1 to 3 share: the order of the paper's columns."""

from __future__ import annotations

from fozo.bench.experiment import StreamPlan, Value
from fozo.bench.recipe import AVERAGE, Row
from fozo.data.corruptions import KINDS

FIVE_K = StreamPlan(images=5000)
"""ImageNet-C (5k, level 5), continual, batches of 64: the paper's main setting."""

COLUMNS = (*KINDS, AVERAGE, "seconds", "memory", "parameters")


def row(label: str, method: str, numbers: str, quantise: str = "", **options: Value) -> Row:
    """Make a row of Table 1, 2 or 3 from the numbers as they stand in the paper; Table 3 has no costs."""
    values = [float(number) for number in numbers.split()]
    columns = COLUMNS[: len(KINDS) + 1] if quantise else COLUMNS
    paper = dict(zip(columns, values, strict=True))
    return Row(label, method, options, FIVE_K, paper=paper, quantise=quantise)
