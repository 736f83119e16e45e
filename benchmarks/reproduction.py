"""The paper's tables and figures: what was measured here beside what it reports, as gains over NoAdapt only.

Absolute numbers of a ViT-Tiny beside those of a ViT-B say nothing. A gain says something where its interval is narrower
than the effect that the paper reports; what was not run large enough for that gets one line and a command.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.cells import RECIPE, Cell, Gain
from benchmarks.pairs import BASE
from fozo.bench.plan import AVERAGE, load_recipe

TABLES = {"table1": "Table 1", "table2": "Table 2"}
ELSEWHERE = {
    "table2": "Table 2, rows of 26 to 28 passes",
    "table3": "Table 3 (8 bits)",
    "table4": "Table 4 (ImageNet-R, -Sketch)",
    "table5": "Table 5 (components)",
    "tableD1": "Table D.1 (alpha)",
    "tableD2": "Table D.2 (beta)",
    "tableD3": "Table D.3 (lambda)",
    "figure1": "Figure 1, Table C.1 (time)",
    "figure3": "Figure 3 (prompts, batch size)",
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


def reproduction(cells: Sequence[Cell]) -> list[str]:
    """Parts of the page: a table of gains, and what was not run."""
    cell = next((c for c in cells if c.source == RECIPE and c.scenario == "continual" and c.severity == 5), None)
    parts, lines = [], []
    for name, title in TABLES.items() if cell is not None else ():
        assert cell is not None
        rows = {row.label: row.paper[AVERAGE] for row in load_recipe(name).rows}
        for label, average in rows.items():
            if label != BASE and label in cell.rows:
                paper, ours = average - rows[BASE], cell.gain(label)
                lines.append(f"| {title} | {label} | {paper:+.1f} | {ours} | {verdict(ours, paper)} |")
    if cell is not None and lines:
        heads = f"| | | paper: ViT-B, 5000 images | here: {cell.model}, {cell.images} images | |"
        parts.append("\n".join([heads, "|---|---|---:|---:|---|", *lines]))
    parts.append(
        "Not run here at a size that tells anything, for want of the model, of ImageNet-C, -R and -Sketch, and of time."
        "\nFor those who have them (Table 4 takes `--imagenet-r` and `--imagenet-sketch`):"
    )
    commands = [
        f"fozo bench {name:<9} --model {BIG} --imagenet DIR --imagenet-c DIR  # {what}"
        for name, what in ELSEWHERE.items()
    ]
    return [*parts, "```\n" + "\n".join(commands) + "\n```"]
