"""Tables and charts of README and docs, from the CSV records in ``results/``.

    python -m benchmarks.tables              # write every table and chart; name the files that changed
    python -m benchmarks.tables --check      # write nothing; fail where one is stale
    python -m benchmarks.tables records RUNS ...  # make the CSV records of finished runs anew

A page holds a table between ``<!-- table: NAME -->`` and ``<!-- end -->``; ``TABLES`` has the names of each page. Files
of results/tables are shown as they are; other tables and charts are computed from gains.csv, domains.csv,
detectors.csv and ssd.csv. Charts go to docs/results/. People write the sentences around them.

``records`` reads folders that ``fozo bench evidence --out RUNS`` wrote, and the ``.tar.xz`` archives in them; it writes
gains.csv and domains.csv (benchmarks/records.py).
"""

import argparse
import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TypeAlias

from benchmarks import charts, records
from benchmarks.charts import Gain
from benchmarks.common import markdown, refusals
from fozo.bench.gains import BASE, signed
from fozo.errors import FozoError
from fozo.io import atomic_write
from fozo.methods.registry import list_methods, method_class
from fozo.methods.static import StaticFrontEnd

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
MARKS = re.compile(r"(<!-- table: ([^>]+) -->\n(\n?))(?:.*?)(<!-- end -->)", re.DOTALL)
OURS = ("Align", "Equalise")
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


def cell(row: Row, digits: int = 1) -> str:
    """The value of a line as it is, or as a gain where the line has an interval: bold where it is significant."""
    if row.get("half"):
        gain = Gain.around(row, "value")
        return bold(gain, str(gain) if digits == 1 else f"{gain.value:+.{digits}f} ± {float(row['half']):.{digits}f}")
    if row.get("low"):
        gain = Gain.of(row, "value")
        return bold(gain, f"{signed(gain.value)} ({gain.low:+.1f} to {gain.high:+.1f})")
    return row["value"]


def pivot(heads: Sequence[str], rows: Iterable[Row], index: Sequence[str], digits: int = 1) -> str:
    """A line for each value of the index, a column for each value of ``column``; what shares a place is listed."""
    columns: dict[str, None] = {}
    lines: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for row in rows:
        columns.setdefault(row["column"])
        line = lines.setdefault(tuple(row[key] for key in index), {})
        line.setdefault(row["column"], []).append(cell(row, digits))
    body = [[*key, *(", ".join(line[name]) for name in columns)] for key, line in lines.items()]
    return markdown([*heads, *columns], body)


def table(name: str, digits: int = 1) -> str:
    """A record of results/tables as it is; one with a key ``column`` has a line for each cell."""
    rows = read(f"tables/{name}")
    heads = list(rows[0])
    if "column" not in heads:
        return markdown(heads, [[*row.values()] for row in rows])
    index = heads[: heads.index("column")]
    return pivot(index, rows, index, digits)


def words(domain: str) -> str:
    return domain.replace("_", " ")


def listed(names: Sequence[str]) -> str:
    if len(names) < 2:
        return "".join(names) or "none"
    return f"{', '.join(names[:-1])} and {names[-1]}"


# README.md and docs/results.md


def comparison(stream: str = "continual", severity: int = 5, model: str = "ViT-Tiny", images: int = 512) -> list[Row]:
    """Rows of one stream: the plain model, then the best method first, its tuned rows right behind it."""
    rows = read("gains", model=model, stream=stream, severity=severity, images=images, corruptions=15)
    rows = [{**row, "low": row["gain_low"], "high": row["gain_high"]} for row in rows]
    plain, *others = sorted(rows, key=lambda row: row["row"] != BASE)
    order = charts.by_method({row["row"]: Gain.of(row).value for row in others})
    return [plain, *sorted(others, key=lambda row: order.index(row["row"]))]


def comparison_table() -> str:
    lines = []
    told = set()
    for row in comparison():
        name = charts.published(row["row"])
        if (name, row["constants"]) in told:  # tuned to constants that stand above
            continue
        told.add((name, row["constants"]))
        gains = ["-", "-"]
        if row["gain"]:
            own = Gain.of(row)
            clean = Gain.of(row, "clean_gain", "clean_low", "clean_high")
            gains = [bold(own, str(own)), bold(clean, str(clean))]
        lines.append([name, row["source"] or "-", value(row, "gflop_per_image"), value(row, "top1"), *gains])
    return markdown(["", "constants", "GFLOP", "top-1", "gain", "after, on clean"], lines)


def gains_table() -> str:
    """What a visitor asks first, on continual streams."""
    names = ("plain model, top-1 (%)", "FOZO as published, 2 passes", "best rival, published or tuned",
             "**Align, 1 pass**", "Align, clean images afterwards", "Align, held-out classes",
             "its largest loss in a domain")  # fmt: skip
    heads = [""]
    columns = []
    for model, severity, images in (
        ("ViT-Tiny", 5, 512), ("ViT-Tiny", 3, 128), ("DeiT-Tiny", 5, 192), ("DeiT-Tiny", 3, 128)
    ):  # fmt: skip
        rows = {row["row"]: row for row in comparison("continual", severity, model, images)}
        align = rows["Align"]
        rivals = {name: float(row["gain"]) for name, row in rows.items() if name not in (BASE, *OURS)}
        rival = max(rivals, key=lambda name: rivals[name])
        (held_out,) = read("tables/held-out", model=model, severity=severity)
        heads.append(f"{model}, severity {severity}<br>{images} images")
        columns.append([
            value(rows[BASE], "top1"),
            str(Gain.of(rows["FOZO"])),
            f"{rival} {Gain.of(rows[rival])}",
            f"**{Gain.of(align)}**",
            str(Gain.of(align, "clean_gain", "clean_low", "clean_high")),
            held_out["difference (95 %)"],
            held_out["largest loss"],
        ])  # fmt: skip
    return markdown(heads, zip(names, *columns, strict=True))


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
        needs = ", ".join(sorted(info.needs)) or "-"
        line = [f"`{name}`", cls.__name__, paper, info.passes, needs, replayed]
        lines.append((-int(year[0]) if year else -9999, name, line))
    heads = ["name", "class", "paper", "passes an image", "needs", "replayed"]
    return markdown(heads, [line for _, _, line in sorted(lines)]).replace("---:", "---")


STREAMS = {"ViT-Tiny": {"continual": 512, "reset": 192}, "DeiT-Tiny": {"continual": 192, "reset": 192}}
"""Images of each corruption at severity 5."""


def losses_table() -> str:
    """Where Align gains nothing significant, and where a rival is significantly ahead of it."""
    lines = []
    for model, streams in STREAMS.items():
        for stream, images in streams.items():
            rows = read("domains", model=model, stream=stream, severity=5, images=images)
            equal = []
            ahead = []
            for domain in dict.fromkeys(row["domain"] for row in rows if row["domain"] not in (ALL, "clean")):
                own = {row["row"]: row for row in rows if row["domain"] == domain}
                gain = Gain.around(own["Align"])
                if gain.side == 0:
                    equal.append(f"{words(domain)} ({signed(gain.value)})")
                leads = [
                    (lead.value, name)
                    for name, row in own.items()
                    if name not in OURS and (lead := Gain.around(row, "lead", "lead_half")).side < 0
                ]
                if leads:
                    least, name = min(leads)
                    ahead.append(f"{words(domain)} ({name}, by {-least:.1f})")
            lines.append([f"{model}, {stream}, {images} images", listed(equal), listed(ahead)])
    return markdown(["", "no significant gain on", "significantly behind a rival on"], lines)


# docs/detectors.md

ARMS = {"plain": "no front end", "autolevels": "auto levels", "histeq": "histogram eq.", "greyworld": "grey world",
        "clahe": "CLAHE", "equalise": "`equalise`"}  # fmt: skip
REAL = ("real fog", "real rain", "real sand", "real snow", "low light", "mean of real domains")
MADE = ("clear", "made fog", "made contrast", "made defocus_blur", "made gaussian_noise")


def detectors_table(record: str, domains: Sequence[str], arms: Sequence[str], held_out: bool = False) -> str:
    """A line for each domain: AP50 without a front end, and every arm's difference to it; losses in italics."""
    rows = []
    for domain, part in [*((name, ALL) for name in domains), *([(REAL[-1], "held out")] if held_out else [])]:
        for arm in ("plain", *arms):
            (row,) = read(record, arm=arm, domain=domain, part=part)
            name = re.sub("^(made|real) |gaussian_|_blur| domains$", "", domain)
            name += ", held out" if part != ALL else f" ({row['images']})" if domain in REAL[:-1] else ""
            text = value(row, "ap50")
            if arm != "plain":
                gain = Gain.around(row, "against_plain", "plain_half_width")
                mark = {1: "**", 0: "", -1: "*"}[gain.side]
                text = f"{mark}{gain}{mark}"
            rows.append({"domain": name, "column": ARMS[arm], "value": text})
    return pivot([""], rows, ["domain"])


TABLES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "README.md": {"gains": gains_table, "methods": methods_table},
    "docs/results.md": {
        "comparison": comparison_table, "losses": losses_table, "deadlines": partial(table, "deadlines"),
        "walk": partial(table, "walk"),
        "refusals": partial(table, "refusals"),
        "streams": partial(table, "streams"),
    },
    "docs/cost.md": {"overhead": partial(table, "overhead")},
    "docs/fozo.md": {
        "scaled": partial(table, "scaled"),
        "diagnosis": partial(table, "diagnosis"),
        "behind": partial(table, "behind", digits=2),
    },
    "docs/ablation.md": {
        "held-out classes": partial(table, "held-out"),
        "narrow": partial(table, "narrow"),
    },
    "docs/detectors.md": {
        "made": partial(detectors_table, "detectors", MADE, ("clahe", "equalise")),
        "real": partial(detectors_table, "detectors", REAL, ("clahe", "equalise"), held_out=True),
        "others": partial(
            detectors_table, "detectors", (*MADE[:1], MADE[2], REAL[-1]), ("autolevels", "histeq", "greyworld")
        ),
        "second": partial(detectors_table, "ssd", (MADE[0], *REAL), ("clahe", "equalise")),
        "narrow": partial(table, "content"),
        "choice": partial(table, "choice"),
        "dark": partial(table, "dark"),
    },
}  # fmt: skip


# Charts


def gains_chart() -> str:
    tiers: dict[str, dict[str, dict[str, Gain]]] = {}
    for row in read("gains", corruptions=15):
        if row["row"] != BASE:
            title = f"{row['model']}, {row['stream']}, severity {row['severity']}, {row['images']} images"
            column = tiers.setdefault(row["severity"], {}).setdefault(title, {})
            column[row["row"]] = Gain.of(row, "gain", "gain_low", "gain_high")
    return charts.whiskers("Gains over NoAdapt", list(tiers.values()), -12, 20)


def whiskers_chart(name: str, title: str, low: float, high: float, best_first: bool = True) -> str:
    """Draw a record of results/tables whose lines are gains: of a column and a row."""
    columns: dict[str, dict[str, Gain]] = {}
    for row in read(f"tables/{name}"):
        columns.setdefault(row["column"], {})[row["row"]] = Gain.of(row)
    return charts.whiskers(title, [columns], low, high, best_first)


def corruptions_chart() -> str:
    panels: dict[str, dict[str, dict[str, Gain]]] = {}
    for model, stream, severity, images in (("ViT-Tiny", "continual", 5, 512), ("DeiT-Tiny", "reset", 3, 128)):
        rows = panels.setdefault(f"{model}, {stream}, severity {severity}, {images} images", {})
        for row in read("domains", model=model, stream=stream, severity=severity, images=images):
            if row["domain"] != ALL:
                rows.setdefault(row["row"], {})[words(row["domain"])] = Gain.around(row)
    return charts.heat("Gains by corruption", panels)


def curves_chart(name: str, title: str, count: int = 3, foot: str = "", one_scale: bool = False) -> str:
    """Draw a record of results/tables whose lines are points: of a panel and a curve."""
    panels: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    for row in read(f"tables/{name}"):
        curve = panels.setdefault((row["panel"], row["x"]), {}).setdefault(row["curve"], [])
        curve.append((float(row["at"]), float(row["value"])))
    return charts.curves(title, panels, count, foot, one_scale)


LEARNING = (
    "points over NoAdapt against images of a corruption seen; blue: Align, red: published, gray: tuned or authors'"
)
CHARTS: Mapping[str, Callable[[], str]] = {
    "gains": gains_chart,
    "corruptions": corruptions_chart,
    "learning": partial(curves_chart, "learning", "Gain over NoAdapt against images seen", 5, LEARNING, one_scale=True),
    "evidence": partial(whiskers_chart, "evidence", "Gain of Align against evidence of drift", 0, 36, best_first=False),
    "narrow": partial(whiskers_chart, "narrow-gains", "Gains on narrow content", -12, 12),
    "epsilon": partial(curves_chart, "epsilon", "Eq. 12 against fixed epsilons"),
    "prompts": partial(curves_chart, "prompts", "What FOZO's prompts do"),
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
