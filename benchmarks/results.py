"""docs/results.md and its pictures, from records: every figure and every conclusion is computed.

    python -m benchmarks.results [RECORDS ...] [--page docs/results.md]

RECORDS are folders: their ``.tar.xz`` files are unpacked, and what is found of ``fozo bench evidence``, ``narrow``,
``streams`` and ``batches`` is put on the page; ``results`` by default, and the ``--out`` of a ``fozo bench`` that still
runs may be given too. The cell of which most was measured leads, and a cell is left out where another of the same
stream has all its rows and more (``benchmarks.cells.standing``). Pictures go to the folder ``results`` beside the page.
Sentences are made in ``benchmarks.conclusions``, pictures in ``benchmarks.pictures``.
"""

import argparse
import tarfile
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import conclusions, narrow
from benchmarks.cells import CLEAN, Cell, Gain, name_of, read_evidence, standing
from benchmarks.common import markdown, refusals
from benchmarks.conclusions import OURS, adapting, rivals, words_of
from benchmarks.pictures import curves_picture, gains_picture, map_picture
from benchmarks.reproduction import reproduction
from fozo.bench.gains import BASE
from fozo.bench.plan import TUNED, published
from fozo.bench.store import Group, collect
from fozo.errors import FozoError
from fozo.io import atomic_write

FEW = 4
"""Corruptions of the cells for methods of many passes."""
WIDTH = 140
CUT = 12.0
"""Points at which the axis of gains ends."""
HEAD = (
    "{models}, all methods on identical streams: fifteen corruptions one after the other at severity 5 (or as said), "
    "never reset (*continual*) or reset at each (*reset*). Gains are points of top-1 over NoAdapt, the plain model; ± "
    "is a 95 % interval of differences paired by image, and *significant* means that it excludes zero. *Published* "
    "constants are those of the method's authors, but for LAME, EATA and DeYO those that the FOZO paper states (its "
    "two entropy margins of DeYO are the other way round in the authors' program). *Tuned* rows have other constants. "
    "Every figure and every sentence is computed by `python -m benchmarks.results` from the records in `results/`; "
    "[how it was measured](#how-it-was-measured)."
)
PROTOCOL = (
    "Float32, images of ImageNet's validation set, the same ones for every corruption and method, batches of 64, "
    "source statistics of 512 others. An image's mean over the corruptions is one observation; intervals are over "
    "images, and over seeds where there are several (Student's, as two say little of their variance): those of one "
    "seed do not include what a method draws, and of many intervals some miss. Published constants are for a ViT-B; "
    "tuned ones did best on ViT-Tiny under the four extra corruptions, from which Align's constants come too (TENT, "
    "DeYO and NEO have the smaller of two rates that did not differ; [methods.md](methods.md)). A few hundred images a "
    "corruption are few (papers have 5000 to 50,000): no published number is contradicted. {commands} {processors}"
)
CHECK = (
    "To check the first line yourself, on fewer images and in a few minutes: `fozo bench evidence --model WEIGHTS "
    '--imagenet DIR --images 128 --column "continual, severity 5" --only NoAdapt --only Align`, then `fozo report runs '
    "-o report.html`."
)
CONTENT = (
    "Streams of one group of classes each (dogs, food, ...), clean and under five corruptions, every domain begun "
    "afresh; intervals draw batches, and are somewhat too narrow, as the same photographs come under several "
    "corruptions. By group: [ablation.md](ablation.md). `fozo bench narrow`."
)
STREAMS = {
    "mixed": "corruptions mixed in every batch",
    "correlated": "classes one after the other",
    "recurring": "ten rounds of all corruptions",
    "B = 1": "single images",
    "B = 8": "batches of 8",
}
"""Columns of the recipes ``streams`` and ``batches`` that are unlike the cells, in words."""
OTHERS = (
    "Short streams; intervals draw batches, and are means over orders of the images where there are several. "
    "`fozo bench streams --seeds 0,1,2` and `fozo bench batches`."
)


def wrapped(words: str) -> str:
    return textwrap.fill(words, WIDTH, break_long_words=False, break_on_hyphens=False)


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


def lead_table(cell: Cell) -> str:
    """The leading cell, a line for each method: as published, and tuned where it was."""
    tuned = any(label.endswith(TUNED) for label in cell.rows)
    columns = ["gain", *(["gain on clean"] if cell.clean else []), "error"]
    heads = ["", "passes", "top-1", *columns, *(["tuned, over published", *columns] if tuned else [])]
    lines = []
    first = [label for label in adapting(cell) if label == published(label) or published(label) not in cell.rows]
    for label in [BASE, *first]:
        texts = [label, f"{cell.rows[label].passes:.2g}", f"{cell.top(label):.1f}", *_measures(cell, label)]
        if label + TUNED in cell.rows:
            texts += [bold(cell.gain(label + TUNED, label)), *_measures(cell, label + TUNED)]
        lines.append(texts + ["-"] * (len(heads) - len(texts)))
    return markdown(heads, lines)


def _measures(cell: Cell, label: str) -> list[str]:
    gains = [None if label == BASE else cell.gain(label), None if label == BASE else cell.with_clean(label)]
    shown = ["-" if gain is None else bold(gain) for gain in gains]
    return [*shown[: 1 + cell.clean], f"{cell.rows[label].error:.1f}"]


def bold(gain: Gain) -> str:
    """A gain for a table: bold where it is significant."""
    return f"**{gain}**" if gain.side else str(gain)


def table(cells: Sequence[Cell]) -> str:
    """The gains of every method in some cells, tuned ones below the published; of NoAdapt its top-1."""
    every = dict.fromkeys(published(label) for cell in cells for label in adapting(cell))
    heads = [cell.title.replace(", ", "<br>") for cell in cells]
    lines = [[f"{BASE}, top-1", *(f"{cell.top(BASE):.1f}" for cell in cells)]]
    for method in every:
        texts = []
        for cell in cells:
            own = [bold(cell.gain(method))] if method in cell.rows else []
            own += [f"*{bold(cell.gain(method + TUNED))}*"] if method + TUNED in cell.rows else []
            texts.append("<br>".join(own) or "-")
        lines.append([method, *texts])
    return markdown(["", *heads], lines)


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
            gain = narrow.gain([pair for each in by_group.values() for pair in each])
            if gain.within is not None:
                column[label] = Gain(gain.value, gain.within.low, gain.within.high)
        found[f"{name_of(group.runs[0].experiment.model)}, {whole} groups of classes, severity 3"] = column
    return found


def worst_group(group: Group) -> str:
    """Name the group of classes that Align does worst on, against NoAdapt."""
    gains = {name: narrow.gain(both) for name, both in narrow.pairs(group, OURS).items()}
    name = min(gains, key=lambda name: gains[name].value)
    return f"{name}, {gains[name]}, on {name_of(group.runs[0].experiment.model)}"


def other_streams(groups: Sequence[Group]) -> str:
    """Say what Align gains on streams unlike the cells, paired by batch."""
    said = []
    for group in groups:
        parts = []
        for column, both in narrow.pairs(group, OURS).items():
            gain = narrow.gain(both)
            if column in STREAMS and gain.within is not None:
                parts.append(f"{STREAMS[column]} {gain}{'' if gain.side else ' (not significant)'}")
        if parts:
            plan = group.runs[0].experiment.stream
            kinds = len([kind for kind in plan.kinds if kind != CLEAN])
            where = f"{name_of(group.runs[0].experiment.model)}, {kinds} corruptions at severity {plan.severity}"
            said.append(f"{where}{' and clean images' if CLEAN in plan.kinds else ''}: {conclusions.listed(parts)}")
    return f"Align over NoAdapt. {'. '.join(said)}." if said else ""


@dataclass(frozen=True)
class Page:
    """The page's parts; each section is a title, a picture, a conclusion and a command."""

    main: Sequence[Cell]
    """Cells of all corruptions."""
    apart: Sequence[Cell]
    """Cells that are told of apart: of four corruptions, for methods of many passes, and of few rows on more images."""
    narrow: Sequence[Group]
    others: Sequence[Group]
    """Runs of the recipes ``streams`` and ``batches``."""
    pictures: Path

    @property
    def lead(self) -> Cell:
        return self.main[0]

    @property
    def shown(self) -> list[Cell]:
        """The leading cell, and that where a rival comes closest to Align: what is shown of two cells is of these."""
        closest = min(self.main, key=lambda cell: min(cell.gain(OURS, label).low for label in rivals(cell)))
        return [self.lead, *([closest] if closest is not self.lead else [])]

    def draw(self, name: str, alt: str, drawn: str) -> str:
        with atomic_write(self.pictures / f"{name}.svg") as file:
            file.write(drawn.encode())
        return f"![{alt}]({self.pictures.name}/{name}.svg)"

    def losses(self) -> list[str]:
        """What speaks against Align comes first."""
        found = {cell.title: conclusions.losses(cell) for cell in self.main}
        first, *others = found.values()
        shared = [head for head in first if others and all(each[head] == first[head] for each in others)]
        heads = [head for head in first if head not in shared]
        lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
        lines += ["| " + " | ".join([title, *(each[k] for k in heads)]) + " |" for title, each in found.items()]
        same = f"In every cell: {'; '.join(f'{head}: {first[head]}' for head in shared)}. " if shared else ""
        close = conclusions.against_rivals([*self.main, *self.apart])
        return [
            "## Where Align does not help",
            "\n".join(lines),
            wrapped(f"{same}{close} What it costs: [cost.md](cost.md)."),
        ]

    def gains(self) -> list[str]:
        tiers = [
            {cell.title: {k: cell.gain(k) for k in adapting(cell)} for cell in self.main if cell.severity == severity}
            for severity in dict.fromkeys(cell.severity for cell in self.main)
        ]
        every = [gain for columns in tiers for column in columns.values() for gain in column.values()]
        low, high = max(-CUT, min(gain.low for gain in every)), max(gain.high for gain in every)
        shown = gains_picture("Gains over NoAdapt", tiers, low, high)
        said = (conclusions.sides(self.main), conclusions.tuning(self.lead))
        again = ", the gain on the clean images at its end" if self.lead.clean else ""
        legend = f"Top-1, gain over NoAdapt (bold: significant){again}, and expected calibration error, in percent"
        others = self.main[1:]
        return [
            "## Gains over the plain model",
            wrapped(conclusions.headline(self.lead)),
            self.draw("gains", "Gains over NoAdapt of every method in every cell", shown),
            wrapped(" ".join(filter(None, said))),
            wrapped(f"{legend}: {self.lead.title}."),
            lead_table(self.lead),
            *(["Gains in the other cells (*tuned*):", table(others)] if others else []),
        ]

    def learning(self) -> list[str]:
        """How fast each method learns: drawn of the first cell, told of both."""
        curves = {label: self.lead.learning(label).tolist() for label in adapting(self.lead)}
        shown = curves_picture(
            f"Gain over NoAdapt against images seen, {self.lead.title}",
            seen(self.lead),
            curves,
            f"images of a corruption seen ({self.lead.title})",
        )
        return [
            "## Learning curves: gain against images seen in a corruption",
            self.draw("learning", "Gain over NoAdapt against images seen in a corruption", shown),
            wrapped(conclusions.learning(self.shown)),
        ]

    def passes(self) -> list[str]:
        """What passes buy: all corruptions, and four where a method makes many."""
        cells = [self.lead, *(cell for cell in self.apart if len(cell.domains) == FEW)][:2]
        return ["## What passes buy", wrapped(conclusions.passes(cells))]

    def corruptions(self) -> list[str]:
        """By corruption and after returning to clean images: the first cell, and that where a rival comes closest."""
        names = [words_of(name) for name in self.lead.domains]
        panels = {}
        for cell in self.shown:
            domains = [*cell.domains, *([CLEAN] if cell.clean else [])]
            panels[cell.title] = {k: [cell.gain(k, domains=(name,)) for name in domains] for k in adapting(cell)}
        again = ["clean"] if any(cell.clean for cell in self.shown) else []
        shown = map_picture("Gains by corruption", [*names, *again], panels)
        said = [conclusions.most_and_least(self.lead), conclusions.after_clean(self.lead)]
        return [
            "## By corruption, and after returning to clean images",
            self.draw("corruptions", "Gains by corruption", shown),
            wrapped(" ".join(filter(None, said))),
        ]

    def unlike(self) -> list[str]:
        """Streams unlike the cells: narrow content, other orders and batches."""
        parts = []
        if self.narrow:
            gains = narrow_gains(self.narrow)
            worst = conclusions.listed([worst_group(group) for group in self.narrow if OURS in group.labels])
            shown = gains_picture("Gains on narrow content", [gains], -CUT, CUT)
            parts.append(self.draw("narrow", "Gains on narrow content", shown))
            parts.append(wrapped(f"{conclusions.narrow(gains)} Align's worst group: {worst}. {CONTENT}"))
        said = other_streams(self.others)
        parts += [wrapped(f"{said} {OTHERS}")] if said else []
        return ["## Narrow content and other streams", *parts] if parts else []

    def __str__(self) -> str:
        head = HEAD.format(models=conclusions.listed(list(dict.fromkeys(cell.model for cell in self.main))))
        first = [*self.losses(), *self.gains(), *self.learning(), *self.passes(), *self.corruptions()]
        measured, note = reproduction(self.main)
        paper = ["## The paper's tables and figures", *([measured] if measured else []), wrapped(note)]
        how = PROTOCOL.format(
            commands=commands([*self.main, *self.apart]), processors=conclusions.processors(self.main)
        ).strip()
        last = ["## How it was measured", wrapped(how), wrapped(CHECK)]
        parts = ["# Results", wrapped(head), *first, *self.unlike(), *paper, *last]
        return "\n\n".join(parts) + "\n"


def seen(cell: Cell) -> list[int]:
    """Images seen at the end of each batch of a corruption."""
    sizes = next(iter(next(iter(cell.rows[BASE].correct.values())).values()))
    return [sum(images for _, images in sizes[: k + 1]) for k in range(len(sizes))]


def commands(cells: Sequence[Cell]) -> str:
    long = sorted({cell.images for cell in cells}, reverse=True)
    others = f" (or {conclusions.listed([str(images) for images in long[1:]])})" if long[1:] else ""
    return f"Made by `fozo bench evidence --model WEIGHTS --imagenet DIR --images {long[0]} --out RUNS`{others}."


def split(cells: Sequence[Cell]) -> tuple[list[Cell], list[Cell]]:
    """Tell the cells of the tables, which have all corruptions and most rows, from those that are told of apart."""
    most = max((len(cell.rows) for cell in cells if len(cell.domains) > FEW), default=0)
    full = [len(cell.domains) > FEW and len(cell.rows) > most / 2 for cell in cells]
    if not any(full):
        raise FozoError(
            "no records of all corruptions with NoAdapt, Align and a rival were found; see results/README.md"
        )
    main = [cell for cell, own in zip(cells, full, strict=True) if own]
    return main, [cell for cell, own in zip(cells, full, strict=True) if not own]


def write(records: Sequence[Path], target: Path) -> None:
    """Read all records and write the page and its pictures."""
    with TemporaryDirectory() as scratch:
        roots = unpack(records, Path(scratch))
        groups = [group for root in roots if any(root.glob("**/recipe.json")) for group in collect(root)]
        compared = standing(cell for cell in read_evidence(groups) if set(cell.rows) > {BASE, OURS})
        main, apart = split(compared)
        pictures = target.parent / target.stem
        pictures.mkdir(parents=True, exist_ok=True)
        own = {
            name: [group for group in groups if group.recipe.name == name] for name in ("narrow", "streams", "batches")
        }
        text = str(Page(main, apart, own["narrow"], [*own["streams"], *own["batches"]], pictures))
    with atomic_write(target) as stream:
        stream.write(text.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="*", default=[Path("results")], metavar="RECORDS")
    parser.add_argument("--page", type=Path, default=Path("docs/results.md"))
    given = parser.parse_args()
    with refusals("results"):
        write(given.records, given.page)


if __name__ == "__main__":
    main()
