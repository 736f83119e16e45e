"""Corrupting a folder: shape of the tree, resuming, interruption, bad files."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from fozo.cli import app
from fozo.data import corrupt_tree as module
from fozo.data.corrupt_tree import Outcome, corrupt_tree, parse_kinds, parse_severities
from fozo.data.corruptions import EXTRA_KINDS, KINDS, frost_source
from fozo.errors import FozoError
from tests.data.conftest import plant_noise
from tests.refusals import refuses

pytest.importorskip("cv2")

LIGHT = ("brightness", "gaussian_noise")
make_tree = partial(corrupt_tree, size=32, workers=1)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two classes, three photographs, one by chance of the size asked for, and files that are not images."""
    shapes = {"cat/a.png": (32, 32), "cat/b.jpg": (50, 70), "dog/c.bmp": (90, 40)}
    root = plant_noise(tmp_path / "images", shapes)
    (root / "cat" / "notes.txt").write_text("no image")
    (root / "cat" / "._a.png").write_bytes(b"resource fork")
    (root / "readme.md").write_text("no class")
    return root


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files(folder)}


def test_the_tree_has_the_shape_of_imagenet_c(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    assert make_tree(images, out, kinds=LIGHT, severities=(1, 5)) == Outcome(written=12)
    names = [f"{k}/{s}/{n}.JPEG" for k in LIGHT for s in (1, 5) for n in ("cat/a", "cat/b", "dog/c")]
    assert files(out) == sorted([*names, "corruptions.json"])
    for name in names:
        with Image.open(out / name) as picture:
            assert picture.format == "JPEG" and picture.size == (32, 32)


def test_ready_made_crops_are_taken_as_they_are(tmp_path: Path) -> None:
    crops = {f"cat/{number:02d}.png": (32, 32) for number in range(40)}
    images = plant_noise(tmp_path / "images", crops | {"cat/04.png": (20, 20)})  # where opening does not look
    outcome = make_tree(images, tmp_path / "out", kinds=["contrast"])
    # As a stream does: an image of another size than the other crops is not zoomed into in silence.
    assert outcome.written == 39
    assert "04.png (clean) is 20x20 px where the folder set's other images are 32x32" in outcome.unreadable[0]
    plant_noise(images, {"cat/00.png": (20, 20)})
    other = "was made with preparation 32 px crops as they are, not Resize"
    refuses(other, make_tree, images, tmp_path / "out", kinds=["contrast"])
    assert make_tree(images, tmp_path / "all", kinds=["contrast"]).written == 40


def test_record(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make_tree(images, out, kinds=["frost"], severities=[3], seed=7)
    record = json.loads((out / "corruptions.json").read_text())
    expected = {"kinds": ["frost"], "severities": [3], "size": 32, "seed": 7, "images": 3, "unreadable": 0}
    assert {key: record[key] for key in expected} == expected
    assert record["frost"] == frost_source() and record["fozo"] and record["quality"] == 85
    # More may be added to the same tree; the record then names all of it, in the paper's order.
    make_tree(images, out, kinds=["fog", "snow"], severities=[1, 5], seed=7)
    record = json.loads((out / "corruptions.json").read_text())
    assert record["kinds"] == ["snow", "frost", "fog"] and record["severities"] == [1, 3, 5]
    assert record["frost"] == frost_source()


def test_workers_do_not_change_a_byte(images: Path, tmp_path: Path) -> None:
    for workers in (1, 2):
        corrupt_tree(images, tmp_path / str(workers), kinds=("snow", "fog", *LIGHT), size=32, workers=workers)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_resuming_makes_only_what_is_missing(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make_tree(images, out, kinds=LIGHT)
    whole = contents(out)
    lost = out / "brightness" / "5" / "cat" / "b.JPEG"
    lost.unlink()
    first = out / "brightness" / "5" / "cat" / "a.JPEG"
    stamp = first.stat().st_mtime_ns
    assert make_tree(images, out, kinds=LIGHT) == Outcome(written=1, skipped=5)
    assert contents(out) == whole and first.stat().st_mtime_ns == stamp
    assert make_tree(images, out, kinds=LIGHT) == Outcome(skipped=6)


def test_a_tree_is_not_continued_in_another_way(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    make_tree(images, out, kinds=["frost"])
    before = contents(out)
    refuses("was made with seed", make_tree, images, out, kinds=["frost"], seed=1)
    refuses("was made with size", make_tree, images, out, kinds=["frost"], size=33)
    monkeypatch.setattr(module, "frost_source", lambda: "elsewhere")
    refuses("was made with frost", make_tree, images, out, kinds=["frost"])
    assert contents(out) == before
    assert make_tree(images, out, kinds=["fog"]).written == 3


def test_a_tree_that_fozo_did_not_make_is_refused(images: Path, tmp_path: Path) -> None:
    stranger = tmp_path / "out" / "fog" / "5" / "cat" / "a.JPEG"
    stranger.parent.mkdir(parents=True)
    stranger.write_bytes(b"from the real ImageNet-C")
    refuses(r"no corruptions\.json", make_tree, images, tmp_path / "out", kinds=["fog"])
    (tmp_path / "out" / "corruptions.json").write_text("{broken")
    refuses("not readable JSON", make_tree, images, tmp_path / "out", kinds=["fog"])
    assert stranger.read_bytes() == b"from the real ImageNet-C"


def test_unreadable_images_are_named_and_the_rest_is_done(images: Path, tmp_path: Path) -> None:
    (images / "dog" / "empty.jpg").touch()
    (images / "cat" / "half.png").write_bytes((images / "cat" / "a.png").read_bytes()[:500])
    outcome = corrupt_tree(images, tmp_path / "out", kinds=LIGHT, size=32, workers=2)
    assert outcome.written == 6 and len(outcome.unreadable) == 2
    assert "half.png" in outcome.unreadable[0] and "empty.jpg is an empty file" in outcome.unreadable[1]
    assert json.loads((tmp_path / "out" / "corruptions.json").read_text())["unreadable"] == 2


def test_wrong_folders_and_numbers(images: Path, tmp_path: Path) -> None:
    for source, changes, words in (
        (tmp_path / "none", {}, "there is no folder"),
        (images, {"out": images / "out"}, "lies inside"),
        (images, {"size": 7}, "size is 7 px"),
        (images, {"size": 1_000_000}, "at most 7168 px"),
        (images, {"workers": 0}, "workers is 0"),
        (images / "cat", {}, "no images in folders below"),
    ):
        options: dict[str, Any] = {"out": tmp_path / "out", "size": 32, **changes}
        refuses(words, corrupt_tree, source, **options)
    Image.new("RGB", (32, 32)).save(images / "cat" / "a.jpg")
    refuses(r"would both become cat/a\.JPEG", corrupt_tree, images, tmp_path / "out", size=32)
    assert not (tmp_path / "out").exists()


def test_options_of_the_command_are_read() -> None:
    for text, kinds in (("all", KINDS), ("all+extra", KINDS + EXTRA_KINDS), ("fog, snow,fog", ("fog", "snow"))):
        assert parse_kinds(text) == kinds
    for text, levels in (("5", (5,)), ("1-5", (1, 2, 3, 4, 5)), ("5,1,3", (1, 3, 5)), ("1-2, 4", (1, 2, 4))):
        assert parse_severities(text) == levels
    for text in ("", "foggy", "fog,", "all,fog"):
        refuses("there is no corruption", parse_kinds, text)
    for text in ("", "0", "6", "1-6", "5-1", "high", "-3", "1--3", "2.5"):
        refuses(r"cannot read the severity .*; write 5", parse_severities, text)


def test_command(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["corrupt", str(images), str(out), "--kinds", "fog", "--severity", "1,2", "--size", "32"]
    result = CliRunner().invoke(app, [*arguments, "--workers", "1"])
    assert result.exit_code == 0, result.output
    assert "6 files written, 0 were there already" in result.stdout
    assert result.stderr == ""  # not a terminal, so no progress bar
    (images / "dog" / "empty.jpg").touch()
    result = CliRunner().invoke(app, [*arguments, "--workers", "1"])
    assert result.exit_code == 2
    assert "0 files written, 6 were there already" in result.stdout
    assert "empty.jpg is an empty file" in result.stderr and "1 images could not be read" in result.stderr
    result = CliRunner().invoke(app, ["corrupt", str(images), str(out), "--kinds", "fogg"])
    assert isinstance(result.exception, FozoError) and "did you mean fog?" in str(result.exception)
