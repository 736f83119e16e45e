"""``fozo calibrate`` and ``fozo adapt``: the engineer's path."""

import csv
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import fozo
from fozo.cli import folder_run
from fozo.data.images import read_image
from fozo.errors import ImageWarning
from fozo.methods import eata
from fozo.methods.align.method import AlignState
from fozo.methods.method import Result
from fozo.methods.registry import AnyMethod, create
from fozo.types import Batch
from tests.cli.conftest import Call


@pytest.fixture
def stats(call: Call, weights: Path, photos: Path, tmp_path: Path) -> Path:
    path = tmp_path / "statistics.safetensors"
    code, said, _ = call("calibrate", weights, photos / "class0", "-o", path)
    assert code == 0 and "over 10 images" in said
    return path


@pytest.fixture
def adapt(call: Call, weights: Path, photos: Path, tmp_path: Path) -> Call:
    """Adapt to the photos; predictions are in ``predictions.csv``."""
    return partial(call, "adapt", weights, photos, "-o", tmp_path / "predictions.csv")


def test_own_images_are_blended_into_mixed_statistics(
    call: Call, stats: Path, weights: Path, photos: Path, tmp_path: Path
) -> None:
    own, blended = tmp_path / "own.safetensors", tmp_path / "blended.safetensors"
    assert call("calibrate", weights, photos / "class1", "-o", own)[0] == 0
    code, said, _ = call("calibrate", weights, photos / "class1", "--blend", stats, "-o", blended)
    assert code == 0 and "10 images of its own, blended into those of 10 mixed ones" in said
    by_hand = fozo.Statistics.load(stats).blend(fozo.Statistics.load(own))
    np.testing.assert_array_equal(fozo.Statistics.load(blended).patch_mean.mean, by_hand.patch_mean.mean)


def table(path: Path) -> tuple[list[str], list[list[str]]]:
    with path.open() as stream:
        header, *rows = list(csv.reader(stream))
    return header, rows


def by_hand(method: AnyMethod, photos: Path, rows: list[list[str]], batch_size: int) -> None:
    """Check predictions against the same method called in Python."""
    pixels = np.stack([read_image(photos / row[0]) for row in rows])
    for start in range(0, len(rows), batch_size):
        some = slice(start, start + batch_size)
        logits = method(method.engine.spec.normalise(pixels[some])).astype(np.float64)
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        for row, odds in zip(rows[some], p, strict=True):
            assert [int(value) for value in row[1::2]] == np.argsort(-odds)[:5].tolist()
            assert [float(value) for value in row[2::2]] == pytest.approx(np.sort(odds)[::-1][:5], abs=1e-6)


def test_predictions_are_those_of_the_method(
    adapt: Call, stats: Path, weights: Path, photos: Path, tmp_path: Path
) -> None:
    code, said, errors = adapt(
        "--statistics", stats, "--batch-size", 16, "--option", "slots=2", "--option", "mean_strength=0.5"
    )
    assert code == 0 and "60 images" in said and errors == ""
    header, rows = table(tmp_path / "predictions.csv")
    assert header[:3] == ["image", "class1", "probability1"] and len(header) == 11
    assert [row[0] for row in rows] == sorted(p.relative_to(photos).as_posix() for p in photos.rglob("*.png"))
    by_hand(fozo.adapter(weights, stats, slots=2, mean_strength=0.5), photos, rows, 16)


def test_eata_measures_its_fisher_information_on_clean_images(
    adapt: Call, weights: Path, photos: Path, tmp_path: Path
) -> None:
    out, clean = tmp_path / "predictions.csv", photos / "class0"
    adapt = partial(adapt, "--method", "eata", "--batch-size", 8, "--option", "e_margin=2.0")
    code, _, errors = adapt()
    assert code == 2 and "give a folder of them as --clean" in errors and not out.exists()
    assert adapt("--clean", clean)[0] == 0
    engine = fozo.load_engine(weights)
    pixels = engine.spec.normalise(np.stack([read_image(path) for path in sorted(clean.iterdir())]))
    fisher = eata.measure_fisher(engine, [pixels[:8], pixels[8:]])
    by_hand(create("eata", engine, batch_size=8, fisher=fisher, e_margin=2.0), photos, table(out)[1], 8)


def test_clean_images_serve_instead_of_statistics(adapt: Call, stats: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "predictions.csv"
    assert adapt("--statistics", stats)[0] == 0
    before = out.read_bytes()
    assert adapt("--clean", photos / "class0")[0] == 0
    assert out.read_bytes() == before


def test_classes_are_named_where_the_model_knows_them(call: Call, weights: Path, photos: Path, tmp_path: Path) -> None:
    names, model, out = tmp_path / "names.txt", tmp_path / "model.onnx", tmp_path / "predictions.csv"
    names.write_text("cat\ndog, large\ncar\nbus\ntree\nboat\n")
    assert call("export", weights, "-o", model, "--labels", names)[0] == 0
    assert call("adapt", model, photos, "--clean", photos / "class1", "-o", out)[0] == 0
    _, rows = table(out)
    assert {name for row in rows for name in row[1::2]} <= set(names.read_text().splitlines())
    assert {len(row) for row in rows} == {11}
    command = ("adapt", weights, photos, "--clean", photos / "class1", "-o", out)
    assert call(*command, "--labels", names)[0] == 0 and [row[1] for row in table(out)[1]] == [row[1] for row in rows]
    names.write_text("cat\ndog\n")
    code, _, errors = call(*command, "--labels", names)
    assert code == 2 and "2 labels were given for the 6 classes" in errors


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Press Ctrl-C in the batch after ``after`` of them."""
    step = fozo.Align.step
    done = list[int]()

    def impatient(self: fozo.Align, state: AlignState, batch: Batch) -> Result[AlignState]:
        if len(done) == after:
            raise KeyboardInterrupt
        done.append(len(batch))
        return step(self, state, batch)

    monkeypatch.setattr(fozo.Align, "step", impatient)


def litter(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("save_seconds", [0.0, 100.0])
def test_an_interrupted_run_goes_on_to_the_same_bytes(
    save_seconds: float, call: Call, stats: Path, weights: Path, photos: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(folder_run, "SAVE_SECONDS", save_seconds)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
        assert call("adapt", weights, photos / "class0", "--statistics", stats, "-o", folder / "first.csv",
                    "--state", folder / "camera.state")[0] == 0  # fmt: skip
    said = {}
    for folder in (whole, cut):
        monkeypatch.chdir(folder)
        command = (
            "adapt",
            weights,
            photos,
            "--statistics",
            stats,
            "--batch-size",
            8,
            "-o",
            "p.csv",
            "--state",
            "camera.state",
        )
        if folder == cut:
            for after in (3, 2, 0):
                with monkeypatch.context() as patch:
                    interrupt(patch, after)
                    code, out, errors = call(*command, "--resume")
                rows = Path("p.csv").read_text().splitlines(keepends=True)
                assert (whole / "p.csv").read_text().startswith("".join(rows))
                done = f"fozo: p.csv has the first {max(len(rows) - 1, 0)} of 60 predictions; "
                goes_on = "the same command with --resume goes on\nfozo: interrupted\n"
                assert (code, out, errors) == (130, "", done + goes_on)
        said[folder] = call(*command, "--resume")
        assert said[folder][0] == 0 and litter(folder) == []
    assert said[whole] == said[cut]
    for name in ("p.csv", "p.csv.log", "camera.state"):
        assert (whole / name).read_bytes() == (cut / name).read_bytes(), name
    before = (cut / "camera.state").read_bytes()
    (cut / ".p.csv.state-000008.safetensors").touch()  # killed just before its last checkpoint would have been removed
    assert call(*command, "--resume") == said[cut]  # nothing is left to do
    assert (cut / "camera.state").read_bytes() == before and litter(cut) == []
    assert call(*command)[0] == 0 and (cut / "camera.state").read_bytes() != before  # seen once more
    assert (cut / "p.csv").read_bytes() != (whole / "p.csv").read_bytes()


def test_only_the_same_run_is_continued(
    adapt: Call, stats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_run, "SAVE_SECONDS", 0.0)
    out = tmp_path / "predictions.csv"
    adapt = partial(adapt, "--statistics", stats, "--batch-size", 8)
    with monkeypatch.context() as patch:
        interrupt(patch, 4)
        assert adapt()[0] == 130
    left = out.read_bytes()
    for change, what in (
        (("--option", "slots=2"), "begun with another config"),
        (("--method", "noadapt"), "begun with another method"),
        (("--batch-size", 16), "begun with another batch_size (8, now 16)"),
        (("--mean", "0.4"), "begun with another mean"),
        (("--state", tmp_path / "s.npz"), "begun with another state"),
    ):
        code, _, errors = adapt(*change, "--resume")
        assert code == 2 and what in errors and out.read_bytes() == left, errors
    out.write_bytes(left[:-9])
    code, _, errors = adapt("--resume")
    assert code == 2 and "was changed since" in errors
    out.write_bytes(left)
    assert adapt("--resume")[0] == 0 and litter(tmp_path) == []


def test_folders_called_like_classes_give_the_accuracy(
    call: Call, weights: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, model, out = tmp_path / "names.txt", tmp_path / "model.onnx", tmp_path / "predictions.csv"
    names.write_text("".join(f"Class{i}\n" for i in (3, 1, 0, 2, 5, 4)))
    assert call("export", weights, "-o", model, "--labels", names)[0] == 0
    command = ("adapt", model, photos, "--clean", photos / "class1", "--batch-size", 16, "-o", out)
    code, said, _ = call(*command)
    _, rows = table(out)
    right = sum(row[0].split("/")[0] == row[1].lower() for row in rows)
    assert code == 0 and f"{100 * right / 60:.1f} % right by the folders' names" in said and "clean ones" in said
    log = folder_run.read_folder_run(tmp_path / "predictions.csv.log")
    assert log.correct == right and log.images == 60 and log.finished and len(log.batches) == 4
    assert call("report", out, "-o", tmp_path / "page.html")[0] == 2 and not (tmp_path / "page.html").exists()
    for other in ("monday", "class7", "3"):
        moved = Path(shutil.copytree(photos, tmp_path / other))
        (moved / "class0").rename(moved / other)
        if other == "3":  # numbers may be cameras
            for name in range(1, 6):
                (moved / f"class{name}").rename(moved / f"{name + 3}")
        code, said, _ = call("adapt", model, moved, "--clean", photos / "class1", "-o", out)
        assert code == 0 and "% right" not in said
        assert folder_run.read_folder_run(tmp_path / "predictions.csv.log").correct is None


@pytest.mark.parametrize("places", [[3], [*range(10), *range(20, 30)]])
def test_damaged_images_are_left_out_and_counted(
    places: list[int], call: Call, stats: Path, weights: Path, photos: Path, tmp_path: Path
) -> None:
    """One of them lost the predictions of its whole batch, and all after it."""
    out, broken = tmp_path / "p.csv", Path(shutil.copytree(photos, tmp_path / "broken"))
    names = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.png"))
    lost = [names[place] for place in places]
    for name in lost:
        (broken / name).write_bytes((photos / name).read_bytes()[:40])
    code, said, errors = call("adapt", weights, broken, "--statistics", stats, "--batch-size", 10, "-o", out)
    assert code == 0 and f"predictions of {60 - len(lost)} images by align; {len(lost)} image" in said
    assert errors.count("; it is left out") == len(lost) and lost[0] in errors
    _, rows = table(out)
    assert len(rows) == 60 and [row[0] for row in rows if not any(row[1:])] == lost
    kept = [row for row in rows if row[0] not in lost]
    assert all(all(row) for row in kept)
    if len(lost) > 1:  # whole batches
        by_hand(fozo.adapter(weights, stats), photos, kept, 10)
    code, said, errors = call("calibrate", weights, broken, "-o", tmp_path / "s.npz")
    assert code == 0 and f"over {60 - len(lost)} images" in said and errors.count("; it is left out") == len(lost)
    with pytest.warns(ImageWarning, match="is left out"):
        assert fozo.calibrate(weights, broken).images == 60 - len(lost)
    for name in names:
        (broken / name).write_bytes(b"")
    code, _, errors = call("adapt", weights, broken, "--statistics", stats, "-o", out)
    assert code == 2 and "none of the 60 images of" in errors


def test_bad_input_is_one_sentence_and_code_2(
    call: Call, stats: Path, weights: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "predictions.csv"
    for arguments, sentence in (
        (("adapt", weights, photos), "needs --statistics"),
        (("adapt", weights, photos, "--method", "magic"), "no method 'magic'"),
        (("adapt", weights, tmp_path / "nowhere", "--statistics", stats), "is not a folder"),
        (("adapt", weights, photos, "--statistics", stats, "--option", "slots"), "give NAME=VALUE"),
        (("adapt", weights, photos, "--statistics", stats, "--option", "speed=2"), "no option 'speed'"),
        (("adapt", weights, photos, "--statistics", stats, "--passes", "many"), "passes"),
        (("adapt", weights, photos, "--statistics", stats, "--preset", "mine"), "no preset 'mine'"),
        (("adapt", weights, photos, "--method", "noadapt", "--passes", 4), "no option 'passes'"),
        (("adapt", weights, photos, "--statistics", stats, "-o", tmp_path / "no" / "file.csv"), "folder that exists"),
        (("adapt", weights, photos, "--statistics", tmp_path / "none.safetensors"), "there is no file"),
        (("calibrate", weights, weights.parent), "holds no images"),
        (("calibrate", weights, photos, "--runtime", "openvino"), "runtime"),
        (("calibrate", weights, photos, "--blend", tmp_path / "none.safetensors"), "there is no file"),
    ):  # fmt: skip
        code, _, errors = call(*arguments)
        assert code == 2 and len(errors.splitlines()) == 1 and sentence in errors, (arguments, errors)
    assert not out.exists()


FOREIGN = """
<ir_version: 9, opset_import: ["": 18]>
colours (float[n, 3, h, w] images) => (float[n, 3] logits) {
    axes = Constant <value_ints = [2, 3]> ()
    logits = ReduceMean <keepdims = 0> (images, axes)
}
"""
"""A model without tokens, whose file does not have a size."""


def test_a_foreign_onnx_file_is_adapted_by_its_images_alone(call: Call, photos: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model, out = tmp_path / "foreign.onnx", tmp_path / "predictions.csv"
    onnx.save(onnx.parser.parse_model(FOREIGN), model)
    command = ("adapt", model, photos, "--clean", photos / "class0", "--mean", 0.5, "--std", 0.5, "-o", out)
    code, _, errors = call(*command)
    assert code == 2 and "give --image-size" in errors and not out.exists()
    code, said, errors = call(*command, "--image-size", 32)
    assert code == 0 and "60 images by equalise" in said, errors
    header, rows = table(out)
    assert header == ["image", *(f"{what}{i}" for i in range(1, 4) for what in ("class", "probability"))]
    assert len(rows) == 60 and len(rows[0]) == 7
