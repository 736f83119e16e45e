"""The report: the structure of the page, the numbers in the tables, and how a browser shows it."""

import csv
import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import fozo
from fozo.bench.gains import by_image, gains, over_base
from fozo.bench.measures import BatchRecord, score
from fozo.bench.plan import AVERAGE, Experiment, Recipe, StreamPlan, load_recipe, names
from fozo.bench.report.page import timeline_page, write_report
from fozo.bench.report.render import assign_colours
from fozo.bench.report.tables import table_of
from fozo.bench.store import collect
from fozo.data.corruptions import KINDS
from fozo.methods import registry
from tests.bench.invented import invent


class Checker(HTMLParser):
    """Checks that tags nest, and gathers what a page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.outside: list[str] = []
        self.count: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag not in ("meta", "br"):
            self.open.append(tag)
        for name, value in attrs:
            if name == "id" and value:
                assert value not in self.ids, f"two elements are called {value}"
                self.ids.add(value)
            if name == "href" and value:
                self.links.add(value)
            if name in ("src", "srcset", "data") or (value and "//" in value):
                self.outside.append(f"{tag} {name}={value}")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing that is open"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    invent(out, "table1", seeds=(0, 1))
    invent(out, "table4")
    invent(out, "tableD1", batches=2)
    invent(out, "figure1", batches=8)
    invent(out, "figureE1")
    return out


@pytest.fixture(scope="module")
def page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "report.html"
    write_report(runs, out)
    return out


def test_the_page_is_whole_and_needs_nothing_from_outside(page: Path) -> None:
    text = page.read_text()
    checker = Checker()
    checker.feed(text)
    assert checker.open == [] and text.startswith("<!DOCTYPE html>")
    assert checker.outside == [] and "script" not in checker.count and "@import" not in text and "url(" not in text
    assert {link.removeprefix("#") for link in checker.links} <= checker.ids
    assert checker.count["section"] == checker.count["table"] == 5 and "img" not in checker.count
    assert checker.count["svg"] == 3  # table1, figure1, tableD1; figureE1 has too few images for a curve
    assert text.count('class="conclusion"') == 1 + 1 + 1 + 3 + 1
    assert "prefers-color-scheme: dark" in text and "@media print" in text and 'name="viewport"' in text
    assert "fozo bench table1 --model" in text and "nan" not in text.lower().replace("finance", "")


def test_the_papers_numbers_stand_beside_ours(runs: Path) -> None:
    groups = {group.recipe.name: group for group in collect(runs)}
    table = table_of(groups["table1"])
    assert table.columns[0] == "Gaussian noise" and table.columns[15] == AVERAGE and len(table.rows) == 6
    fozo = dict(table.rows)["FOZO"]
    average = fozo[15]
    assert average is not None and average.paper == 59.52 and average.std is not None
    both = groups["table1"].of("FOZO")
    assert average.ours == pytest.approx(sum(run.measures.average for run in both) / 2)
    assert average.difference == pytest.approx(average.ours - 59.52)
    assert average.within is not None and average.within.low < average.ours < average.within.high
    for index, kind in enumerate(KINDS):
        cell = fozo[index]
        assert cell is not None and cell.paper == load_recipe("table1").rows[-1].paper[kind]
    four = table_of(groups["table4"])
    assert four.columns == ("R", "Sketch", "V2")
    sketch, v2 = dict(four.rows)["FOZO"][1:]
    assert sketch is not None and sketch.paper == 50.5 and v2 is not None and v2.paper is None
    budgets = table_of(groups["figure1"])
    last = dict(budgets.rows)["FOZO"][budgets.columns.index("1400 s")]
    assert last is not None and last.paper == 66.6
    assert last.ours == pytest.approx(groups["figure1"].of("FOZO")[0].measures.average)


def test_other_forms_hold_the_same_numbers(page: Path, runs: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(page.with_suffix(".csv").read_text())))
    fozo = next(r for r in rows if (r["recipe"], r["row"], r["column"]) == ("table1", "FOZO", AVERAGE))
    table = table_of(next(group for group in collect(runs) if group.recipe.name == "table1"))
    cell = dict(table.rows)["FOZO"][15]
    assert cell is not None and float(fozo["ours"]) == pytest.approx(cell.ours, abs=1e-3) and fozo["paper"] == "59.5200"
    text = page.with_suffix(".md").read_text()
    assert f"| {cell.ours:.2f} ± {cell.std:.2f} (paper 59.52, {cell.ours - 59.52:+.2f}) |" in text
    widths = {line.count("|") for line in text.split("## Table 1")[1].split("##")[0].splitlines() if "|" in line}
    assert len(widths) == 1  # every row has every column
    tex = page.with_suffix(".tex").read_text()
    assert f"{cell.ours:.2f}" in tex and "\\textcolor{gray}{59.52}" in tex and "\\#Params" in tex
    assert tex.count("\\begin{table*}") == tex.count("\\end{table*}") == 5
    assert not re.search(r"(?<!\\)[%#_]", tex.split("\n", 1)[1])  # nothing that LaTeX would choke on


def test_names_cannot_inject_markup(tmp_path: Path) -> None:
    hostile = "<script>alert('x')</script>\"'&"
    rows = tuple(Experiment(f"{hostile}{i}", "fozo", {"passes": 2 + 2 * i}) for i in range(4))
    invent(tmp_path, Recipe("mine", hostile, rows, note=hostile), batches=2)
    lines = [
        {"type": "reading", "image": 1, "time": 1.0, "sentence": hostile, "expected_accuracy": 0.5},
        {"type": "event", "image": 1, "time": 1.0, "name": hostile, "text": hostile},
    ]
    pages = {
        "report": write_report(tmp_path, tmp_path / "report.html")[0][0].read_text(),
        "timeline": timeline_page(hostile, lines),
    }
    for name, text in pages.items():
        checker = Checker()
        checker.feed(text)
        assert checker.open == [] and "script" not in checker.count and text.count("&lt;script&gt;") >= 2, name


def test_rows_may_have_other_domains_than_their_neighbours(tmp_path: Path) -> None:
    kinds = (("fog", "snow"), ("snow", "frost"))
    rows = tuple(Experiment(f"row {i}", "fozo", {}, StreamPlan(kinds=own)) for i, own in enumerate(kinds))
    invent(tmp_path, Recipe("mine", "Mine", rows), batches=2)
    table = table_of(collect(tmp_path)[0])
    assert table.columns[:3] == ("Fog", "Snow", "Frost")
    assert [[cell is None for cell in cells[:3]] for _, cells in table.rows] == [
        [False, False, True], [True, False, False],
    ]  # fmt: skip
    assert write_report(tmp_path, tmp_path / "report.html")[0][0].is_file()


def test_a_method_has_one_colour_everywhere_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row.label: row.method for name in names() for row in load_recipe(name).rows}
    infos = fozo.list_methods()
    usual = assign_colours({info.label: name for name, info in infos.items()})
    assert len(set(usual.values())) == len(infos) and usual["NoAdapt"] == 0
    for some in (["FOA", "ours", "Align"], ["Align", "FOA (FP=28)", "NoAdapt"], list(rows)):
        indices = assign_colours({label: rows.get(label, "unknown") for label in some})
        assert indices["Align"] == usual["Align"] and set(indices) == set(some)
    assert assign_colours({"FOA (FP=28)": "foa", "Align": "align"})["FOA (FP=28)"] == usual["FOA"]
    several = assign_colours(
        {"FOA, 2 passes": "foa", "FOA, 4 passes": "foa", "FOA": "foa", "one": "", "NoAdapt": "noadapt"}
    )
    assert several["FOA"] == usual["FOA"] and len(set(several.values())) == 5
    monkeypatch.setattr(registry, "_REGISTRY", {**registry._REGISTRY, "aaa": type("Aaa", (fozo.NoAdapt,), {})})
    monkeypatch.setattr(registry._REGISTRY["aaa"], "__module__", "somebody.elses")
    assert assign_colours({info.label: name for name, info in infos.items()}) == usual  # a plug-in changes no other's
    assert assign_colours({"Align": "align", "Aaa": "aaa"})["Aaa"] not in usual.values()


def records(*counts: tuple[str, int], named: bool = False) -> list[BatchRecord]:
    """Batches of ten images, n of them right: the first ones, which may be named."""
    found = []
    for index, (domain, correct) in enumerate(counts):
        labels = np.zeros(10, dtype=np.int64)
        logits = np.zeros((10, 2))
        logits[np.arange(10), (np.arange(10) >= correct).astype(int)] = 1
        which = np.arange(10 * index, 10 * index + 10) % 40
        found.append(score(logits, labels, index=index, domain=domain, samples=which if named else None))
    return found


def test_pairs_by_image() -> None:
    ours, theirs = [[("fog", k) for k in each] for each in ((9, 8, 9, 9), (5, 6, 5, 6))]
    named = by_image([records(*ours, named=True)], [records(*theirs, named=True)]).mean
    assert named.value == pytest.approx(32.5)
    assert named.side == 1 and named.within is not None
    assert named.within.low == pytest.approx(17.5, abs=2.6) and named.within.high == pytest.approx(47.5, abs=2.6)
    same = by_image([records(*ours, named=True)], [records(*ours, named=True)]).mean
    assert same.value == 0 and same.side == 0 and str(same) == "0.0 (0.0 to 0.0)"
    few = by_image([records(("fog", 3), named=True)], [records(("fog", 2), named=True)]).mean
    assert few.value == pytest.approx(10) and few.within is None  # ten images
    again = [records(*ours, named=True), records(*theirs, named=True)]  # a seed that gains, and one that does not
    seeds = by_image(again, [records(*theirs, named=True)]).mean
    assert seeds.value == pytest.approx(16.25) and seeds.within is not None
    assert seeds.within.low <= 1 and seeds.within.high > 30  # which says how much seeds differ


def test_domains_are_drawn_again_too() -> None:
    """Its spread is that of a mean of independent domains, whatever the images say."""
    kinds = [f"kind{number}" for number in range(16)]
    better = [10 if number % 2 else 6 for number in range(16)]
    ours = records(*zip(kinds, better, strict=True), named=True)
    gain = by_image([ours], [records(*((kind, 5) for kind in kinds), named=True)], most=40).mean
    assert gain.value == pytest.approx(30) and gain.over_domains is not None
    half = (gain.over_domains.high - gain.over_domains.low) / 2
    assert half == pytest.approx(1.96 * 20 / 4, rel=0.1)  # gains of 10 and 50 points


def test_images_that_come_back_are_not_more_images() -> None:
    """Ten rounds of the same forty images say no more than one of them."""
    once = [[("fog", k) for k in each] for each in ((9, 8, 9, 9), (5, 6, 5, 6))]
    single, tenfold = (
        by_image([records(*(once[0] * rounds), named=True)], [records(*(once[1] * rounds), named=True)], most=40).mean
        for rounds in (1, 10)
    )
    assert single.within is not None and tenfold.within is not None and tenfold.value == pytest.approx(single.value)
    assert tenfold.within.low == pytest.approx(single.within.low)
    assert tenfold.within.high == pytest.approx(single.within.high)


def test_records_that_do_not_name_images_are_not_paired(tmp_path: Path) -> None:
    recipe = Recipe("mine", "Mine", (Experiment("NoAdapt", "noadapt"), Experiment("FOZO", "fozo", {"passes": 28})))
    invent(tmp_path, recipe)
    (ours,), (base,) = (collect(tmp_path)[0].of(label) for label in ("FOZO", "NoAdapt"))
    assert gains([ours], [base]) is not None
    ours.records()[0] = replace(ours.records()[0], right=())
    assert gains([ours], [base]) is None


def test_tuned_rows_stand_behind_the_published_ones_in_their_colour(tmp_path: Path) -> None:
    recipe = load_recipe("evidence")
    titles = ("NoAdapt", "NEO", "PEA", "NEO (tuned)")
    rows = [row for row in recipe.rows if row.column == "continual, severity 5" and row.title in titles]
    rows = [row for row in rows if row.models in ("", "vit_tiny")]
    rows += [replace(rows[0], label="FOA", method="foa", constants="tuned")]
    invent(tmp_path, replace(recipe, rows=tuple(rows)), batches=4)
    (group,) = collect(tmp_path)
    assert group.labels == ["NoAdapt", "NEO", "NEO (tuned)", "PEA", "FOA (tuned)"]
    # One kind of stream only: its corruptions are columns, though it is not called an average.
    table = table_of(group, over_base(group))
    assert "Gaussian noise" in table.columns and "continual, severity 5" in table.columns and "ECE" in table.columns
    write_report(tmp_path, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    colour = assign_colours({"NEO": "neo", "PEA": "pea"})["NEO"]
    assert f'curve c{colour} dashed"' in text and f'curve c{colour}"' in text
