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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import conclusions, narrow
from benchmarks.cells import CLEAN, RECIPE, TOKENS, Cell, Gain, name_of, read_evidence, standing
from benchmarks.common import markdown, refusals
from benchmarks.conclusions import OURS, adapting, rivals, words_of
from benchmarks.pictures import curves_picture, gains_picture, map_picture
from benchmarks.reproduction import reproduction
from benchmarks.sections import (
    deadline_section,
    gains_csv,
    read_csv,
    read_refusals,
    recovery,
    refusal_picture,
    refusal_sentence,
    tuning_csv,
    walk_table,
)
from fozo.bench.gains import BASE, signed
from fozo.bench.plan import OWN, TUNED, Setting, load_recipe
from fozo.bench.store import Group, collect
from fozo.errors import FozoError
from fozo.io import atomic_write

FEW = 4
"""Corruptions of the cells for methods of many passes."""
WIDTH = 140
CUT = 12.0
"""Points at which the axis of gains ends."""
HEAD = (
    "{models}, all methods on identical streams: fifteen corruptions in turn at severity 5 (or as said), never reset "
    "(*continual*) or reset at each (*reset*). Gains are points of top-1 over NoAdapt, the plain model; ± is a 95 % "
    "interval of differences paired by image, *significant* where it excludes zero. `python -m benchmarks.results` "
    "computes all of it; every cell, with its constants: `results/gains.csv`."
)
CONSTANTS = (
    "*Constants*: *FOZO paper*, what it states for its baselines; *authors*, their own ViT runs (TENT: ResNet-50). "
    "*Tuned* is the best of four for the same model under the four extra corruptions, of equals the published ones "
    "(`results/tuning.csv`; CAZO on fewer images); *varied* are others. GFLOP: counted for an image, without NumPy's."
)
PROTOCOL = (
    "Float32, ImageNet validation images, the same for every corruption and method, batches of 64, source statistics "
    "of 512 others. An image's mean over the corruptions is one observation; intervals are over images, and over seeds "
    "where there are several. A few hundred images a corruption are few (papers have 5000 to 50,000): no published "
    "number is contradicted. {commands}"
)
RESETS = (
    "The programs of TENT and DeYO can reset before every batch, which undoes adaptation; SAR recovers by itself; "
    "ZOA has no reset."
)
WALK = (
    "On a slow walk, where one corruption fades while the next swells (after CCC; `python -m benchmarks.walk`): "
    "gains over it and, in brackets, over its last tenth."
)
CONTENT = "By group: [what each part gains](ablation.md)."
STREAMS = {
    "mixed": "corruptions mixed in a batch",
    "correlated": "classes one after the other",
    "recurring": "ten rounds of all",
    "B = 1": "single images",
    "B = 8": "batches of 8",
}
"""Columns of the recipes ``streams`` and ``batches`` that are unlike the cells, in words."""
PAPER = "The FOZO paper's tables beside ours, and what needs a ViT-B: `results/reproduction.md`."


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


def lead_table(cell: Cell, operations: Mapping[str, float]) -> str:
    """The leading cell: a line for each row, and whose constants it has."""
    heads = ["", "constants", "GFLOP", "top-1", "gain", *(["after, on clean"] if cell.clean else [])]
    lines = []
    told: list[object] = []
    for label in [BASE, *adapting(cell)]:
        row = cell.rows[label]
        config = (row.method, row.constants.get("constants")) if row.constants else label
        if config in told:  # tuned to its authors' constants
            continue
        told.append(config)
        again = cell.with_clean(label) if label != BASE else None
        count = operations.get(row.method)
        lines.append([
            label.removesuffix(TUNED).removesuffix(OWN),
            str(row.constants.get("source") or "-"),
            "-" if count is None else f"{count / 1e9:.1f}",
            f"{cell.top(label):.1f}",
            "-" if label == BASE else bold(cell.gain(label)),
            *(["-" if again is None else bold(again)] if cell.clean else []),
        ])  # fmt: skip
    return markdown(heads, lines)


def bold(gain: Gain) -> str:
    """A gain for a table: bold where it is significant."""
    return f"**{gain}**" if gain.side else str(gain)


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
    said: dict[str, list[str]] = {}
    for group in groups:
        where = f"{name_of(group.runs[0].experiment.model)}, severity {group.runs[0].experiment.stream.severity}"
        for column, both in narrow.pairs(group, OURS).items():
            gain = narrow.gain(both)
            if column in STREAMS and gain.within is not None:
                words = f"{STREAMS[column]} {signed(gain.value)}{'' if gain.side else ' (not significant)'}"
                said.setdefault(where, []).append(words)
    return " ".join(f"Align on short streams ({where}): {conclusions.listed(parts)}." for where, parts in said.items())


@dataclass(frozen=True)
class Page:
    """The page's parts: how much first, then where not, under which deadline, and how it was measured."""

    main: Sequence[Cell]
    """Cells of all corruptions."""
    apart: Sequence[Cell]
    """Cells that are told of apart: of four corruptions, for methods of many passes, and of few rows on more images."""
    groups: Sequence[Group]
    """All runs, for what is not of cells."""
    pictures: Path
    operations: Mapping[str, float] = field(default_factory=dict)
    """For an image, by method."""
    walk: Sequence[Mapping[str, str]] = ()

    @property
    def lead(self) -> Cell:
        return self.main[0]

    @property
    def shown(self) -> list[Cell]:
        """The leading cell, and that where a rival comes closest to Align: what is shown of two cells is of these."""
        closest = min(self.main, key=lambda cell: min(cell.gain(OURS, label).low for label in rivals(cell)))
        return [self.lead, *([closest] if closest is not self.lead else [])]

    def of(self, *recipes: str) -> list[Group]:
        return [group for group in self.groups if group.recipe.name in recipes]

    def draw(self, name: str, alt: str, drawn: str) -> str:
        with atomic_write(self.pictures / f"{name}.svg") as file:
            file.write(drawn.encode())
        return f"![{alt}]({self.pictures.name}/{name}.svg)"

    def gains(self) -> list[str]:
        tiers = [
            {cell.title: {k: cell.gain(k) for k in adapting(cell)} for cell in self.main if cell.severity == severity}
            for severity in dict.fromkeys(cell.severity for cell in self.main)
        ]
        every = [gain for columns in tiers for column in columns.values() for gain in column.values()]
        low, high = max(-CUT, min(gain.low for gain in every)), max(gain.high for gain in every)
        shown = gains_picture("Gains over NoAdapt", tiers, low, high)
        return [
            "## How much, at what cost",
            wrapped(conclusions.headline(self.lead)),
            lead_table(self.lead, self.operations),
            wrapped(f"{CONSTANTS} {missing(self.lead)}".strip()),
            self.draw("gains", "Gains over NoAdapt of every method in every cell", shown),
        ]

    def losses(self) -> list[str]:
        """What speaks against Align, right after what speaks for it."""
        hard = [cell for cell in self.main if cell.severity == self.lead.severity]
        found = {cell.title: conclusions.losses(cell) for cell in hard}
        first, *others = found.values()
        shared = [head for head in first if others and all(each[head] == first[head] for each in others)]
        heads = [head for head in first if head not in shared]
        lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
        lines += ["| " + " | ".join([title, *(each[k] for k in heads)]) + " |" for title, each in found.items()]
        same = " ".join(
            f"Align is {head} {'no corruption' if first[head] == 'none' else first[head]}." for head in shared
        )
        rest = [conclusions.milder(self.main), conclusions.afterwards(self.main)]
        close = " ".join(filter(None, [*rest, conclusions.against_rivals([*self.main, *self.apart])]))
        return [
            "## Where it does not help",
            "\n".join(lines),
            wrapped(" ".join(filter(None, [same, close, "Time: [cost](cost.md)."]))),
        ]

    def learning(self) -> list[str]:
        """How fast each method learns and recovers, and which collapse."""
        curves = {label: self.lead.learning(label).tolist() for label in adapting(self.lead)}
        shown = curves_picture(
            f"Gain over NoAdapt against images seen, {self.lead.title}",
            seen(self.lead),
            curves,
            f"images of a corruption seen ({self.lead.title})",
        )
        said = [*recovery(self.lead), RESETS]
        walk = [wrapped(WALK), walk_table(self.walk)] if self.walk else []
        return [
            "## Recovery and collapse",
            self.draw("learning", "Gain over NoAdapt against images seen in a corruption", shown),
            wrapped(" ".join(filter(None, [f"{self.lead.title}.", *said]))),
            *walk,
        ]

    def corruptions(self) -> list[str]:
        """By corruption and after returning to clean images: the first cell, and that where a rival comes closest."""
        names = [words_of(name) for name in self.lead.domains]
        panels = {}
        for cell in self.shown:
            domains = [*cell.domains, *([CLEAN] if cell.clean else [])]
            panels[cell.title] = {k: [cell.gain(k, domains=(name,)) for name in domains] for k in adapting(cell)}
        again = ["clean"] if any(cell.clean for cell in self.shown) else []
        shown = map_picture("Gains by corruption", [*names, *again], panels)
        return [
            self.draw("corruptions", "Gains by corruption", shown),
        ]

    def refusal(self) -> list[str]:
        found = read_refusals(self.groups)
        if found is None:
            return []
        drawn = self.draw("evidence", "Gain of Align against evidence of drift", refusal_picture(found))
        return ["## When it refuses", drawn, wrapped(refusal_sentence(found))]

    def unlike(self) -> list[str]:
        """Streams unlike the cells: narrow content, other orders and batches."""
        parts = []
        groups = self.of("narrow")
        if groups:
            gains = narrow_gains(groups)
            worst = conclusions.listed([worst_group(group) for group in groups if OURS in group.labels])
            shown = gains_picture("Gains on narrow content", [gains], -CUT, CUT)
            parts.append(self.draw("narrow", "Gains on narrow content", shown))
            parts.append(wrapped(f"{conclusions.narrow(gains)} Align's worst group: {worst}. {CONTENT}"))
        said = other_streams(self.of("streams", "batches"))
        parts += [wrapped(said)] if said else []
        return ["## Narrow content and other streams", *parts] if parts else []

    def __str__(self) -> str:
        head = HEAD.format(models=conclusions.listed(list(dict.fromkeys(cell.model for cell in self.main))))
        deadline = [
            "## Under deadlines",
            *(p if p.startswith("|") else wrapped(p) for p in deadline_section(self.groups)),
        ]
        how = PROTOCOL.format(commands=commands([*self.main, *self.apart]))
        last = ["## How it was measured", wrapped(how), wrapped(PAPER)]
        parts = ["# Results", wrapped(head), *self.gains(), *self.losses(), *self.corruptions(), *deadline]
        return "\n\n".join([*parts, *self.learning(), *self.refusal(), *self.unlike(), *last]) + "\n"


def missing(cell: Cell) -> str:
    """Name the rows of the recipe that a cell lacks."""
    model = next((start for start, name in TOKENS.items() if name == cell.model), cell.model)
    column = f"{cell.scenario}, severity {cell.severity}"
    wanted = [row.label for row in load_recipe(RECIPE).experiments(Setting(model)) if row.column == column]
    absent = [label for label in wanted if label not in cell.rows]
    return f"Not run here yet: {conclusions.listed(absent)}." if absent else ""


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
    full = [len(cell.domains) > FEW and len(cell.rows) > most / 3 for cell in cells]
    if not any(full):
        raise FozoError(
            "no records of all corruptions with NoAdapt, Align and a rival were found; see results/README.md"
        )
    main = [cell for cell, own in zip(cells, full, strict=True) if own]
    return main, [cell for cell, own in zip(cells, full, strict=True) if not own]


def read(records: Sequence[Path], scratch: Path) -> tuple[list[Group], list[Cell]]:
    """All runs found below records, archives among them, and the cells of the comparison."""
    roots = unpack(records, scratch)
    groups = [group for root in roots if any(root.glob("**/recipe.json")) for group in collect(root)]
    return groups, standing(cell for cell in read_evidence(groups) if set(cell.rows) > {BASE, OURS})


def write(groups: Sequence[Group], compared: Sequence[Cell], beside: Path, target: Path, tables: Path) -> None:
    """Write the page and its pictures, and tables to another folder; ``beside`` has the records that are tables."""
    main, apart = split(compared)
    pictures = target.parent / target.stem
    pictures.mkdir(parents=True, exist_ok=True)
    counted = {line["method"]: float(line["operations_per_image"]) for line in read_csv(beside / "operations.csv")}
    page = Page(main, apart, groups, pictures, counted, read_csv(beside / "walk.csv"))
    ours = "\n\n".join(filter(None, ["# The paper's tables and figures", *reproduction(main)]))
    files = {
        target: str(page),
        tables / "gains.csv": gains_csv(compared, counted),
        tables / "tuning.csv": tuning_csv(groups),
        tables / "reproduction.md": f"{ours}\n",
    }
    for path, text in files.items():
        with atomic_write(path) as stream:
            stream.write(text.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="*", default=[Path("results")], metavar="RECORDS")
    parser.add_argument("--page", type=Path, default=Path("docs/results.md"))
    parser.add_argument(
        "--tables", type=Path, default=Path("results"), help="folder for gains.csv, tuning.csv, reproduction.md"
    )
    given = parser.parse_args()
    with refusals("results"), TemporaryDirectory() as scratch:
        groups, compared = read(given.records, Path(scratch))
        write(groups, compared, given.records[0], given.page, given.tables)


if __name__ == "__main__":
    main()
