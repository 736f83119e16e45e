"""The paper's tables and figures: what was measured here beside what it reports, as gains over NoAdapt only.

Absolute numbers of a ViT-Tiny beside those of a ViT-B say nothing. A gain says something where its interval is narrower
than the effect that the paper reports; what was not run large enough for that gets one line and a command.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.cells import RECIPE, Cell, Gain
from benchmarks.pairs import BASE
from fozo.bench.plan import AVERAGE, load_recipe

MEASURED = {"table1": "Table 1", "table2": "Table 2"}
"""Tables whose setting, continual at severity 5, is that of the recipe ``evidence``."""
FIGURES = {
    "table3": "Table 3 (8 bits)",
    "table4": "Table 4 (ImageNet-R, -Sketch)",
    "table5": "Table 5 (components)",
    "tableD1": "Table D.1 (alpha)",
    "tableD2": "Table D.2 (beta)",
    "tableD3": "Table D.3 (lambda)",
    "figure1": "Figure 1, Table C.1 (time)",
    "figure3": "Figure 3 (prompts, batches)",
    "figureE1": "Figure E.1 (mixed)",
}
BIG = "timm:vit_base_patch16_224.augreg2_in21k_ft_in1k"


def verdict(ours: Gain, paper: float) -> str:
    """Compare a gain with the paper's, as far as its interval allows."""
    if ours.half >= abs(paper):
        return "cannot be told: the interval is wider than the effect"
    if ours.low <= paper <= ours.high:
        return "agrees" if ours.side else "agrees, but is a tie as well"
    if ours.side == 0:
        return "no such effect here"
    if (ours.value > 0) != (paper > 0):
        return "the opposite here"
    return "the same sign, smaller" if abs(ours.value) < abs(paper) else "the same sign, larger"


def effect(name: str) -> str:
    """Say what the paper reports for FOZO: gains over NoAdapt, or how far its numbers are apart."""
    rows = load_recipe(name).rows
    base = {row.column: row.paper[row.column] for row in rows if row.label == BASE and row.column in row.paper}
    gains = [
        f"{row.label if row.column == AVERAGE else row.column} {row.paper[row.column] - base[row.column]:+.1f}"
        for row in rows
        if row.method == "fozo" and row.column in base and row.column in row.paper
    ]
    numbers = [max(row.paper.values()) for row in rows if row.paper]
    apart = f"numbers {max(numbers) - min(numbers):.1f} apart" if numbers else "curves without numbers"
    return ", ".join(gains) or apart


def reproduction(cells: Sequence[Cell]) -> list[str]:
    """Parts of the page: one table, of what was measured and of what was not run."""
    cell = next((c for c in cells if c.source == RECIPE and c.scenario == "continual" and c.severity == 5), None)
    where = "here" if cell is None else f"here: {cell.model}, {cell.images} images"
    lines = [f"| | gain in the paper (ViT-B, 5000 images) | {where} | |", "|---|---:|---:|---|"]
    for name, title in MEASURED.items():
        rows = {row.label: row.paper[AVERAGE] for row in load_recipe(name).rows}
        for label, average in rows.items():
            paper = average - rows[BASE]
            if label != BASE and cell is not None and label in cell.rows:
                ours = cell.gain(label)
                lines.append(f"| {title}, {label} | {paper:+.1f} | {ours} | {verdict(ours, paper)} |")
            elif label != BASE:
                lines.append(f"| {title}, {label} | {paper:+.1f} | - | not run: `fozo bench {name}` |")
    lines += [f"| {title} | {effect(name)} | - | not run: `fozo bench {name}` |" for name, title in FIGURES.items()]
    note = (
        "What was not run needs the model, ImageNet-C (-R, -Sketch) and a graphics card; with them, add to a command "
        f"`--model {BIG} --imagenet DIR --imagenet-c DIR` (for Table 4 `--imagenet-r DIR --imagenet-sketch DIR`)."
    )
    return [note, "\n".join(lines)]
