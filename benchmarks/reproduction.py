"""The paper's tables and figures: what was measured here beside what it reports, as gains over NoAdapt only.

Absolute numbers of a ViT-Tiny beside those of a ViT-B say nothing. A gain says something where its interval is narrower
than the effect that the paper reports; what was not run large enough for that gets one line and a command.
"""

from collections.abc import Sequence

from benchmarks.cells import Cell, Gain
from fozo.bench.gains import BASE
from fozo.bench.plan import AVERAGE, TUNED, load_recipe

MEASURED = {"table1": "Table 1", "table2": "Table 2"}
"""Tables whose setting, continual at severity 5, is that of the recipe ``evidence``."""
FIGURES = {
    "table3": "8 bits",
    "table4": "ImageNet-R, -Sketch",
    "table5": "components",
    "tableD1": "alpha",
    "tableD2": "beta",
    "tableD3": "lambda",
    "figure1": "and Table C.1: time",
    "figure3": "prompts, batches",
    "figureE1": "mixed",
}
"""The others, and what they are of."""
BIG = "timm:vit_base_patch16_224.augreg2_in21k_ft_in1k"


def verdict(ours: Gain, paper: float) -> str:
    """Compare a gain with the paper's, as far as its interval allows."""
    if ours.half >= abs(paper):
        return "not measured well enough: the interval is wider than the effect"
    if ours.low <= paper <= ours.high:
        return "agrees" if ours.side else "agrees, but is not significant"
    if ours.side == 0:
        return "no such effect here"
    if (ours.value > 0) != (paper > 0):
        return "the opposite here"
    return "the same sign, smaller" if abs(ours.value) < abs(paper) else "the same sign, larger"


def effect(name: str) -> str:
    """Say what gains over NoAdapt the paper reports for FOZO; nothing where it has none."""
    rows = load_recipe(name).rows
    base = {row.column: row.paper[row.column] for row in rows if row.label == BASE and row.column in row.paper}
    gains = [
        f"{row.label if row.column == AVERAGE else row.column} {row.paper[row.column] - base[row.column]:+.1f}"
        for row in rows
        if row.method == "fozo" and row.column in base and row.column in row.paper
    ]
    return ", ".join(gains)


def beside(cell: Cell, label: str, paper: float) -> str:
    """A row's gain here with what it says of the paper's, for a table."""
    if label not in cell.rows:
        return "-"
    ours = cell.gain(label)
    return f"{ours}: {verdict(ours, paper)}"


def reproduction(cells: Sequence[Cell]) -> tuple[str, str]:
    """A table of what was measured here beside the paper's gains, if anything was, and a note on what was not."""
    cell = next((c for c in cells if c.scenario == "continual" and c.severity == 5), None)
    lines: list[str] = []
    absent: list[str] = []
    for name, title in MEASURED.items():
        rows = {row.label: row.paper[AVERAGE] for row in load_recipe(name).rows}
        missing = []
        for label, average in rows.items():
            paper = average - rows[BASE]
            if cell is not None and label in cell.rows and label != BASE:
                here = [beside(cell, each, paper) for each in (label, label + TUNED)]
                lines.append("| " + " | ".join([f"{title}, {label}", f"{paper:+.1f}", *here]) + " |")
            elif label != BASE:
                missing.append(f"{label} {paper:+.1f}")
        absent += [f"`{name}` ({', '.join(missing)})"] if missing else []
    absent += [f"`{name}` ({'; '.join(filter(None, (subject, effect(name))))})" for name, subject in FIGURES.items()]
    where = "" if cell is None else f"{cell.model}, {cell.images} images: "
    heads = ["| | paper: ViT-B, 5000 images | " + where + "published constants | tuned |", "|---|---:|---|---|"]
    note = (
        f"Gains over NoAdapt. Not run here, each by `fozo bench NAME`: {', '.join(absent)}. They need ImageNet-C (-R, "
        f"-Sketch), the model and a graphics card: add `--model {BIG} --imagenet DIR --imagenet-c DIR`."
    )
    return "\n".join([*heads, *lines]) if lines else "", note
