"""docs/results.md and its pictures, from records: every figure and every conclusion is computed.

    python -m benchmarks.results [RECORDS ...] [--page docs/results.md]

RECORDS are folders: their ``.tar.xz`` files are unpacked, and what is found of ``fozo bench evidence``, ``fozo bench
narrow`` and ``python -m benchmarks.newest`` is put on the page; ``results`` by default, and the ``--out`` of a ``fozo
bench`` that still runs may stand beside it. Pictures go to the folder ``results`` beside the page. Sentences are made
in ``benchmarks.conclusions``, pictures in ``benchmarks.pictures``.
"""

from __future__ import annotations

import argparse
import sys
import tarfile
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import conclusions, narrow
from benchmarks.cells import CLEAN, RECIPE, Cell, Gain, name_of, read_evidence, read_newest
from benchmarks.conclusions import OURS, adapting, rivals, words_of
from benchmarks.pairs import BASE
from benchmarks.pictures import curves_picture, gains_picture, map_picture, points_picture
from benchmarks.reproduction import reproduction
from fozo.bench.recipes import evidence
from fozo.bench.store import Group, collect
from fozo.errors import FozoError
from fozo.io import atomic_write

HIDDEN = ("NEO-Cont", "GAIN, raw")
"""Presets of which docs/methods.md tells."""
FEW = 4
"""Corruptions of the cells for methods of many passes."""
WIDTH = 128
CUT = 16.0
"""Points at which the axis of gains ends."""
NARROW = "fozo bench narrow --model WEIGHTS --imagenet DIR --out RUNS"
HEAD = (
    "Written by `python -m benchmarks.results` from the records in `results/`; nothing here is written by hand. "
    "ViT-Tiny and DeiT-Tiny in float32 on images of ImageNet's validation set, batches of 64, source statistics of "
    "512 other images; fifteen corruptions one after the other, never reset (*continual*) or reset at each "
    "(*reset*). Differences are paired by image: an image's mean over the corruptions is one observation. ± is a 95 "
    "% interval over images, and over seeds where there are several; of many such intervals some miss. A tie is an "
    "interval that holds zero. Rivals have their published constants, which were chosen for a ViT-B; *tuned* ones "
    "did best on ViT-Tiny under the four extra corruptions, which also Align's constants come from. Streams of a "
    "few hundred images a corruption are short (the papers have 5000 to 50,000), and nobody's published numbers are "
    "contradicted here."
)
CONTENT = (
    "Streams of one group of classes each (dogs, food, ...), clean and under five corruptions, every domain begun "
    "afresh. Intervals draw batches, and take the same photographs under several corruptions for independent: "
    "somewhat too narrow. By group and corruption: `python -m benchmarks.narrow RUNS`, [method.md](method.md)."
)


def wrapped(words: str) -> str:
    """A paragraph, or an item of a list, in lines of the usual length."""
    inner = "  " if words.startswith("- ") else ""
    return textwrap.fill(words, WIDTH, subsequent_indent=inner, break_long_words=False, break_on_hyphens=False)


def unpack(folders: Iterable[Path], into: Path) -> list[Path]:
    """Unpack every archive of the folders; return where records may lie."""
    found = []
    for folder in folders:
        if not folder.is_dir():
            raise FozoError(f"there is no folder {folder}; give folders with records, such as results")
        found.append(folder)
        for archive in sorted(folder.glob("*.tar.xz")):
            own = into / f"{len(found)}-{archive.name.removesuffix('.tar.xz')}"
            with tarfile.open(archive) as file:
                file.extractall(own, filter="data")
            found.append(own)
    return found


def table(cells: Sequence[Cell]) -> str:
    """Every row in every cell: top-1, the gain over NoAdapt, the calibration error."""
    labels = dict.fromkeys(label for cell in cells for label in cell.rows)
    heads = ["", "passes", *(f"{cell.title} ({cell.images})" for cell in cells)]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for label in labels:
        passes = next(cell.rows[label].passes for cell in cells if label in cell.rows)
        texts = [_words(cell, label) if label in cell.rows else "-" for cell in cells]
        lines.append("| " + " | ".join([label, f"{passes:.2g}", *texts]) + " |")
    return "\n".join(lines)


def _words(cell: Cell, label: str) -> str:
    top, error = f"{cell.top(label):.1f}", f"{cell.rows[label].error:.1f}"
    if label == BASE:
        return f"{top}, {error}"
    gain = cell.gain(label)
    return f"{top} (**{gain}**), {error}" if gain.side else f"{top} ({gain}), {error}"


def narrow_gains(groups: Sequence[Group]) -> dict[str, dict[str, Gain]]:
    """Gains on narrow content by model and row; rows that lack a group of classes are left out."""
    found: dict[str, dict[str, Gain]] = {}
    for group in sorted(groups, key=lambda group: -len(group.runs)):
        whole = len(narrow.pairs(group, BASE))
        column: dict[str, Gain] = {}
        for label in group.labels:
            by_group = narrow.pairs(group, label)
            if label == BASE or len(by_group) != whole:
                continue
            gain, within = narrow.gain([pair for each in by_group.values() for pair in each])
            if within is not None:
                column[label] = Gain(gain, within.low, within.high)
        found[f"{name_of(group.runs[0].experiment.model)}, {whole} groups of classes, severity 3"] = column
    return found


def worst_group(group: Group) -> str:
    """Name the group of classes that Align does worst on, against NoAdapt."""
    gains = {name: narrow.gain(both) for name, both in narrow.pairs(group, OURS).items()}
    name = min(gains, key=lambda name: gains[name][0])
    value, within = gains[name]
    ends = "" if within is None else f" ({within.low:+.1f} to {within.high:+.1f})"
    return f"{name}, {value:+.1f}{ends}, on {name_of(group.runs[0].experiment.model)}"


@dataclass(frozen=True)
class Page:
    """The page's parts; each section is a title, a picture, a conclusion and a command."""

    main: Sequence[Cell]
    """Cells of all corruptions."""
    few: Sequence[Cell]
    """Cells of four, for methods of many passes."""
    narrow: Sequence[Group]
    pictures: Path

    def draw(self, name: str, alt: str, drawn: str) -> str:
        """Write a picture and return what shows it."""
        with atomic_write(self.pictures / f"{name}.svg") as file:
            file.write(drawn.encode())
        return f"![{alt}]({self.pictures.name}/{name}.svg)"

    def losses(self) -> list[str]:
        """What speaks against Align comes first."""
        items = "\n".join(wrapped(item) for item in conclusions.losses(self.main))
        close = conclusions.against_rivals([*self.main, *self.few])
        return ["## Where Align loses, first", items, wrapped(f"{close} What it costs: [cost.md](cost.md).")]

    def gains(self) -> list[str]:
        """All rows in all cells."""
        columns = {
            f"{cell.title}, {cell.images} images": {k: cell.gain(k) for k in adapting(cell)} for cell in self.main
        }
        every = [gain for column in columns.values() for gain in column.values()]
        low, high = max(-CUT, min(gain.low for gain in every)), max(gain.high for gain in every)
        shown = gains_picture("Gains over NoAdapt", columns, low, high)
        legend = (
            "Top-1, gain over NoAdapt (bold: not a tie) and expected calibration error, in percent; in brackets the "
            "images of each corruption."
        )
        return [
            "## Gains over the plain model",
            self.draw("gains", "Gains over NoAdapt of every method in every cell", shown),
            wrapped(f"{conclusions.sides(self.main)} {missing(self.main)}".strip()),
            wrapped(f"{legend} {commands(self.main)}"),
            table(self.main),
        ]

    def learning(self) -> list[str]:
        """How fast each method learns: in the first cell, and where every corruption is begun afresh."""
        cells = [*self.main[:1], *(cell for cell in self.main[1:] if cell.scenario == "reset")][:3]
        panels = {short(cell): (seen(cell), {k: cell.learning(k).tolist() for k in adapting(cell)}) for cell in cells}
        shown = curves_picture("Gain over NoAdapt against images seen", panels, "images of the corruption seen")
        return [
            "## How fast they learn: gain against images seen in a corruption",
            self.draw("learning", "Gain over NoAdapt against images seen in a corruption", shown),
            wrapped(f"{conclusions.learning(self.main)} {commands(cells)}"),
        ]

    def passes(self) -> list[str]:
        """What passes buy: all corruptions, and four where a method makes many."""
        cells = [*self.main[:1], *self.few[:1]]
        panels = {short(cell): {k: (cell.rows[k].passes, cell.gain(k)) for k in adapting(cell)} for cell in cells}
        shown = points_picture(
            "Gain against forward passes", panels, "forward passes an image (a backward pass is two)"
        )
        return [
            "## What passes buy",
            self.draw("passes", "Gain over NoAdapt against forward passes", shown),
            wrapped(f"{conclusions.passes([*self.main[:1], *self.few])} {commands(cells)}"),
            *([table(self.few)] if self.few else []),
        ]

    def corruptions(self) -> list[str]:
        """By corruption and when the stream is clean again: the first cell, and that where a rival comes closest."""
        closest = min(self.main, key=lambda cell: min(cell.gain(OURS, label).low for label in rivals(cell)))
        cells = [self.main[0], *([closest] if closest is not self.main[0] else [])]
        names = [words_of(name) for name in cells[0].domains]
        panels = {}
        for cell in cells:
            order = sorted(adapting(cell), key=lambda label: -cell.gain(label).value)
            domains = [*cell.domains, *([CLEAN] if cell.clean else [])]
            panels[short(cell)] = {label: [cell.gain(label, domains=(name,)) for name in domains] for label in order}
        again = ["clean again"] if any(cell.clean for cell in cells) else []
        shown = map_picture("Gains by corruption", [*names, *again], panels)
        words = " ".join(conclusions.most_and_least(cell) for cell in cells)
        return [
            "## By corruption",
            self.draw("corruptions", "Gains by corruption", shown),
            wrapped(f"{words} {commands(cells)}"),
        ]

    def content(self) -> list[str]:
        """Narrow content."""
        if not self.narrow:
            return []
        gains = narrow_gains(self.narrow)
        worst = conclusions.listed([worst_group(group) for group in self.narrow if OURS in group.labels])
        return [
            "## Narrow content: what a camera sees",
            self.draw("narrow", "Gains on narrow content", gains_picture("Gains on narrow content", gains, -CUT, CUT)),
            wrapped(f"{conclusions.narrow(gains)} Align's worst group: {worst}. {CONTENT} `{NARROW}`."),
        ]

    def __str__(self) -> str:
        """The whole page."""
        parts = [*self.losses(), *self.gains(), *self.learning(), *self.passes(), *self.corruptions(), *self.content()]
        note, rows = reproduction(self.main)
        paper = ["## The paper's tables and figures", wrapped(note), rows]
        return "\n\n".join(["# Results", wrapped(HEAD), *parts, *paper]) + "\n"


def missing(cells: Sequence[Cell]) -> str:
    """Say which published rows no cell has yet, and where older figures of them are."""
    absent = [label for label in evidence.PUBLISHED if not any(label in cell.rows for cell in cells)]
    older = "streams of 64 to 128 images a corruption are in `results/rivals.md`"
    return f"Not run at this size yet: {conclusions.listed(absent)}; {older}." if absent else ""


def short(cell: Cell) -> str:
    """A panel's heading."""
    return f"{cell.title}, {cell.images} images"


def seen(cell: Cell) -> list[int]:
    """Images seen at the end of each batch of a corruption."""
    sizes = next(iter(next(iter(cell.rows[BASE].correct.values())).values()))
    return [sum(images for _, images in sizes[: k + 1]) for k in range(len(sizes))]


def commands(cells: Sequence[Cell]) -> str:
    """The commands that made some cells."""
    found: dict[str, None] = {}
    for cell in cells:
        if cell.source == RECIPE:
            found[f"`fozo bench evidence --model WEIGHTS --imagenet DIR --images {cell.images} --out RUNS`"] = None
            continue
        made = f"python -m benchmarks.newest run WEIGHTS DIR --work WORK --images {cell.images} --batch {cell.batch}"
        if len(cell.domains) <= FEW:
            rows = " ".join(f"--only {label}" for label in cell.rows)
            made += f" --kinds {','.join(cell.domains)} --scenarios {cell.scenario} {rows}"
        found[f"`{made} --out FILE`"] = None
    return f"Made by {conclusions.listed(list(found))}."


def write(records: Sequence[Path], target: Path) -> None:
    """Read all records and write the page and its pictures."""
    with TemporaryDirectory() as scratch:
        roots = unpack(records, Path(scratch))
        groups = [group for root in roots if any(root.glob("**/recipe.json")) for group in collect(root)]
        lines = [path for root in roots for path in sorted(root.glob("*.jsonl")) if "tuning" not in path.name]
        cells = [*read_evidence(groups), *read_newest(lines)]
        for cell in cells:
            cell.rows = {label: row for label, row in cell.rows.items() if label not in HIDDEN}
        main = [cell for cell in cells if len(cell.domains) > FEW and OURS in cell.rows]
        if not main:
            raise FozoError("no records of all corruptions with NoAdapt and Align were found; see results/README.md")
        few = [cell for cell in cells if len(cell.domains) == FEW and set(cell.rows) > {BASE, OURS}]
        pictures = target.parent / target.stem
        pictures.mkdir(exist_ok=True)
        text = str(Page(main, few, [group for group in groups if group.recipe.name == "narrow"], pictures))
    with atomic_write(target) as stream:
        stream.write(text.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="*", default=[Path("results")], metavar="RECORDS")
    parser.add_argument("--page", type=Path, default=Path("docs/results.md"))
    given = parser.parse_args()
    try:
        write(given.records, given.page)
    except FozoError as error:
        print(f"results: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
