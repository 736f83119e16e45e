"""Experiments and recipes: their content, their hash, and the paper's numbers in them."""

import inspect
import json
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import fozo
from fozo.bench import plan
from fozo.bench.plan import (
    AVERAGE,
    Experiment,
    Recipe,
    Setting,
    StreamPlan,
    find_methods,
    load_recipe,
    names,
    read_recipe,
)
from fozo.bench.recipes.comparison import CHOSEN, choose
from fozo.bench.store import collect
from fozo.data.corruptions import KINDS
from fozo.errors import FozoError
from fozo.methods import registry
from fozo.methods.registry import list_methods
from tests.refusals import refuses

RESULTS = Path(__file__).parents[2] / "results"
ANY = Setting("vit.safetensors")


def test_recipes_are_found_by_name() -> None:
    assert load_recipe("tableC1") == load_recipe("FIGURE1") == load_recipe("figure1")
    refuses(r"no recipe 'table9'; choose from ablation.*figure1.*\.toml", load_recipe, "table9")


@pytest.mark.parametrize("name", names())
def test_a_recipe_has_a_cost_and_valid_options_and_survives_json(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name and recipe.passes != "0 passes" and recipe.title
    assert read_recipe(json.loads(json.dumps(recipe.to_dict())), name) == recipe
    for row in recipe.rows:  # every name of a method, a preset and an option is one
        assert row.configuration()["preset"]


@pytest.mark.parametrize("name", ["table1", "table2", "table3"])
def test_the_papers_averages_are_those_of_its_columns(name: str) -> None:
    """Catches a number lost in copying: an average has to follow from the fifteen before it."""
    rows = [row for row in load_recipe(name).rows if row.paper]
    assert len(rows) >= 6
    for row in rows:
        mean = sum(row.paper[kind] for kind in KINDS) / len(KINDS)
        # The paper's own averages are of unrounded numbers; its FOZO rows at 26 and 28 passes are off by 0.04 and 0.01.
        assert mean == pytest.approx(row.paper[AVERAGE], abs=0.06), row.label


def test_the_hash_is_of_what_decides_the_records_and_of_nothing_else() -> None:
    one = Experiment("A", "fozo", {"passes": 2, "weight": 0.3}, model="/here/vit.safetensors")
    same = [
        replace(one, model="/there/vit.safetensors"),
        replace(one, options={"weight": 0.3, "passes": 2}),
        replace(one, label="B", paper={AVERAGE: 1.0}, x=3.0, axis="x", column="R", models="v", constants="tuned"),
    ]
    assert {experiment.hash for experiment in same} == {one.hash}
    changed = [
        replace(one, model="/here/deit.safetensors"),
        replace(one, method="foa"),
        replace(one, options={"passes": 4, "weight": 0.3}),
        replace(one, seed=1),
        replace(one, calibration=3),
        replace(one, quantise="ptq4vit8"),
        replace(one, stream=StreamPlan(images=7)),
        replace(one, stream=StreamPlan(batch_size=7)),
        replace(one, stream=StreamPlan(data="clean")),
        replace(one, stream=StreamPlan(classes="dogs")),
        replace(one, stream=StreamPlan(classes="food")),
        replace(one, stream=StreamPlan(freeze_after=1)),
        replace(one, code="0123456789"),
    ]
    assert len({one.hash, *(experiment.hash for experiment in changed)}) == 1 + len(changed)


def test_the_hash_stays_what_it_was() -> None:
    """A changed hash orphans every finished run: change it on purpose or not at all."""
    assert Experiment("x", "fozo", {"passes": 2}, model="vit.safetensors").hash == "919c82e2a5"


def test_experiments_of_a_recipe() -> None:
    recipe = load_recipe("table1")
    setting = Setting("m", images=10, severity=3, calibration=8, stored=False)
    found = recipe.experiments(setting, seeds=(0, 5), methods=("fozo", "noadapt"))
    assert [(e.method, e.seed, e.stream.images, e.stream.severity, e.calibration) for e in found] == [
        ("noadapt", 0, 10, 3, 8), ("noadapt", 5, 10, 3, 8), ("fozo", 0, 10, 3, 8), ("fozo", 5, 10, 3, 8),
    ]  # fmt: skip
    assert {e.stream.data for e in found} == {"clean"}
    assert {e.stream.data for e in recipe.experiments(ANY)} == {"imagenet-c"}
    assert len({e.hash for e in load_recipe("table4").experiments(ANY)}) == 18
    refuses(
        r"table1 has no row of the method 'tent'; .*; --method tent adds one$",
        recipe.experiments,
        ANY,
        methods=("tent",),
    )
    behind = load_recipe("unseen").experiments(Setting("vit_tiny.safetensors"), labels=("Auto levels + NEO (tuned)",))
    assert [(e.method, e.options, e.stream.severity) for e in behind] == [
        ("autolevels+neo", {"average": "ema", "rate": 0.8}, 3)
    ]
    foa = load_recipe("streams").experiments(ANY, labels=("FOA",))
    assert len(foa) == 5 and {e.options["passes"] for e in foa} == {2}
    refuses(
        r"streams has no row of the label 'FOZO .paper.'; it has NoAdapt; Align",
        load_recipe("streams").experiments,
        ANY,
        labels=("FOZO (paper)",),
    )
    mixed = load_recipe("streams").experiments(ANY, labels=("Align", "FOA"), columns=("mixed day",))
    assert [(e.label, e.stream.scenario) for e in mixed] == [("Align", "day"), ("FOA", "day")]
    refuses(
        r"streams has no row of the column 'Mixed'; it has sorted by class; single",
        load_recipe("streams").experiments,
        ANY,
        columns=("Mixed",),
    )
    refuses(
        "no row of evidence is all of what was asked for",
        load_recipe("evidence").experiments,
        ANY,
        methods=("cazo",),
        columns=("continual, severity 5",),
    )
    tuned = load_recipe("evidence").experiments(Setting("a/vit_tiny.safetensors"), labels=("NEO (tuned)",))
    assert len(tuned) == 4 and {e.options["rate"] for e in tuned} == {0.8}


def test_table3_quantises_weights_and_runs_an_onnx_file_as_it_is() -> None:
    recipe = load_recipe("table3")
    assert {e.quantise for e in recipe.experiments(ANY)} == {"ptq4vit8"}
    assert {e.quantise for e in recipe.experiments(Setting("vit.int8.onnx"))} == {""}
    refuses("choose from ptq4vit4, ptq4vit6, ptq4vit8", replace, recipe.rows[0], quantise="int8")


@pytest.mark.parametrize("name", ["quick", "streams", "narrow", "evidence", "unseen"])
def test_every_method_has_a_row_that_says_whose_constants_it_has(name: str) -> None:
    rows = load_recipe(name).rows
    without_cazo = set(list_methods()) - (set() if name == "evidence" else {"cazo"})
    assert {row.method for row in rows if "+" not in row.method} == without_cazo
    constants = {row.title: row.configuration()["constants"] for row in rows}
    unsaid = {row.method for row in rows if not constants[row.title]}
    composites = {row.method for row in rows if "+" in row.method}
    assert len(composites) == (0 if name == "quick" else 13)
    assert unsaid == {"noadapt", "autolevels", "histeq", "greyworld"}  # which have none
    said = {"Align": "own", "GAIN": "paper", "NEO": "authors", "TENT": "paper", "FOZO": "authors"}
    said |= {"EATA (authors)": "authors", "NEO (tuned)": "tuned", "FOZO (paper)": "paper"}
    assert constants | {title: whose for title, whose in said.items() if title in constants} == constants
    assert list(dict.fromkeys(row.method for row in rows))[:2] == ["noadapt", "align"]


def test_every_grid_has_four_values_the_published_first() -> None:
    configs = {row.title: row.configuration()["config"] for row in load_recipe("tuning").rows}
    tuned = [info for info in list_methods().values() if info.tuning]
    assert len(tuned) == 13 and {len(info.tuning) for info in tuned} == {4}
    for info in tuned:
        values = [configs[f"{info.label}, {name}"] for name in info.tuning]
        usual = Experiment("x", info.name, info.compared).configuration()["config"]
        assert values[0] == usual and len({repr(config) for config in values}) == 4, info.name
    names = list_methods()["tent"].tuning
    averages = dict(zip((f"TENT, {name}" for name in names), (3.0, 1.0, 3.0, 2.0), strict=True))
    assert choose("tent", averages) == "rate 0.001"  # of equals, the published one
    assert choose("tent", {**averages, "TENT, rate 0.016": 3.1}) == "rate 0.016"


def test_tuned_rows_are_what_the_rule_chose_and_are_for_their_model_alone() -> None:
    """The records are of 0.2, whose ``recipe.json`` lists what commands had asked for."""
    with TemporaryDirectory() as folder:
        with tarfile.open(RESULTS / "tuning.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        groups = collect(Path(folder))
    infos = {name: info for name, info in list_methods().items() if info.tuning}
    for start, chosen in CHOSEN.items():
        tuned: dict[str, str] = {}
        for group in (group for group in groups if str(group.runs[0].experiment.model).startswith(start)):
            averages = {run.experiment.title: run.measures.average for run in group.runs}
            for name, info in infos.items():
                if {f"{info.label}, {value}" for value in info.tuning} <= averages.keys():
                    tuned[name] = choose(name, averages)
        assert tuned.keys() == infos.keys()
        assert chosen == {name: value for name, value in tuned.items() if value != next(iter(infos[name].tuning))}
        rows = load_recipe("evidence").experiments(Setting(f"{start}.safetensors"))
        tuned_rows = [row for row in rows if row.constants == "tuned"]
        assert {row.title for row in tuned_rows if "+" not in row.method} == {
            f"{infos[name].label} (tuned)" for name in chosen
        }
        for row in tuned_rows:  # behind a front end too
            method = row.method.rpartition("+")[2]
            assert row.options == {**infos[method].compared, **infos[method].tuning[chosen[method]]}
    assert not any(row.models for row in load_recipe("evidence").experiments(Setting("timm:vit_base")))


def test_constants_are_those_of_preset_and_options_unless_the_row_says_it() -> None:
    varied: Any = Experiment("x", "deyo", {"preset": "official", "pieces": 3}).configuration()
    assert varied["preset"] == "official" and varied["constants"] == "varied"
    assert varied["config"] | {"e_margin": 0.5, "rate": 1e-3, "pieces": 3} == varied["config"]
    assert Experiment("x", "deyo", {"preset": "official"}).configuration()["constants"] == "authors"
    tuned = Experiment("x", "deyo", {"pieces": 3}, constants="tuned")
    assert tuned.configuration()["constants"] == "tuned" and tuned.title == "x (tuned)"
    suffixed = Experiment("x (tuned)", "deyo")
    assert suffixed.configuration()["constants"] == "paper"  # no label tells whose constants these are
    endless: Any = Experiment("x", "pea", {"preset": "paper"}).configuration()
    assert endless["config"]["gamma"] == "Infinity"
    refuses("has no preset 'best'", Experiment("x", "deyo", {"preset": "best"}).configuration)


def test_a_registered_method_is_compared_counted_and_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but its own file says so."""
    before = {name: load_recipe(name) for name in ("quick", "streams", "narrow", "evidence", "tuning")}
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))

    @registry.register(
        "mine", passes="3", adapts="-", paper="-", label="Mine", tuning={"a": {"preset": "default"}, "b": {}}
    )
    class Anything(fozo.NoAdapt):
        """A test."""

    for name in ("quick", "streams", "narrow", "evidence"):
        recipe = load_recipe(name)
        added = [row for row in recipe.rows if row.method == "mine"]
        columns = {row.column for row in recipe.rows if row.method == "lame"}
        assert {row.title for row in added} == {"Mine"} and {row.column for row in added} == columns
        assert recipe.passes != before[name].passes
        order = [row.method for row in recipe.rows]
        assert order.index("foa") < order.index("mine") < order.index("sar")  # by passes
    tuned = load_recipe("tuning").rows
    assert [row.label for row in tuned if row.method == "mine"] == ["Mine, a", "Mine, b"]
    assert len(tuned) == len(before["tuning"].rows) + 2


MINE = """
import fozo
from fozo.methods.registry import register

@register("{name}", passes="1", adapts="nothing", paper="-", compared={{}})
class Mine(fozo.NoAdapt):
    "A test."
"""


def test_a_file_of_a_user_adds_a_row_to_any_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_REGISTRY", "_FILES"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    file = tmp_path / "mine.py"
    file.write_text(MINE.format(name="mine_in_a_file"))
    methods = find_methods([str(file)])
    assert list(methods) == ["mine_in_a_file"] and methods == find_methods([str(file)])
    for name in ("table1", "table3", "table4", "tableD1", "quick"):
        recipe = load_recipe(name)
        more = recipe.with_methods(methods)
        added = [row for row in more.rows if row.method == "mine_in_a_file"]
        assert [row.column for row in added] == list(dict.fromkeys(row.column for row in recipe.rows))
        assert {row.title for row in added} == {"Mine"} and not any(row.paper or row.x for row in added)
        assert {row.quantise for row in added} == ({"ptq4vit8"} if name == "table3" else {""})
        assert more.with_methods(methods) == more
    (row,) = (row for row in load_recipe("quick").rows if row.method == "mine_in_a_file")
    first = replace(row, code=methods["mine_in_a_file"])
    file.write_text(file.read_text() + "# changed\n")
    assert len({row.hash, first.hash, replace(row, code=find_methods([str(file)])["mine_in_a_file"]).hash}) == 3
    assert load_recipe("table1").with_methods(find_methods(["tent"])).rows[-1].title == "TENT"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, r"there is no file .*mine\.py; give a Python file"),
        ("x = 1", r"mine\.py registers no method; put @register"),
        ("raise KeyError('x')", r"mine\.py cannot be imported \(KeyError: 'x'\); mend it"),
        ("def f(:", r"mine\.py cannot be imported \(SyntaxError: .*\); mend it"),
        (MINE.format(name="tent"), r"cannot be imported \(FozoError: a method named 'tent' is registered already"),
    ],
)
def test_a_bad_file_of_a_method_is_one_sentence(tmp_path: Path, text: str | None, sentence: str) -> None:
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(FozoError, match=sentence) as error:
        find_methods([str(file)])
    assert "\n" not in str(error.value)


def test_a_recipe_of_a_user_reads_neither_groups_of_classes_nor_the_papers_tables(tmp_path: Path) -> None:
    """They took a fifth of the calls of a short run."""
    file = tmp_path / "mine.toml"
    file.write_text('[[row]]\nlabel = "a"\nmethod = "align"\n')
    code = (
        "import sys; from fozo.bench import run, store, published; from fozo.bench.report import page; "
        "from fozo.bench.plan import Setting, load_recipe; "
        f"load_recipe({str(file)!r}).experiments(Setting('m'))[0].configuration(); "
        "print([name for name in sys.modules if 'recipes.' in name or name == 'fozo.data.groups'])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.strip() == "[]"


def test_a_recipe_of_a_user(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    documented = inspect.getdoc(plan) or ""
    file.write_text(documented[documented.index("    title =") :])  # the example in the docstring must work
    recipe = load_recipe(str(file))
    assert recipe.name == "mine" and recipe.title == "More passes"
    (row,) = recipe.rows
    assert row.options == {"passes": 4, "schedule.decay": 0.8} and row.paper == {"Avg": 59.5}
    assert row.stream == StreamPlan(kinds=("fog", "contrast"), images=500, batch_size=32)
    assert row.constants == "tuned" and row.title == "FOZO, 4 passes (tuned)"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("title = ", "is not readable TOML"),
        ("row = 3", r"a list of \[\[row\]\]"),
        ("row = [3]", "row 1 of bad should be a table"),
        ("colour = 1", "the recipe bad has no setting 'colour': it has title"),
        ("calibration = 'many'", "calibration of the recipe bad is 'many', where a whole number is needed"),
        ("title = 'x'", "has no rows"),
        ("[[row]]\nlabel = 'a'", "row 1 of bad lacks 'method'"),
        ("[[row]]\nlabel = 'a'\nmethod = 'fozo'\noption = {}", "no setting 'option': did you mean 'options'"),
        ("[[row]]\nlabel = 'a'\nmethod = 'fozo'\nseed = 3", "has no setting 'seed'"),
        (
            "[[row]]\nlabel = 'a'\nmethod = 'fozo'\nconstants = 'mine'",
            "where one of paper, authors, tuned, own, varied",
        ),
        (
            "[stream]\ndata = 'imagenet-x'\n[[row]]\nlabel = 'a'\nmethod = 'fozo'",
            "no data 'imagenet-x'; choose from clean",
        ),
        ("[stream]\nseverity = 9\n[[row]]\nlabel = 'a'\nmethod = 'fozo'", "severity is 9"),
        ("[stream]\nclasses = 'cats'\n[[row]]\nlabel = 'a'\nmethod = 'fozo'", "no group of classes 'cats'; choose"),
        ("[stream]\nscenario = 'x'\n[[row]]\nlabel = 'a'\nmethod = 'fozo'", "no scenario 'x'"),
    ],
)
def test_a_bad_recipe_is_refused_in_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    refuses(sentence, load_recipe, str(file))


def test_rows_have_different_labels_and_files_exist(tmp_path: Path) -> None:
    refuses("two rows labelled 'a'", Recipe, "r", "r", (Experiment("a", "fozo"), Experiment("a", "foa")))
    refuses("there is no file", load_recipe, str(tmp_path / "none.toml"))


def test_scenarios_take_what_they_have() -> None:
    assert StreamPlan(scenario="gradual", severity=3).order.name == "gradual"
    assert len(StreamPlan(scenario="mixed", severity=3).order.segments()) == 1


def test_importing_fozo_and_its_command_imports_neither_torch_nor_pillow() -> None:
    code = "import fozo, fozo.cli, sys; print([m for m in ('torch', 'PIL', 'onnx') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.strip() == "[]"
