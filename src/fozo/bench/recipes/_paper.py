"""What the recipes of the paper's tables share: its main setting, and how its rows are written down."""

from __future__ import annotations

from fozo.bench.plan import AVERAGE, Experiment, StreamPlan
from fozo.data.corruptions import KINDS
from fozo.types import Value

FIVE_K = StreamPlan(images=5000)
"""ImageNet-C (5k, level 5), continual, batches of 64: the paper's main setting."""

COLUMNS = (*KINDS, AVERAGE, "seconds", "memory", "parameters")


def rows(table: str, quantise: str = "") -> tuple[Experiment, ...]:
    """Read Table 1, 2 or 3: lines of label, method and passes, and the numbers as they stand (Table 3: no costs)."""
    found = []
    for line in table.strip().splitlines():
        label, method, numbers = (part.strip() for part in line.split("|"))
        label = label.replace("(FP)", "(FP={passes})")
        name, *passes = method.split()
        options: dict[str, Value] = {"passes": int(passes[0])} if passes else {}
        columns = COLUMNS[: len(KINDS) + 1] if quantise else COLUMNS
        paper = dict(zip(columns, map(float, numbers.split()), strict=True))
        found.append(Experiment(label, name, options, FIVE_K, paper=paper, quantise=quantise))
    return tuple(found)


def sweep(symbol: str, option: str, numbers: str) -> tuple[Experiment, ...]:
    """Rows of Tables D.1 to D.3: FOZO at two passes, with an option going from 0.1 to 0.9."""
    return tuple(
        Experiment(
            f"{symbol} = {tenth / 10}", "fozo", {"passes": 2, option: tenth / 10}, FIVE_K,
            x=tenth / 10, axis=symbol, paper={AVERAGE: float(number)},
        )
        for tenth, number in enumerate(numbers.split(), start=1)
    )  # fmt: skip
