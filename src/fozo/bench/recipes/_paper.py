"""What the recipes of Tables 1 and 2 share: the order of the paper's columns."""

from __future__ import annotations

from fozo.bench.experiment import StreamPlan, Value
from fozo.bench.recipe import AVERAGE, Row
from fozo.data.corruptions import KINDS

FIVE_K = StreamPlan(images=5000)
"""ImageNet-C (5k, level 5), continual, batches of 64: the paper's main setting."""

COLUMNS = (*KINDS, AVERAGE, "seconds", "memory", "parameters")


def row(label: str, method: str, numbers: str, **options: Value) -> Row:
    """Make a row of Table 1 or 2 from the numbers as they stand in the paper."""
    values = [float(number) for number in numbers.split()]
    return Row(label, method, options, FIVE_K, paper=dict(zip(COLUMNS, values, strict=True)))
