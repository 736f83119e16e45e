"""The results page: its figures and sentences against records counted by hand, and what it refuses."""

import csv
import json
import tarfile
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from scipy.stats import t as student

import fozo
from benchmarks import conclusions, narrow, results, walk
from benchmarks.cells import Cell, Gain, Row, read_evidence, standing
from benchmarks.methods import MARKS, replaced
from benchmarks.pack import pack
from benchmarks.reproduction import FIGURES, MEASURED, effect, verdict
from benchmarks.sections import (
    UNTIMED,
    Evidence,
    collapsed,
    deadline_section,
    recovered,
    refusal_lines,
    refusal_picture,
    refusal_sentence,
    walk_table,
)  # fmt: skip
from fozo.bench.gains import signed
from fozo.bench.measures import score
from fozo.bench.plan import Recipe, Setting, load_recipe, names, published
from fozo.bench.store import CONDITIONS, RESULT, Run, Store, collect
from fozo.data import sample
from fozo.data.corruptions import KINDS
from fozo.errors import FozoError
from fozo.io import read_json, write_json
from fozo.methods.registry import list_methods
from tests.bench.invented import MODEL, finish, invent

LABELS = ("NoAdapt", "FOZO", "TENT", "NEO", "Align", "NEO (tuned)")


def written(records: list[Path], page: Path, tables: Path) -> None:
    with TemporaryDirectory() as scratch:
        groups, compared = results.read(records, Path(scratch))
        results.write(groups, compared, records[0], page, tables)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some rows of the long comparison's first stream, with two seeds of one, and of the stream of many passes."""
    out = tmp_path_factory.mktemp("runs")
    store, setting = Store(out / "evidence"), Setting(MODEL, images=96, stored=False)
    store.folder.mkdir()
    store.ask(load_recipe("evidence"), setting, (0, 1))
    first = {"continual, severity 5": LABELS, "continual, severity 5, 4 corruptions": ("NoAdapt", "Align", "CAZO")}
    for number, experiment in enumerate(load_recipe("evidence").experiments(setting, seeds=(0, 1))):
        chosen = experiment.label in first.get(experiment.column, ())
        if chosen and (experiment.seed == 0 or experiment.label == "FOZO"):
            finish(store, experiment, number, batches=3)
    recipe = load_recipe("narrow")
    rows = [row for row in recipe.rows if row.label in ("NoAdapt", "Align", "TENT") and row.column in ("dogs", "food")]
    invent(out, replace(recipe, rows=tuple(rows[:-1])), batches=2, severity=3)  # TENT lacks a group
    recipe = load_recipe("streams")
    rows = [row for row in recipe.rows if row.label in ("NoAdapt", "Align") and row.column in ("mixed", "continual")]
    invent(out, replace(recipe, rows=tuple(rows)), batches=2, severity=3, seeds=(0, 1))
    return out


def test_the_recipe_s_first_stream_is_the_paper_s_and_comes_first() -> None:
    rows = load_recipe("evidence").rows
    assert [row.label for row in rows[:3]] == ["NoAdapt", "Align", "Equalise"] and rows[0].stream.kinds == (
        *KINDS,
        "clean",
    )
    assert rows[0].stream.images == 1000 and rows[0].stream.severity == 5 and load_recipe("evidence").calibration == 512
    columns = list(dict.fromkeys(row.column for row in rows))
    assert columns[::2] == ["continual, severity 5", "reset, severity 5", "continual, severity 3", "reset, severity 3"]
    methods = {row.method for row in rows}
    assert methods == set(list_methods())
    assert all(len(row.stream.kinds) == 4 for row in rows if row.options.get("passes", 1) in (28, 41))


def test_the_page(runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    (tmp_path / "tables").mkdir()
    written([runs], page, tmp_path / "tables")
    text = page.read_text()
    (cell, few) = read_evidence(collect(runs))
    assert (cell.model, cell.scenario, cell.severity, cell.images) == ("ViT-Tiny", "continual", 5, 96)
    assert len(cell.domains) == 15 and cell.clean and len(few.domains) == 4
    assert set(few.rows) == {"NoAdapt", "Align", "CAZO"}
    sources = {"FOZO": "authors' program", "TENT": "FOZO paper", "Align": "fozo", "NEO (tuned)": "tuned"}
    for label, source in sources.items():
        start = f"| {label.removesuffix(' (tuned)')} | {source} |"
        line = next(line for line in text.splitlines() if line.startswith(start))
        shown = [field.strip() for field in line.split("|")[3:-1]]
        gains = [cell.gain(label), cell.gain(label, domains=("clean",))]
        assert shown == ["-", f"{cell.top(label):.1f}", *map(results.bold, gains)]
    flat = text.replace("\n", " ")
    assert conclusions.headline(cell) in flat and "of 3 rivals, published or tuned, is" in flat
    order = ("## How much", "## Where it does not", "## Under deadlines", "## Recovery", "## Narrow", "## How it was")
    assert sorted(order, key=text.index) == list(order) and "Not timed yet: `fozo bench tempora" in text
    assert all(len(line) <= results.WIDTH for line in text.splitlines() if not line.startswith(("|", "![")))
    assert "nan" not in text and str(runs) not in text and text.startswith("# Results")
    pictures = sorted((tmp_path / "results").glob("*.svg"))
    assert [path.stem for path in pictures] == ["corruptions", "gains", "learning", "narrow"]
    for path in pictures:
        ElementTree.fromstring(path.read_text())  # well formed
        assert f"(results/{path.name})" in text and "nan" not in path.read_text()
    (streams,) = (group for group in collect(runs) if group.recipe.name == "streams")
    mixed = narrow.gain(narrow.pairs(streams, "Align")["mixed"])
    assert f"corruptions mixed in a batch {signed(mixed.value)}" in flat and "single images" not in flat
    assert "--images 96" in text
    group = next(group for group in collect(runs) if group.recipe.name == "narrow")
    worst = min(("dogs", "food"), key=lambda name: narrow.gain(narrow.pairs(group, "Align")[name]).value)
    assert f"Align's worst group: {worst}, " in text.replace("\n", " ")
    (column,) = results.narrow_gains([group]).values()
    assert list(column) == ["Align"]
    paper = (tmp_path / "tables" / "reproduction.md").read_text()
    assert "| Table 1, FOZO | +4.0 | " in paper and "| Table 2, TENT | +2.8 | " in paper
    assert "`table1` (LAME -1.4, T3A -1.8, FOA +2.6, ZOA +3.0)" in paper and "`table3` (8 bits; FOZO +3.5)" in paper
    lines = list(csv.DictReader((tmp_path / "tables" / "gains.csv").open()))
    assert len(lines) == len(cell.rows) + len(few.rows)
    (tent,) = (line for line in lines if line["row"] == "TENT")
    assert float(tent["gain"]) == pytest.approx(cell.gain("TENT").value, abs=1e-3) and tent["source"] == "FOZO paper"
    assert json.loads(tent["constants"])["rate"] == 0.001 and tent["preset"] == "paper"


def test_recovery_collapse_and_evidence() -> None:
    plain = [[0, 1] * 4, [0, 1] * 4]
    cell = invented(NoAdapt=plain, Align=[[0, 0, 0, 0, 1, 1, 1, 1], [1] * 8], NEO=[[0, 1] * 4, [0] * 8])
    for row in cell.rows.values():  # batches of two images
        row.correct[0] = {n: [(int(own[i : i + 2].sum()), 2) for i in (0, 2, 4, 6)] for n, own in row.seeds[0].items()}
    assert (recovered(cell, "Align"), recovered(cell, "NoAdapt")) == (4, 0)
    assert (collapsed(cell, "NEO"), collapsed(cell, "Align")) == (6, None)
    cell.rows["Align"].correct[0] = {name: batches[:3] for name, batches in cell.rows["Align"].correct[0].items()}
    found = Evidence(np.array([1.0, 1.2, 50.0, 500.0, 600.0]), np.full(5, 64.0), np.array([0.0, 2.0, 9.0, 20.0, 22.0]))
    assert found.share[:2].tolist() == [0, 0] and 0 < found.share[2] < 1 and found.share[3] == pytest.approx(1)
    (nothing, often, gain), (everything, _, large) = refusal_lines(found)
    assert (nothing, often, gain.value, everything, large.value) == ("nothing", 40.0, 1.0, "all", 21.0)
    assert "nothing in 40 % (gain +1.0" in refusal_sentence(found)
    ElementTree.fromstring(refusal_picture(found, bins=2))


def test_the_walk_goes_through_all_corruptions_and_is_told_by_gains(tmp_path: Path) -> None:
    path = walk.steps()
    assert len(path) == 70 and path[0] == ("gaussian_noise", 5, "shot_noise", 0)
    assert path[4] == ("gaussian_noise", 1, "shot_noise", 4) and path[5] == ("shot_noise", 5, "impulse_noise", 0)
    found = walk.run(fozo.open_images(sample.IMAGES).take(40), *engine_and_source(), ["noadapt", "neo"], 1)
    for model in ("vit_tiny", "bundled", "vit_tiny"):  # the second time in the place of the first
        walk.write(tmp_path / "walk.csv", model, found)
    lines = list(csv.DictReader((tmp_path / "walk.csv").read_text(encoding="utf-8").splitlines()))
    assert len(lines) == 280 and {line["images"] for line in lines} == {"1"}
    right = {name: [int(line["correct"]) for line in lines if line["method"] == name] for name in ("noadapt", "neo")}
    gain = signed(float(100 * (np.mean(right["neo"]) - np.mean(right["noadapt"]))))
    table = walk_table(lines).splitlines()
    assert table[0] == "|  | bundled, 70 images | ViT-Tiny, 70 images |"
    assert table[2].startswith(f"| NEO | {gain} (") and table[2].count(f"| {gain} (") == 2


def engine_and_source() -> tuple[fozo.Engine, fozo.SourceStatistics]:
    model = sample.MODELS["float32"]
    return fozo.load_engine(model), sample.source(model)


def test_utilities_are_of_times_and_of_the_accuracies_of_the_cells(tmp_path: Path) -> None:
    assert deadline_section([]) == [UNTIMED]
    recipe = load_recipe("tempora")
    rows = tuple(row for row in recipe.rows if row.label in ("NoAdapt", "NEO") and row.column == "latency")
    invent(tmp_path, replace(recipe, rows=rows), batches=6)
    evidence = Store(tmp_path / "evidence")
    evidence.folder.mkdir()
    setting = Setting(MODEL, images=192, stored=False)
    evidence.ask(load_recipe("evidence"), setting, (0,))
    chosen = load_recipe("evidence").experiments(setting, labels=("NoAdapt", "NEO"), columns=("reset, severity 5",))
    for number, experiment in enumerate(chosen):
        finish(evidence, experiment, number, batches=6)
    words, table = deadline_section(collect(tmp_path))
    assert "ViT-Tiny, severity 5, reset" in words and table.count("\n| N") == 2


def test_a_gain_is_paired_by_image_whatever_the_order_and_knows_of_seeds(runs: Path) -> None:
    cell = read_evidence(collect(runs))[0]
    own, base = cell.rows["FOZO"], cell.rows["NoAdapt"]
    assert own.hits(cell.domains).shape == (2, 15, 96) and base.hits(cell.domains).shape == (1, 15, 96)
    each = own.hits(cell.domains).mean(axis=(0, 1)) - base.hits(cell.domains)[0].mean(axis=0)
    seeds = own.hits(cell.domains).mean(axis=(1, 2))
    of_images, of_seeds = each.var(ddof=1) / 96, seeds.var(ddof=1) / 2
    freedom = (of_images + of_seeds) ** 2 / (of_images**2 / 95 + of_seeds**2 / 1)
    half = 100 * student.ppf(0.975, freedom) * (of_images + of_seeds) ** 0.5
    gain = cell.gain("FOZO")
    assert gain.value == pytest.approx(100 * each.mean()) and gain.half == pytest.approx(half)
    assert cell.gain("NoAdapt", "FOZO").half == pytest.approx(half)  # whichever has the seeds
    group = next(group for group in collect(runs) if group.recipe.name == "evidence")
    assert "severity 5, 96 images" in group.setting  # what was run of it: severity 3 was asked for too
    domains = [run.measures.domains for run in group.of("FOZO", "continual, severity 5")]
    assert cell.top("FOZO") == pytest.approx(np.mean([each[name] for each in domains for name in cell.domains]))
    first = cell.gain("FOZO", domains=cell.domains[:1])
    assert first.half > gain.half  # one corruption tells less than fifteen
    assert own.bins[:, 0].sum() == 2 * 15 * 96  # not the clean images


def test_records_without_images_are_refused(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "records", lambda run: [replace(SCORED, domain="fog/5")])
    with pytest.raises(FozoError, match="does not say which images"):
        read_evidence(collect(runs))


SCORED = score(np.eye(6), np.arange(6))


def invented(**right: list[list[int]]) -> Cell:
    """A cell of two corruptions of as many images as are given, recognised or not."""
    cell = Cell("ViT-Tiny", "continual", 5, 8, ("fog/5", "snow/5"), clean=False)
    for label, domains in right.items():
        hits = {name: np.array(found, dtype=float) for name, found in zip(cell.domains, domains, strict=True)}
        batches = {name: [(int(own[i : i + 4].sum()), 4) for i in (0, 4)] for name, own in hits.items()}
        cell.rows[label] = Row(1.0, {0: hits}, {0: batches}, np.full((15, 3), 1.0))
    return cell


NONE, ALL, HALF = [0] * 8, [1] * 8, [1, 0] * 4


def test_sentences_follow_the_figures() -> None:
    better = invented(NoAdapt=[NONE, HALF], Align=[ALL, HALF], NEO=[NONE, HALF])
    assert "significantly ahead of a rival in 1 of 1" in conclusions.against_rivals([better])
    assert "It is significantly behind none" in conclusions.against_rivals([better])
    found = conclusions.losses(better)
    assert (found["significantly below NoAdapt on"], found["no significant gain on"]) == ("none", "snow (0.0)")
    worse = invented(NoAdapt=[ALL, HALF], Align=[NONE, HALF], NEO=[ALL, ALL])
    said = conclusions.against_rivals([worse])
    assert "in 0 of 1 comparisons" in said and "is behind NEO" in said
    found = conclusions.losses(worse)
    assert found["significantly below NoAdapt on"] == "fog (-100.0 ± 0.0)"
    assert found["no significant gain on"] == "snow (0.0)"
    assert found["significantly behind a rival on"] == "fog (NEO, by 100.0) and snow (NEO, by 50.0)"
    tied = invented(NoAdapt=[NONE, HALF], Align=[NONE, HALF], NEO=[NONE, HALF])
    assert "is not significantly different from NEO" in conclusions.against_rivals([tied])


def test_many_that_do_not_differ_are_counted() -> None:
    one = invented(NoAdapt=[NONE, HALF], Align=[ALL, HALF])
    names = ("snow/3", "a/3", "b/3", "fog/3", "c/3", "d/3")
    many = replace(one, domains=names)
    for row in one.rows.values():
        row.seeds[0] = {name: row.seeds[0]["fog/5" if name == "fog/3" else "snow/5"] for name in names}
    many.rows["Align"].seeds[0]["a/3"] = np.array([1, 0, 1, 0, 1, 0, 1, 1], dtype=float)
    assert conclusions.losses(many)["no significant gain on"] == "5 of 6"


def test_what_all_cells_share_is_said_once(tmp_path: Path) -> None:
    cell = invented(NoAdapt=[NONE, HALF], Align=[ALL, HALF], NEO=[NONE, HALF])
    other = replace(invented(NoAdapt=[NONE, HALF], Align=[ALL, ALL], NEO=[NONE, HALF]), scenario="reset")
    _, table, said = results.Page([cell, other], [], [], tmp_path).losses()
    assert table.splitlines()[0] == "| | no significant gain on |"
    assert said.startswith("Align is significantly below NoAdapt on no corruption. Align is significantly behind")
    _, table, said = results.Page([cell, replace(other, severity=3)], [], [], tmp_path).losses()
    assert "| significantly below NoAdapt on |" in table and "no corruption" not in said
    assert said.startswith("It has no significant gain at severity 3 on 0 to 0 of 15.")


def test_few_rows_on_more_images_are_reported_apart(tmp_path: Path) -> None:
    rivals = {name: [NONE, HALF] for name in ("NEO", "PEA", "ZOA", "FOA", "SAR", "TENT", "LAME", "T3A")}
    cell = invented(NoAdapt=[NONE, HALF], Align=[ALL, HALF], **rivals)
    wide = replace(cell, domains=("fog/5", "snow/5", "fog/5", "snow/5", "fog/5"))
    more = replace(wide, images=16, rows={name: wide.rows[name] for name in ("NoAdapt", "Align", "PEA")})
    main, apart = results.split([wide, more, cell])
    assert [len(main), len(apart)] == [1, 2] and main[0] is wide and apart[0] is more
    page = results.Page(main, apart[:1], [], tmp_path)
    assert "in 9 of 9 comparisons" in page.losses()[-1] and "16 images" not in "".join(page.gains())
    with pytest.raises(FozoError, match="no records of all corruptions"):
        results.split([cell])


def test_a_tuned_row_stands_behind_the_published_one() -> None:
    cell = invented(
        NoAdapt=[NONE, HALF], Align=[ALL, HALF], **{"NEO": [NONE, HALF], "NEO (tuned)": [ALL, HALF]},
        **{"PEA": [HALF, HALF], "PEA (tuned)": [HALF, HALF], "FOA (tuned)": [NONE, NONE]},
    )  # fmt: skip
    assert conclusions.adapting(cell) == ["Align", "NEO", "NEO (tuned)", "PEA", "PEA (tuned)", "FOA (tuned)"]
    cell.rows["PEA (tuned)"].constants = cell.rows["PEA"].constants = {"constants": {"momentum": 0.1}}
    assert [line.split(" | ")[0] for line in results.lead_table(cell, {}).splitlines()[2:]] == [
        "| NoAdapt", "| Align", "| NEO", "| NEO", "| PEA", "| FOA"
    ]  # fmt: skip


def test_a_larger_cell_with_all_rows_takes_a_smaller_one_s_place() -> None:
    short = invented(NoAdapt=[NONE, HALF], Align=[ALL, HALF], NEO=[NONE, HALF])
    long = replace(short, images=16)
    assert standing([short, long]) == [long] and standing([short, short]) == [short, short]
    other = replace(short, rows={**short.rows, "PEA": short.rows["NEO"]})
    assert standing([short, other]) == [other]  # as long, and fuller
    assert standing([other, long]) == [long, other]  # PEA ran in the shorter one only; most measured first
    fuller = replace(other, rows={**other.rows, **dict.fromkeys(("FOA", "LAME", "T3A"), short.rows["NEO"])})
    assert standing([long, fuller]) == [fuller, long]  # of more images, if of few rows
    for change in ({"model": "DeiT-Tiny"}, {"scenario": "reset"}, {"severity": 3}, {"domains": ("fog/5",)}):
        assert len(standing([short, replace(long, **change)])) == 2
    assert standing([replace(short, domains=("snow", "fog")), long]) == [long]  # names without severities


@pytest.mark.parametrize(
    "rows", [("NEO",), ("NEO (tuned)",), ("CAZO", "ZOA, 28 passes"), ("NEO", "NEO (tuned)", "SAR")]
)
def test_whatever_is_finished_makes_a_page(rows: tuple[str, ...], tmp_path: Path) -> None:
    cell = invented(NoAdapt=[NONE, HALF], Align=[ALL, HALF], **{row: [HALF, NONE] for row in rows})
    text = str(results.Page([cell], [], [], tmp_path))
    assert "nan" not in text and all(published(row) in text for row in rows) and len(list(tmp_path.glob("*.svg"))) == 3
    for path in tmp_path.glob("*.svg"):
        ElementTree.fromstring(path.read_text())


@pytest.mark.parametrize(
    ("ours", "half", "paper", "words"),
    [
        (1.0, 4.0, 3.0, "not measured well enough"), (3.0, 1.0, 3.5, "agrees"), (0.0, 1.0, 3.0, "no such effect"),
        (-3.0, 1.0, 3.0, "the opposite"), (1.5, 1.0, 5.0, "smaller"), (9.0, 1.0, 5.0, "larger"),
        (1.8, 2.0, 3.0, "but is not significant"),
    ],
)  # fmt: skip
def test_verdicts_on_the_paper(ours: float, half: float, paper: float, words: str) -> None:
    assert words in verdict(Gain.around(ours, half), paper)


def test_every_table_and_figure_of_the_paper_has_a_line() -> None:
    paper = {name for name in names() if name.startswith(("table", "figure"))}
    assert paper == {*FIGURES, *MEASURED}
    assert effect("table4") == "R +4.6, Sketch +5.6" and effect("tableD3") == effect("figureE1") == ""


def test_archives_are_read_and_what_is_missing_is_said(runs: Path, tmp_path: Path) -> None:
    packed = tmp_path / "records"
    packed.mkdir()
    with tarfile.open(packed / "evidence.tar.xz", "w:xz") as file:
        for name in ("evidence", "narrow", "streams"):
            file.add(runs / name, name)
    written([packed], tmp_path / "page.md", tmp_path)
    written([runs], tmp_path / "same.md", tmp_path)
    assert (tmp_path / "page.md").read_text() == (tmp_path / "same.md").read_text().replace("(same/", "(page/")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FozoError, match="no records of all corruptions"):
        written([tmp_path / "empty"], tmp_path / "none.md", tmp_path)
    with pytest.raises(FozoError, match="no folder"):
        written([tmp_path / "nowhere"], tmp_path / "none.md", tmp_path)
    assert not (tmp_path / "none.md").exists()


def test_narrow_content_names_rivals_with_their_gains_and_not_equalise() -> None:
    gains = {"Align": 5.0, "Equalise": 2.0, "NEO": -3.0, "FOZO": -9.0, "LAME": 0.5, "T3A": 3.0, "CLAHE": 4.0}
    column = {label: Gain(value, value - 1, value + 1) for label, value in gains.items()}
    assert conclusions.narrow({"X": column, "Y": {"Align": column["Align"]}, "Z": {}}) == (
        "X: Align +5.0 ± 1.0 and Equalise +2.0 ± 1.0. Rivals significantly above NoAdapt: CLAHE (+4.0) and T3A (+3.0). "
        "Below: FOZO (-9.0) and NEO (-3.0). Y: Align +5.0 ± 1.0. Z: no Align."
    )


def test_a_section_is_put_where_the_old_one_was() -> None:
    page = f"by hand\n{MARKS[0]}\nold\n{MARKS[1]}\nalso by hand\n"
    assert replaced(page, "new\n") == f"by hand\n{MARKS[0]}\nnew\n{MARKS[1]}\nalso by hand\n"
    with pytest.raises(FozoError, match="has lost its comments"):
        replaced("by hand", "new")


# --- archives ---------------------------------------------------------------------------------------------------------


def some(*labels: str) -> Recipe:
    recipe = load_recipe("quick")
    return replace(recipe, rows=tuple(row for row in recipe.rows if row.label in labels))


def test_folders_are_joined(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    first = invent(one, some("NoAdapt"), batches=2, seeds=(0, 1))
    second = invent(two, some("NoAdapt", "Align"), batches=2, seeds=(1, 2))
    invent(two, some("NoAdapt", "Align"), batches=3)  # another setting
    (run, *_) = first.folder.glob("noadapt-s0-*")
    (run / "state-000001.npz").write_bytes(b"state")
    conditions = read_json(run / CONDITIONS)
    write_json(run / CONDITIONS, {**conditions, "command": "fozo bench quick --imagenet '/home/me/my images'"})
    (unfinished, *_) = second.folder.glob("align-s2-*")
    (unfinished / RESULT).unlink()

    pack(tmp_path / "a.tar.xz", [one, two])
    pack(tmp_path / "b.tar.xz", [one, two])
    assert (tmp_path / "a.tar.xz").read_bytes() == (tmp_path / "b.tar.xz").read_bytes()
    with tarfile.open(tmp_path / "a.tar.xz") as archive:
        archive.extractall(tmp_path / "out", filter="data")
    groups = {
        len(group.runs[0].records()): [(r.experiment.label, r.experiment.seed) for r in group.runs]
        for group in collect(tmp_path / "out")
    }
    few, many = (groups[count] for count in sorted(groups))
    assert few == [("NoAdapt", 0), ("NoAdapt", 1), ("NoAdapt", 2), ("Align", 1)]
    assert many == [("NoAdapt", 0), ("Align", 0)]
    assert not list((tmp_path / "out").glob("**/state-*")) and not list((tmp_path / "out").glob("**/align-s2-*"))
    (packed,) = (tmp_path / "out").glob("quick/noadapt-s0-*" + run.name[-10:])
    assert read_json(packed / CONDITIONS)["command"] == "fozo bench quick --imagenet 'my images'"


def test_rows_that_the_last_recipe_does_not_know_are_refused(tmp_path: Path) -> None:
    invent(tmp_path / "old", some("NoAdapt", "Align"), batches=2)
    invent(tmp_path / "new", some("NoAdapt"), batches=2)
    with pytest.raises(FozoError, match=r"align-.* is no row of the recipe of .*new; name the newest folder last"):
        pack(tmp_path / "a.tar.xz", [tmp_path / "old", tmp_path / "new"])
    assert not (tmp_path / "a.tar.xz").exists()
