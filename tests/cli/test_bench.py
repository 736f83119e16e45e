"""``fozo bench`` and ``fozo report``."""

from pathlib import Path
from typing import TypeAlias

import pytest

from fozo.bench import run
from fozo.io import locked, read_json
from fozo.methods import registry
from tests.cli.conftest import RECIPE, Call

Command: TypeAlias = tuple[object, ...]


@pytest.fixture
def command(recipe: Path, weights: Path, photos: Path, tmp_path: Path) -> Command:
    """Run the recipe; results are in ``runs``."""
    return (
        "bench",
        recipe,
        "--model",
        weights,
        "--data",
        f"imagenet={photos}",
        "--out",
        tmp_path / "runs",
        "--threads",
        1,
    )


def test_the_list(call: Call) -> None:
    code, out, _ = call("bench", "list")
    assert code == 0 and "table1" in out and "figureE1" in out and "675,000 passes" in out and "\x1b" not in out


def test_a_recipe_from_the_command_line(call: Call, command: Command, tmp_path: Path) -> None:
    code, out, errors = call(*command, "--seeds", "0,3", "--severity", 2)
    assert code == 0 and errors == ""  # quiet into a pipe: one line for each experiment
    assert [line.split(":")[0] for line in out.splitlines()] == [
        "small plain seed 0", "small plain seed 3", "small Align seed 0", "small Align seed 3",
        "plain, seed 0", "plain, seed 3",
    ]  # fmt: skip
    folders = [path for path in (tmp_path / "runs" / "small").iterdir() if path.is_dir()]
    assert len(folders) == 4 and all((folder / "result.json").exists() for folder in folders)
    results = [read_json(folder / "result.json") for folder in folders]
    assert {str(result["stream"]["severity"]) for result in results if isinstance(result["stream"], dict)} == {"2"}
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("result.json")}
    assert call(*command, "--seeds", "0,3", "--severity", 2) == (0, out, "")  # all found finished
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("result.json")}
    code, out, _ = call(*command, "--methods", "noadapt", "--images", 6)
    assert code == 0 and out.startswith("small plain seed 0") and "12 images" in out and len(out.splitlines()) == 2


def test_the_papers_numbers_stand_beside_ours_and_the_cost_comes_first(
    call: Call, command: Command, recipe: Path
) -> None:
    rows = (
        ("NoAdapt", "noadapt", "Avg = 55.57, seconds = 94.0"),
        ("FOZO", "fozo", "Avg = 65.57"),
        ("ZOA", "zoa", "Avg = 99.0"),
    )
    head = RECIPE.partition("[[row]]")[0].replace("images = 12", "images = 30")
    recipe.write_text(
        head + "".join(f'[[row]]\nlabel = "{row[0]}"\nmethod = "{row[1]}"\npaper = {{ {row[2]} }}\n' for row in rows)
    )
    code, out, errors = call(*command)
    lines = out.splitlines()[-3:]
    assert code == 0 and "0.0 minutes of an RTX 4090 or 0.0 hours" in errors and "an estimate" in errors
    assert lines[0].startswith("NoAdapt, seed 0: 55.57 in the paper, here ") and " on 60 images" in lines[0]
    assert lines[0].endswith(": differs, on another model") and "gain" not in lines[0]  # a random model of six classes
    assert "gain +10.00 in the paper, here " in lines[1] and ": agrees, on" in lines[1]
    assert "gain +43.43 in the paper" in lines[2] and ": differs, on" in lines[2]


def test_rows_that_are_one_experiment_are_run_once(call: Call, command: Command, recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(RECIPE + '[[row]]\nlabel = "again"\nmethod = "align"\n')
    page = tmp_path / "page.html"
    code, out, _ = call(*command)
    assert code == 0 and len(out.splitlines()) == 3
    assert call("report", tmp_path / "runs", "-o", page)[0] == 0
    lines = page.with_suffix(".md").read_text().splitlines()
    rows = [line for line in lines if line.startswith(("| Align", "| again"))]
    assert len(rows) == 2 and rows[0].split("|")[2:] == rows[1].split("|")[2:]


def test_bad_input_is_one_sentence_and_code_2(
    call: Call, command: Command, recipe: Path, weights: Path, photos: Path, tmp_path: Path
) -> None:
    odd = tmp_path / "odd.toml"
    odd.write_text('[[row]]\nlabel = "ZOA"\nmethod = "zoa"\noptions = { passes = 3 }\n')
    for arguments, sentence in (
        (("bench", "table9"), "no recipe 'table9'"),
        (("bench", recipe), "which model?"),
        (("bench", recipe, "--model", weights, "--out", tmp_path / "runs"), "give --data imagenet=DIR"),
        ((*command, "--seeds", "one"), "--seeds is 'one'"),
        ((*command, "--seeds", "-1"), "the seed is -1"),
        ((*command, "--workers", 0), "workers is 0"),
        ((*command, "--threads", 0), "threads is 0"),
        ((*command, "--mean", "grey"), "--mean is 'grey'"),
        ((*command, "--images", 61), "cannot take 61 of 60"),
        ((*command, "--images", 60), "none is left to calibrate on"),
        ((*command, "--methods", "magic"), "no row of the method 'magic'"),
        ((*command, "--only", "plain", "--only", "Magic"), "no row of the label 'Magic'"),
        (("bench", "table4", "--model", weights), "nothing to run without --data imagenet-r=DIR"),
        (("bench", odd, "--model", weights, "--data", f"imagenet={photos}"), "passes, not 3"),
        ((*command, "--model", "none.safetensors", "--out", tmp_path / "r"), "none.safe"),
        ((*command, "--data", "imagenet"), "--data is 'imagenet'; give NAME=DIR"),
        ((*command, "--data", f"photos={photos}"), "--data has no set 'photos'; choose from imagenet, "),
        ((*command, "--imagenet", photos), "--imagenet"),
        ((*command, "--method", tmp_path / "mine.py"), "there is no file"),
        ((*command, "--method", "foza"), "there is no method 'foza' (did you mean 'foa'?)"),
    ):
        code, _, errors = call(*arguments)
        lines = [line for line in errors.splitlines() if "leaving out" not in line]
        assert code == 2 and len(lines) == 1 and sentence in lines[0], (arguments, errors)


MINE = """
import fozo
from fozo.methods.registry import register

@register("mine_{name}", passes="1", adapts="nothing", paper="-", label="Mine")
class Mine(fozo.NoAdapt):
    "The plain model by another name."
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_method_in_a_file_is_compared(
    workers: int, call: Call, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_REGISTRY", "_FILES"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    mine = tmp_path / "mine.py"
    mine.write_text(MINE.format(name=workers))
    arguments = (*command, "--method", mine, "--workers", workers)
    code, out, errors = call(*arguments)
    assert code == 0, errors
    assert errors == "" and "small Mine seed 0: " in out and len(out.splitlines()) == 4
    assert call(*arguments)[0] == 0  # in one process again
    page = tmp_path / "page.html"
    assert call("report", tmp_path / "runs", "-o", page)[0] == 0
    assert [line.split("|")[1].strip() for line in page.with_suffix(".md").read_text().splitlines()[4:]][-3:] == [
        "plain", "Align", "Mine",
    ]  # fmt: skip
    code, out, _ = call(*command, "--methods", "noadapt")  # without it: its runs are shown all the same
    assert code == 0
    assert call("report", tmp_path / "runs", "-o", page)[0] == 0 and "Mine" in page.with_suffix(".md").read_text()
    (folder,) = (tmp_path / "runs" / "small").glob("mine-*")
    first = read_json(folder / "experiment.json")
    assert first["method"] == f"mine_{workers}" and len(str(first["code"])) == 10
    mine.write_text(mine.read_text() + "# changed since\n")
    assert call(*arguments)[0] == 0
    assert len(list((tmp_path / "runs" / "small").glob("mine-*"))) == 2
    code, _, errors = call("report", tmp_path / "runs", "-o", page)
    assert code == 0 and folder.name in errors and "is left out" in errors


def test_a_row_that_cannot_run_is_refused_before_any_other_has_run(
    call: Call, command: Command, recipe: Path, tmp_path: Path
) -> None:
    """``--passes 3`` ran the rows before FOZO's for 40 seconds."""
    for row, sentence in (
        ('method = "fozo"\noptions = { passes = 3 }', "an even number of passes"),
        ('method = "align"\noptions = { speed = 1 }', "align has no option 'speed'"),
        ('method = "align"\noptions = { preset = "mine" }', "align has no preset 'mine'"),
        ('method = "magic"', "no method 'magic'"),
    ):
        recipe.write_text(f'{RECIPE}[[row]]\nlabel = "last"\n{row}\n')
        code, out, errors = call(*command)
        assert (code, out) == (2, "") and sentence in errors and len(errors.splitlines()) == 1
        assert not (tmp_path / "runs").exists()


def test_a_row_of_another_command_is_left_to_it(call: Call, command: Command, tmp_path: Path) -> None:
    """So any scheduler can start the same command many times in one folder."""
    both = call(*command)[1].splitlines()
    (folder,) = (tmp_path / "runs" / "small").glob("align-*")
    with locked(folder):
        code, out, errors = call(*command)
    assert code == 0 and out.splitlines()[0] == both[0] and "Align" not in out
    assert errors == "fozo: Align seed 0 is left to the process that is running it\n"


def test_control_c_says_how_to_go_on(call: Call, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:

        def interrupt(*_: object) -> int:
            raise KeyboardInterrupt

        patch.setattr(run, "peak_memory", interrupt)
        code, out, errors = call(*command)
    assert (code, out) == (130, "") and "the same command goes on" in errors
    assert call(*command)[0] == 0


def test_the_report(call: Call, command: Command, recipe: Path, tmp_path: Path) -> None:
    runs, page = tmp_path / "runs", tmp_path / "page.html"
    code, _, errors = call("report", runs)
    assert code == 2 and "is not a folder" in errors and len(errors.splitlines()) == 1
    runs.mkdir()
    code, _, errors = call("report", runs, "-o", page)
    assert code == 2 and "holds no results" in errors and not page.exists()
    assert call(*command)[0] == 0
    code, out, errors = call("report", runs, "-o", page)
    names = [page.with_suffix(suffix) for suffix in (".html", ".md", ".csv", ".tex")]
    assert (code, out, errors) == (0, ", ".join(map(str, names)) + "\n", "") and all(name.exists() for name in names)
    assert "plain" in page.read_text() and "(paper 50.00" in names[1].read_text()
    code, _, errors = call("report", runs, "-o", tmp_path / "no" / "page.html")
    assert code == 2 and "choose a folder that exists" in errors
    recipe.write_text(RECIPE + "options = { slots = 2 }\n")
    assert call(*command)[0] == 0
    code, out, errors = call("report", runs, "-o", page)
    assert code == 0 and len(errors.splitlines()) == 1 and "small/align-s0-" in errors and "is left out" in errors
