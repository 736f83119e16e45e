"""What half precision gives: processor time of plain, Align and FOZO at 2 passes, in float32 and bfloat16.

    python -m benchmarks.precision [--models tiny base] [--batch 8] [--rounds 10]

All six see the same batch in turn, in another order in every round; a figure is the median over the rounds of the ratio
to the plain float32 model. Weights are random, on which speed does not depend. Run it on a quiet machine. Top-1 is
what ``fozo bench`` gives with ``--dtype float32`` and ``--dtype bfloat16``.
"""

import argparse
from collections.abc import Sequence

import numpy as np

import fozo
from benchmarks.common import in_turn, markdown, random_engine, timed
from benchmarks.overhead import pictures

DTYPES = ("float32", "bfloat16")


def ratios(model: str, size: int, rounds: int) -> list[list[str]]:
    """Rows of a table: the name of a method, and its time for each precision over that of plain float32."""
    import torch

    methods: dict[str, fozo.Method] = {}  # type: ignore[type-arg]
    images = pictures(random_engine(model), size)
    for dtype in DTYPES:
        vit = random_engine(model).vit.to(getattr(torch, dtype))
        engine = fozo.load_engine(vit, mean=0.5, std=0.5)
        statistics = fozo.calibrate(engine, [pictures(engine, 16, seed=1)])
        methods[f"plain {dtype}"] = fozo.NoAdapt(engine)
        methods[f"align {dtype}"] = fozo.Align(engine, statistics)
        methods[f"fozo {dtype}"] = fozo.FOZO(engine, statistics, passes=2)
    spent: dict[str, list[float]] = {name: [] for name in methods}
    for number, names in in_turn(list(methods), rounds):
        for name in names:
            (_, processor), _ = timed(methods[name], images * np.float32(0.3))
            if number:
                spent[name].append(processor)
    plain = np.array(spent["plain float32"])
    return [
        [f"{model}, {method}", *(f"{np.median(spent[f'{method} {dtype}'] / plain):.2f}" for dtype in DTYPES)]
        for method in ("plain", "align", "fozo")
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", default=["tiny", "base"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=10)
    a = parser.parse_args(arguments)
    rows = [row for model in a.models for row in ratios(model, a.batch, a.rounds)]
    print(markdown(["processor time over plain float32", *DTYPES], rows))


if __name__ == "__main__":
    main()
