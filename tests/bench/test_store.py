"""The store: which runs belong together, which are stale, and that nothing is joined by its label."""

import shutil
from dataclasses import replace
from pathlib import Path

from fozo.bench.plan import Experiment, Recipe, Setting, StreamPlan, load_recipe
from fozo.bench.report.page import write_report
from fozo.bench.report.tables import table_of
from fozo.bench.store import RESULT, Store, collect
from fozo.io import read_json, write_json
from tests.bench.invented import MODEL, finish, invent
from tests.refusals import refuses

ROWS = (Experiment("plain", "noadapt"), Experiment("ours", "align", {"content_error": 0.4}))
RECIPE = Recipe("mine", "Mine", ROWS)


def test_runs_that_differ_in_calibration_are_never_averaged(tmp_path: Path) -> None:
    """They were, as if they were seeds: "95.31 ± 0.00"."""
    invent(tmp_path, RECIPE, batches=2, calibration=2000)
    invent(tmp_path, RECIPE, batches=2, calibration=64)
    groups = collect(tmp_path)
    assert [[run.experiment.calibration for run in group.runs] for group in groups] == [[2000, 2000], [64, 64]]
    assert ["calibrated on 2000" in group.setting for group in groups] == [True, False]


def test_an_option_that_changed_since_makes_the_older_run_stale(tmp_path: Path) -> None:
    store = invent(tmp_path, RECIPE, batches=2, seeds=(0, 1))
    assert store.stale() == [] and len(collect(tmp_path)[0].of("ours")) == 2
    changed = replace(RECIPE, rows=(ROWS[0], replace(ROWS[1], options={"content_error": 2.0})))
    setting = Setting(MODEL, 64, 5, stored=False)
    store.write(changed)
    (group,) = collect(tmp_path)
    assert [run.experiment.label for run in group.runs] == ["plain", "plain"]  # the new row has not run yet
    stale = store.stale()
    assert len(stale) == 2 and all(path.name.startswith("ours-s") for path in stale)
    finish(store, changed.experiments(setting)[1], batches=2)
    (group,) = collect(tmp_path)
    (ours,) = group.of("ours")
    assert ours.experiment.options == {"content_error": 2.0} and store.stale() == stale
    written, named = write_report(tmp_path, tmp_path / "report.html")
    assert sorted(named) == [str(path.relative_to(tmp_path)) for path in stale]
    assert all(name in written[0].read_text() for name in named) and "Not shown: 2 runs" in written[0].read_text()


def test_a_row_that_is_gone_is_still_shown_and_a_renamed_one_has_its_new_name(tmp_path: Path) -> None:
    store = invent(tmp_path, RECIPE, batches=2)
    store.write(replace(RECIPE, rows=(replace(ROWS[1], label="Ours & theirs"),)))
    (group,) = collect(tmp_path)
    assert group.labels == ["Ours & theirs", "plain"] and store.stale() == []
    with store.open(group.runs[0].experiment) as folder:
        assert folder.path.name.startswith("ours-s0-")  # the folder keeps its name


def test_rows_that_differ_in_severity_alone_are_told_apart(tmp_path: Path) -> None:
    rows = tuple(
        Experiment("plain", "noadapt", {}, StreamPlan(kinds=("fog",), severity=level), f"severity {level}")
        for level in (5, 3)
    )
    recipe = Recipe("mine", "Mine", rows)
    invent(tmp_path, recipe, batches=2, severity=None)
    (group,) = collect(tmp_path)
    assert [(run.experiment.column, run.experiment.stream.severity) for run in group.runs] == [
        ("severity 5", 5), ("severity 3", 3),
    ]  # fmt: skip
    invent(tmp_path, recipe, batches=2, severity=4)  # one experiment, which is both rows
    other, group = sorted(collect(tmp_path), key=lambda group: group.setting, reverse=True)
    assert {run.experiment.stream.severity for run in group.runs} == {3, 5}
    assert [run.experiment.stream.severity for run in other.runs] == [4, 4]


def test_a_run_that_two_columns_share_stands_in_both(tmp_path: Path) -> None:
    """The columns differ in the number of images alone, and a command gave all of them one."""
    plans = {"few": StreamPlan(kinds=("fog",), images=32), "many": StreamPlan(kinds=("fog",), images=64)}
    rows = [Experiment("NoAdapt", "noadapt", {}, plan, column) for column, plan in plans.items()]
    rows.append(Experiment("Align", "align", {}, plans["few"], "few"))
    invent(tmp_path, Recipe("mine", "Mine", tuple(rows)), batches=2)  # 64 images
    shown = {tuple((run.experiment.title, run.experiment.column) for run in group.runs) for group in collect(tmp_path)}
    assert shown == {(("NoAdapt", "many"),), (("NoAdapt", "few"), ("Align", "few"))}


def test_two_folders_of_one_hash_are_one_run(tmp_path: Path) -> None:
    """As commands that ran beside each other leave them, joined."""
    store = invent(tmp_path, RECIPE, batches=2)
    (folder,) = store.folder.glob("plain-*")
    shutil.copytree(folder, folder.with_name(folder.name.replace("plain", "by-another-name")))
    (group,) = collect(tmp_path)
    assert [run.experiment.label for run in group.runs] == ["plain", "ours"] and store.stale() == []


def test_a_quantised_row_is_told_from_a_plain_one(tmp_path: Path) -> None:
    rows = (Experiment("float", "align"), Experiment("rounded", "align", quantise="ptq4vit8"))
    invent(tmp_path, Recipe("mine", "Mine", rows), batches=2)
    (group,) = collect(tmp_path)
    assert [(run.experiment.label, run.experiment.quantise) for run in group.runs] == [
        ("float", ""), ("rounded", "ptq4vit8"),
    ]  # fmt: skip


def test_a_folder_of_0_2_is_read_and_gone_on_with(tmp_path: Path) -> None:
    """It said in ``recipe.json`` what commands had asked for, and whose constants a row has in its label."""
    old = replace(RECIPE, rows=(*ROWS, Experiment("ours (tuned)", "align", {"content_error": 0.2})))
    store = invent(tmp_path, old, batches=2)
    payload = read_json(store.folder / "recipe.json")
    for row in payload["row"]:
        del row["code"]
        assert "constants" not in row
    asked = {"model": MODEL, "images": 64, "severity": 5, "calibration": None, "stored": False, "seeds": [0]}
    write_json(store.folder / "recipe.json", {**payload, "asked": [asked]})
    (group,) = collect(tmp_path)
    assert group.labels == ["plain", "ours", "ours (tuned)"]
    assert [run.experiment.constants for run in group.runs] == [None, None, "tuned"]
    new = replace(old, rows=(*ROWS, replace(old.rows[2], label="ours", constants="tuned")))
    store.write(new)
    (group,) = collect(tmp_path)
    assert group.labels == ["plain", "ours", "ours (tuned)"] and group.runs[2].experiment.constants == "tuned"
    assert "asked" not in read_json(store.folder / "recipe.json")


def test_what_the_recipe_has_anyway_is_no_other_setting(tmp_path: Path) -> None:
    recipe = replace(RECIPE, rows=tuple(replace(row, stream=StreamPlan(images=64)) for row in ROWS))
    store = invent(tmp_path, recipe, batches=2)
    more = replace(recipe, rows=(*recipe.rows, replace(ROWS[1], label="more", stream=StreamPlan(images=64), seed=0)))
    more = replace(more, rows=(*more.rows[:2], replace(more.rows[2], options={"passes": 2})))
    store.write(more)
    finish(store, more.experiments(Setting(f"elsewhere/{MODEL}", stored=False))[2])  # 64 images: the recipe's own
    (group,) = collect(tmp_path)
    assert group.labels == ["plain", "ours", "more"]


def test_rows_of_other_sizes_stand_in_one_table(tmp_path: Path) -> None:
    """`streams` has columns of 64, 192 and 500 images; they came out as tables of their own."""
    store = Store(tmp_path / "streams")
    store.folder.mkdir()
    recipe = load_recipe("streams")
    setting = Setting(MODEL, stored=False)
    store.write(recipe)
    for experiment in recipe.experiments(setting, labels=("NoAdapt",)):
        finish(store, experiment, batches=1)
    (group,) = collect(tmp_path)
    names = ("sorted by class", "single images", "64 images a domain", "recurring days", "mixed day")
    assert table_of(group).columns == names
    assert "64 or 192 or 500 images a domain" in group.setting


def test_a_result_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    store = invent(tmp_path, RECIPE, batches=2)
    (folder,) = store.folder.glob("plain-*")
    result = read_json(folder / RESULT)
    del result["measures"]
    write_json(folder / RESULT, result)
    refuses(rf"{folder.name} cannot be read: the result should be a table", collect, tmp_path)


def test_nothing_to_report_is_said(tmp_path: Path) -> None:
    refuses("holds no results", collect, tmp_path)
    invent(tmp_path, "figureE1")
    for file in tmp_path.rglob("result.json"):
        file.unlink()
    refuses(r"no run below .* is finished", collect, tmp_path)
