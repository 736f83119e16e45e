"""The report: the structure of the page, the numbers in the tables, and how a browser shows it."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from html import escape, unescape
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

from fozo.bench.plan import AVERAGE, Experiment, Recipe, StreamPlan, load_recipe, names
from fozo.bench.report.charts import Series, line_chart, ticks
from fozo.bench.report.page import COLOURS, write_report
from fozo.bench.report.tables import table_of, words
from fozo.bench.store import collect
from fozo.data.corruptions import KINDS
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
    assert checker.count["section"] == checker.count["table"] == 5
    # table1, figure1: time, passes, bars; figureE1 (a single mixed domain): time, passes; tableD1: its curve.
    assert checker.count["svg"] == 3 + 3 + 2 + 1
    assert "prefers-color-scheme: dark" in text and "@media print" in text and 'name="viewport"' in text
    assert "fozo bench table1 --model" in text and "nan" not in text.lower().replace("finance", "")


def test_the_papers_numbers_stand_beside_ours(runs: Path) -> None:
    groups = {group.recipe.name: group for group in collect(runs)}
    table = table_of(groups["table1"])
    assert table.columns[0] == "Gauss" and table.columns[15] == AVERAGE and len(table.rows) == 6
    fozo = dict(table.rows)["FOZO"]
    average = fozo[15]
    assert average is not None and average.paper == 59.52 and average.std is not None
    both = groups["table1"].of("FOZO")
    assert average.ours == pytest.approx(sum(run.measures.average for run in both) / 2)
    assert average.difference == pytest.approx(average.ours - 59.52)
    assert average.low is not None and average.high is not None and average.low < average.ours < average.high
    for place, kind in enumerate(KINDS):
        cell = fozo[place]
        assert cell is not None and cell.paper == load_recipe("table1").rows[-1].paper[kind]
    four = table_of(groups["table4"])
    assert four.columns == ("R", "Sketch", "V2")
    sketch, v2 = dict(four.rows)["FOZO"][1:]
    assert sketch is not None and sketch.paper == 50.5 and v2 is not None and v2.paper is None
    budgets = table_of(groups["figure1"])
    last = dict(budgets.rows)["FOZO"][budgets.columns.index("1400 s")]
    assert last is not None and last.paper == 66.6
    assert last.ours == pytest.approx(groups["figure1"].first("FOZO").measures.average)


def test_other_forms_hold_the_same_numbers(page: Path, runs: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(page.with_suffix(".csv").read_text())))
    fozo = next(r for r in rows if (r["recipe"], r["row"], r["column"]) == ("table1", "FOZO", AVERAGE))
    table = table_of(next(group for group in collect(runs) if group.recipe.name == "table1"))
    cell = dict(table.rows)["FOZO"][15]
    assert cell is not None and float(fozo["ours"]) == pytest.approx(cell.ours, abs=1e-3) and fozo["paper"] == "59.5200"
    text = page.with_suffix(".md").read_text()
    assert words(cell) in text and f"{cell.ours:.2f}" in text
    widths = {line.count("|") for line in text.split("## Table 1")[1].split("##")[0].splitlines() if "|" in line}
    assert len(widths) == 1  # every row has every column
    tex = page.with_suffix(".tex").read_text()
    assert f"{cell.ours:.2f}" in tex and "\\textcolor{gray}{59.52}" in tex and "\\#Params" in tex
    assert tex.count("\\begin{table*}") == tex.count("\\end{table*}") == 5
    assert not re.search(r"(?<!\\)[%#_]", tex.split("\n", 1)[1])  # nothing that LaTeX would choke on


def test_settings_that_cannot_be_compared_stand_apart(tmp_path: Path) -> None:
    recipe = Recipe("mine", "Mine & <yours>", (Experiment("a <b>", "fozo"), Experiment("b", "noadapt")))
    invent(tmp_path, recipe, batches=2)
    invent(tmp_path, recipe, batches=2, severity=3)
    groups = collect(tmp_path)
    assert [("severity 3" in g.setting, len(g.runs)) for g in groups] == [(True, 2), (False, 2)]
    (html, *_), stale = write_report(tmp_path, tmp_path / "report.html")
    text = html.read_text()
    assert stale == [] and "Not shown" not in text
    assert "Mine &amp; &lt;yours&gt;" in text and "a &lt;b&gt;" in text and "<yours>" not in text


def test_rows_may_have_other_domains_than_their_neighbours(tmp_path: Path) -> None:
    kinds = (("fog", "snow"), ("snow", "frost"))
    rows = tuple(Experiment(f"row {i}", "fozo", {}, StreamPlan(kinds=own)) for i, own in enumerate(kinds))
    invent(tmp_path, Recipe("mine", "Mine", rows), batches=2)
    table = table_of(collect(tmp_path)[0])
    assert table.columns[:3] == ("Fg", "Snw", "Frst")
    assert [[cell is None for cell in cells[:3]] for _, cells in table.rows] == [
        [False, False, True], [True, False, False],
    ]  # fmt: skip
    assert "Accuracy under each corruption" not in write_report(tmp_path, tmp_path / "report.html")[0][0].read_text()


def test_ticks_and_flat_curves() -> None:
    assert ticks(0, 100) == [0, 20, 40, 60, 80, 100] and ticks(59.1, 59.6) == [59.1, 59.2, 59.3, 59.4, 59.5, 59.6]
    svg = line_chart("flat", [Series("one", [5], [50.0], 0)], "x", "y", dots=True)
    assert "circle" in svg and "nan" not in svg and "inf" not in svg


FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


PROBE = """<!DOCTYPE html><iframe id="page" style="width: 390px; height: 900px; border: 0" srcdoc="{page}"></iframe>
<script>addEventListener("load", () => {{
  const view = document.getElementById("page").contentWindow, root = view.document.documentElement;
  document.title = JSON.stringify({{
    width: root.scrollWidth, screen: view.innerWidth, tables: view.document.querySelectorAll("table").length,
    paper: view.getComputedStyle(view.document.body).backgroundColor,
    fetched: view.performance.getEntriesByType("resource").map((entry) => entry.name)}});
}});</script>"""
"""The page as a phone of 390 points shows it: a window of chromium's own cannot be made that narrow."""


@pytest.mark.parametrize(("scheme", "dark"), [(1, False), (0, True)])
def test_a_browser_lays_it_out(page: Path, tmp_path: Path, scheme: int, dark: bool) -> None:
    """On a phone nothing but tables and charts, which scroll by themselves, may be wider than the screen."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs chromium, which is not on this machine; the structure of the page is tested without it")
    file = tmp_path / "probe.html"
    file.write_text(PROBE.format(page=escape(page.read_text())))
    shown = subprocess.run(
        [browser, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", f"--blink-settings=preferredColorScheme={scheme}",
         "--enable-logging=stderr", "--window-size=800,1000", "--dump-dom", str(file)],
        capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip
    match = re.search(r"<title>(.*?)</title>", shown.stdout)
    assert match is not None, shown.stdout[-500:]
    found = json.loads(unescape(match[1]))
    assert found["screen"] == 390 and found["width"] <= 390 and found["tables"] == 5
    assert found["fetched"] == [] and "CONSOLE" not in shown.stderr
    brightness = [int(number) for number in re.findall(r"\d+", found["paper"])]
    assert max(brightness) < 60 if dark else min(brightness) > 230, found


def test_every_row_of_a_recipe_has_its_own_colour() -> None:
    most = max(len({row.label for row in load_recipe(name).rows if row.x is None}) for name in names())
    css = files("fozo.bench.report").joinpath("report.css").read_text()
    assert most <= COLOURS and f".c{COLOURS - 1} {{" in css
