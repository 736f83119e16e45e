"""Tables and charts of README and docs, from the CSV records in ``results/``.

    python -m benchmarks.tables              # write every table and chart; name the files that changed
    python -m benchmarks.tables --check      # write nothing; fail where one is stale
    python -m benchmarks.tables records RUNS ...  # make the CSV records of finished runs anew

A page holds a table between ``<!-- table: NAME -->`` and ``<!-- end -->``; ``TABLES`` has the names of each page. They
are computed from gains.csv, domains.csv, detectors.csv and ssd.csv. Charts go to docs/results/. People write the
sentences around them.

``records`` reads folders that ``fozo bench ... --out RUNS`` wrote, and the ``.tar.xz`` archives in them; it writes
gains.csv and domains.csv (benchmarks/records.py).
"""

import argparse
import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

from benchmarks import charts, records
from benchmarks.charts import Gain
from benchmarks.common import markdown, refusals
from fozo.bench.gains import BASE, signed
from fozo.bench.recipes.comparison import FAMILIES
from fozo.errors import FozoError
from fozo.io import atomic_write
from fozo.methods.registry import list_methods, method_class
from fozo.methods.static import StaticFrontEnd

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
MARKS = re.compile(r"(<!-- table: ([^>]+) -->\n(\n?))(?:.*?)(<!-- end -->)", re.DOTALL)
ALL = "all"
"""The domain that stands for all corruptions together."""
Row: TypeAlias = Mapping[str, str]


@cache
def _lines(name: str) -> list[Row]:
    with (RESULTS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read(name: str, **wanted: object) -> list[Row]:
    """Lines of a record whose columns have these values."""
    return [row for row in _lines(name) if all(row[key] == str(value) for key, value in wanted.items())]


def value(row: Row, key: str, digits: int = 1) -> str:
    return f"{float(row[key]):.{digits}f}"


def bold(gain: Gain, text: str) -> str:
    return f"**{text}**" if gain.side else text


def words(domain: str) -> str:
    return domain.replace("_", " ")


def listed(names: Sequence[str]) -> str:
    if len(names) < 2:
        return "".join(names) or "none"
    return f"{', '.join(names[:-1])} and {names[-1]}"


# README.md and docs/results.md

FIFTEEN = "evidence"
SECOND_SET = "unseen"
SETS = {SECOND_SET: "second set", FIFTEEN: "ImageNet-C"}
NOT_RUN = "*Not run yet with the Align of 0.3.*"
OURS = ("Align", "Equalise", "NoAdapt")


class Stream(NamedTuple):
    """A continual stream of many corruptions of one model, by the values that find its lines in both records."""

    recipe: str
    model: str
    severity: int
    images: int

    @property
    def key(self) -> dict[str, object]:
        return {**self._asdict(), "stream": "continual"}

    def rows(self) -> dict[str, Row]:
        """Its rows by their names, those of the streams of four corruptions left out."""
        return {row["row"]: row for row in read("gains", **self.key) if int(row["corruptions"]) > len(FAMILIES)}

    def domains(self, row: str) -> dict[str, Row]:
        """What a row did, by corruption and for ``all`` together."""
        return {line["domain"]: line for line in read("domains", **self.key, row=row)}

    @property
    def heading(self) -> str:
        return f"{self.model}<br>{SETS[self.recipe]}<br>severity {self.severity}<br>{self.images} images"


def streams() -> list[Stream]:
    """What there is: of each set, model and severity the stream of most images. Severity 3 comes first."""
    most: dict[tuple[str, str, int], int] = {}
    for row in read("gains", stream="continual"):
        if row["recipe"] in SETS and int(row["corruptions"]) > len(FAMILIES):
            key = (row["recipe"], row["model"], int(row["severity"]))
            most[key] = max(int(row["images"]), most.get(key, 0))
    found = [Stream(*key, images) for key, images in most.items()]
    return sorted(found, key=lambda one: (one.severity, one.recipe == FIFTEEN, one.model == "DeiT-Tiny"))


def best_rival(rows: Iterable[Row]) -> Row:
    """The row of the largest gain that is not fozo's own."""
    return max((row for row in rows if row["row"] not in OURS), key=lambda row: float(row["gain"]))


def without_best(stream: Stream, row: str = "Align") -> str:
    """The mean gain without the corruption that gains most."""
    gains = {name: float(line["gain"]) for name, line in stream.domains(row).items() if name not in (ALL, "clean")}
    best = max(gains, key=lambda name: gains[name])
    rest = [gain for name, gain in gains.items() if name != best]
    return f"{signed(sum(rest) / len(rest))} ({words(best)})"


def headline_table(most: int | None = None) -> str:
    """A line for each stream: Align, the best of all others, and how far Align is ahead of it."""
    lines = []
    for stream in streams()[:most]:
        rows = stream.rows()
        align = rows["Align"]
        rival = best_rival(rows.values())
        over_kinds = (float(align["kinds_high"]) - float(align["kinds_low"])) / 2
        lead = Gain.around(stream.domains(rival["row"])[ALL], "lead", "lead_half")
        lines.append([
            stream.heading.replace("<br>", ", "),
            value(rows[BASE], "top1"),
            f"**{Gain.of(align, low='gain_low', high='gain_high')}** (± {over_kinds:.1f})",
            without_best(stream),
            f"{rival['row']} {Gain.of(rival, low='gain_low', high='gain_high')}",
            str(lead),
        ])  # fmt: skip
    heads = ["", "plain", "Align (over kinds)", "without its best kind", "best of others", "Align ahead by"]
    return markdown(heads, lines)


def rows_table() -> str:
    """Every row of every stream: gains over the plain model, the best methods first."""
    found = streams()
    tables = [stream.rows() for stream in found]
    best: dict[str, float] = {}
    facts: dict[str, Row] = {}
    for rows in tables:
        for label, row in rows.items():
            best[label] = max(float(row["gain"] or 0), best.get(label, -100.0))
            facts.setdefault(label, row)
    lines = []
    del best[BASE]
    for label in [BASE, *charts.by_method(best)]:
        cells = []
        for rows in tables:
            if label not in rows:
                cells.append("-")
            elif label == BASE:
                cells.append(f"{value(rows[label], 'top1')} %")
            else:
                gain = Gain.of(rows[label], low="gain_low", high="gain_high")
                cells.append(bold(gain, str(gain)))
        lines.append([label, facts[label]["source"] or "-", facts[label]["passes"], *cells])
    return markdown(["", "constants", "passes", *(stream.heading for stream in found)], lines)


def losses_table() -> str:
    """Where Align loses, where it gains nothing significant, and where another row is significantly ahead of it."""
    lines = []
    for stream in streams():
        below: list[str] = []
        equal: list[str] = []
        ahead: list[str] = []
        domains = {label: stream.domains(label) for label in stream.rows() if label != BASE}
        for domain, line in domains["Align"].items():
            if domain in (ALL, "clean"):
                continue
            gain = Gain.around(line)
            if gain.side <= 0:
                (below if gain.side else equal).append(f"{words(domain)} ({signed(gain.value)})")
            leads = {
                label: Gain.around(row[domain], "lead", "lead_half")
                for label, row in domains.items()
                if label not in OURS
            }
            name = min(leads, key=lambda label: leads[label].value)
            if leads[name].side < 0:
                ahead.append(f"{words(domain)} ({name}, by {-leads[name].value:.1f})")
        lines.append([stream.heading.replace("<br>", ", "), listed(below), listed(equal), listed(ahead)])
    heads = ["", "significantly below the plain model", "no significant gain", "significantly behind another row"]
    return markdown(heads, lines)


def clean_table() -> str:
    """Gains on the clean images that end each stream."""
    lines = []
    for stream in streams():
        rows = stream.rows()
        rival = best_rival(rows.values())["row"]
        gains = [Gain.of(rows[name], "clean_gain", "clean_low", "clean_high") for name in ("Align", rival)]
        lines.append([stream.heading.replace("<br>", ", "), str(gains[0]), f"{rival} {gains[1]}"])
    return markdown(["", "Align", "best of all others"], lines)


def unless_empty(lines: Sequence[Sequence[object]], heads: Sequence[object]) -> str:
    return markdown(heads, lines) if lines else NOT_RUN


def held_out_table() -> str:
    """Align beside the plain model on the classes that it was not tuned on."""
    lines = []
    for row in read("gains", recipe="held_out", row="Align"):
        key = {name: row[name] for name in ("recipe", "model", "severity", "images")}
        (plain,) = read("gains", **key, row=BASE)
        losses = [line for line in read("domains", **key, row="Align") if float(line["gain"]) < 0]
        worst = min(losses, key=lambda line: float(line["gain"]), default=None)
        loss = "none" if worst is None else f"{words(worst['domain'])} {signed(float(worst['gain']))}"
        gain = Gain.of(row, low="gain_low", high="gain_high")
        clean = Gain.of(row, "clean_gain", "clean_low", "clean_high")
        lines.append([row["model"], row["severity"], row["images"], value(plain, "top1"), str(gain), str(clean), loss])
    heads = ["model", "severity", "images", "plain", "Align, corrupted", "Align, clean", "largest loss"]
    return unless_empty(sorted(lines, key=lambda line: (str(line[0]) == "DeiT-Tiny", line[1])), heads)


def group_means() -> dict[str, dict[str, tuple[Gain, str, Row]]]:
    """Gains on narrow content by model and row: the mean over groups, which share no image, and the worst group."""
    rows: dict[str, dict[str, list[Row]]] = {}
    for row in read("gains", recipe="narrow"):
        rows.setdefault(row["model"], {}).setdefault(row["row"], []).append(row)
    means: dict[str, dict[str, tuple[Gain, str, Row]]] = {}
    for model, by_row in rows.items():
        for label, groups in by_row.items():
            if label == BASE or len(groups) < len(by_row[BASE]):
                continue
            gains = [Gain.of(group, low="gain_low", high="gain_high") for group in groups]
            mean = sum(gain.value for gain in gains) / len(gains)
            half = sum(((gain.high - gain.low) / 2) ** 2 for gain in gains) ** 0.5 / len(gains)
            worst = min(groups, key=lambda group: float(group["gain"]))
            text = f"{worst['stream']} {signed(float(worst['gain']))}"
            means.setdefault(model, {})[label] = (Gain(mean, mean - half, mean + half), text, worst)
    return means


def narrow_table() -> str:
    """Every row that was run on all groups, the best of ViT-Tiny first."""
    means = group_means()
    if not means:
        return NOT_RUN
    models = sorted(means, reverse=True)
    labels = charts.by_method({label: gain.value for label, (gain, _, _) in means[models[0]].items()})
    lines = []
    for label in labels:
        cells = []
        for model in models:
            entry = means[model].get(label)
            cells += [bold(entry[0], str(entry[0])), entry[1]] if entry else ["-", "-"]
        lines.append([label, *cells])
    heads = [""]
    for model in models:
        heads += [model, "worst group"]
    return markdown(heads, lines)


def streams_table() -> str:
    """What Align and the best of all others gain on streams of other kinds."""
    lines = []
    keys = {(row["model"], row["stream"], row["corruptions"], row["images"]) for row in read("gains", recipe="streams")}
    for model, stream, corruptions, images in sorted(keys, key=lambda key: (key[0] == "DeiT-Tiny", key[1])):
        key = {"recipe": "streams", "model": model, "stream": stream, "corruptions": corruptions, "images": images}
        rows = {row["row"]: row for row in read("gains", **key)}
        others = [row for label, row in rows.items() if label not in OURS]
        best = best_rival(others) if others else None
        align = Gain.of(rows["Align"], low="gain_low", high="gain_high")
        rival = "not run"
        if best is not None:
            rival = f"{best['row']} {Gain.of(best, low='gain_low', high='gain_high')}"
        lines.append([f"{model}, {stream}", images, value(rows[BASE], "top1"), bold(align, str(align)), rival])
    return unless_empty(lines, ["", "images", "plain", "Align gains", "best of others"])


NOTES = {"fozo": "; its ViT-B has not been run here"}


def methods_table() -> str:
    """The registry, without the plain model and static front ends: the newest first."""
    lines = []
    for name, info in list_methods().items():
        cls = method_class(name)
        if issubclass(cls, StaticFrontEnd) or name == "noadapt":
            continue
        paper = re.sub(r"^fozo, (docs/\w+\.md)$", r"[this project](\1)", info.paper)
        year = re.search(r"\d{4}", paper)
        traces = len(list((ROOT / "tests" / "golden").glob(f"{name}_*.npz")))
        replayed = f"{traces} runs" if traces else "-" if paper != info.paper else "no program"
        paper += NOTES.get(name, "")
        line = [f"`{name}`", paper, info.passes.partition(",")[0], replayed]
        lines.append((-int(year[0]) if year else -9999, name, line))
    heads = ["name", "paper", "forward passes", "replayed"]
    return markdown(heads, [line for _, _, line in sorted(lines)]).replace("---:", "---")


# docs/detectors.md

ARMS = {"plain": "no front end", "autolevels": "auto levels", "histeq": "histogram eq.", "greyworld": "grey world",
        "clahe": "CLAHE", "equalise": "`equalise`"}  # fmt: skip
REAL = ("real fog", "real rain", "real sand", "real snow", "low light", "mean of real domains")
MADE = ("clear", "made fog", "made contrast", "made defocus_blur", "made gaussian_noise")


def detectors_table(record: str, domains: Sequence[str], arms: Sequence[str], held_out: bool = False) -> str:
    """A line for each domain: AP50 without a front end, and every arm's difference to it; losses in italics."""
    lines = []
    for domain, part in [*((name, ALL) for name in domains), *([(REAL[-1], "held out")] if held_out else [])]:
        rows = {arm: read(record, arm=arm, domain=domain, part=part)[0] for arm in ("plain", *arms)}
        name = re.sub("^(made|real) |gaussian_|_blur| domains$", "", domain)
        name += ", held out" if part != ALL else f" ({rows['plain']['images']})" if domain in REAL[:-1] else ""
        gains = [Gain.around(rows[arm], "against_plain", "plain_half_width") for arm in arms]
        marks = [{1: "**", 0: "", -1: "*"}[gain.side] for gain in gains]
        cells = [f"{mark}{gain}{mark}" for mark, gain in zip(marks, gains, strict=True)]
        lines.append([name, value(rows["plain"], "ap50"), *cells])
    return markdown(["", *(ARMS[arm] for arm in ("plain", *arms))], lines)


TABLES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "README.md": {"headline": partial(headline_table, 4), "methods": methods_table},
    "docs/results.md": {
        "headline": headline_table, "losses": losses_table, "clean": clean_table, "streams": streams_table,
    },
    "docs/tables.md": {"rows": rows_table, "narrow": narrow_table},
    "docs/ablation.md": {"held-out classes": held_out_table},
    "docs/detectors.md": {
        "made": partial(detectors_table, "detectors", MADE, ("clahe", "equalise")),
        "real": partial(detectors_table, "detectors", REAL, ("clahe", "equalise"), held_out=True),
        "others": partial(
            detectors_table, "detectors", (*MADE[:1], MADE[2], REAL[-1]), ("autolevels", "histeq", "greyworld")
        ),
        "second": partial(detectors_table, "ssd", (MADE[0], *REAL), ("clahe", "equalise")),
    },
}  # fmt: skip


# Charts


def gains_chart() -> str:
    tiers: dict[str, dict[str, dict[str, Gain]]] = {}
    for row in read("gains", recipe=FIFTEEN, corruptions=15):
        if row["row"] != BASE:
            title = f"{row['model']}, {row['stream']}, severity {row['severity']}, {row['images']} images"
            column = tiers.setdefault(row["severity"], {}).setdefault(title, {})
            column[row["row"]] = Gain.of(row, "gain", "gain_low", "gain_high")
    return charts.whiskers("Gains over NoAdapt", list(tiers.values()), -12, 25)


def corruptions_chart(recipe: str) -> str:
    panels: dict[str, dict[str, dict[str, Gain]]] = {}
    for stream in (one for one in streams() if one.recipe == recipe and one.severity == 3):
        rows = panels.setdefault(stream.heading.replace("<br>", ", "), {})
        for label in stream.rows():
            gains = {words(name): Gain.around(row) for name, row in stream.domains(label).items() if name != ALL}
            if gains:
                rows[label] = gains
    return charts.heat("Gains by corruption", panels)


CHARTS: Mapping[str, Callable[[], str]] = {
    "gains": gains_chart,
    "corruptions": partial(corruptions_chart, FIFTEEN),
}


def filled(name: str, page: str) -> str:
    """Put every table of a page between its marks, with a blank line around it where the first mark has one below."""
    known = TABLES[name]
    missing = known.keys() ^ {found[1] for found in MARKS.findall(page)}
    if missing:
        raise FozoError(f"{name} and benchmarks/tables.py do not agree on the tables {', '.join(sorted(missing))}")
    return MARKS.sub(lambda found: f"{found[1]}{known[found[2]]()}\n{found[3]}{found[4]}", page)


def computed() -> dict[str, str]:
    """Every page and chart by its path in the repository, as it should be."""
    pages = {name: filled(name, (ROOT / name).read_text(encoding="utf-8")) for name in TABLES}
    return pages | {f"docs/results/{name}.svg": draw() for name, draw in CHARTS.items()}


def stale() -> dict[str, str]:
    """The pages and charts that are not what the records give."""
    return {
        name: text
        for name, text in computed().items()
        if not (ROOT / name).exists() or (ROOT / name).read_text(encoding="utf-8") != text
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page is stale")
    commands = parser.add_subparsers(dest="command")
    command = commands.add_parser("records", help="make the CSV records of finished runs anew")
    command.add_argument("runs", type=Path, nargs="+", metavar="RUNS")
    command.add_argument("--out", type=Path, default=RESULTS, help="where the records go")
    options = parser.parse_args()
    with refusals("tables"):
        if options.command == "records":
            records.write(options.runs, options.out)
            return
        files = stale()
        if options.check and files:
            raise FozoError(f"{', '.join(files)} are stale; run make pages")
        for name, text in files.items():
            with atomic_write(ROOT / name) as stream:
                stream.write(text.encode())
            print(name)


if __name__ == "__main__":
    main()
