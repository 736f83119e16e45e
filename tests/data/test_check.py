"""``fozo data check``: what it says, and its exit code."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fozo.cli import app
from fozo.data import sets
from fozo.data.sets import check_image_set, imagenet_wnids
from tests.data.conftest import Plant
from tests.refusals import refuses


def c_tree(plant: Plant) -> Path:
    return plant(
        f"{kind}/{severity}/{wnid}/0.png"
        for kind in ("fog", "snow")
        for severity in (3, 5)
        for wnid in imagenet_wnids()[:4]
    )


def test_a_sound_tree_in_words(plant: Plant) -> None:
    root = c_tree(plant)
    assert check_image_set(root).lines == [
        f"path: {root}", "layout: imagenet-c", "images: 4 in each of 4 domains: snow, fog at severity 3, 5",
        "classes: 4 of 1000", "sizes: 16x16 (16)", "read: all 16 images decoded", "broken: 0",
    ]  # fmt: skip


def test_broken_files_are_named(plant: Plant) -> None:
    root = c_tree(plant)
    wnids = imagenet_wnids()
    (root / "fog" / "3" / wnids[1] / "0.png").write_bytes(b"")
    (root / "snow" / "5" / wnids[2] / "0.png").write_bytes(b"not an image")
    plant([f"snow/3/{wnids[0]}/0.png"], size=(12, 12))
    refuses("other images are", check_image_set, root)  # two sizes: not a set that can be opened
    plant([f"snow/3/{wnids[0]}/0.png"])
    broken = check_image_set(root).broken
    assert broken.keys() == {f"fog/3/{wnids[1]}/0.png", f"snow/5/{wnids[2]}/0.png"}
    assert "empty file" in broken[f"fog/3/{wnids[1]}/0.png"]
    assert "not an image" in broken[f"snow/5/{wnids[2]}/0.png"]


def test_only_a_full_check_finds_every_truncated_file(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "DECODED", 3)  # decodes the first, the middle and the last
    root = plant(f"{label}/{number}.png" for label in "ab" for number in range(5))
    (root / "b" / "4.png").write_bytes((root / "b" / "4.png").read_bytes()[:-25])
    (root / "a" / "1.png").write_bytes((root / "a" / "1.png").read_bytes()[:-25])
    quick, full = check_image_set(root), check_image_set(root, full=True)
    assert list(quick.broken) == ["b/4.png"] and "read: headers of all 10 images, 3 images decoded" in quick.lines
    assert list(full.broken) == ["a/1.png", "b/4.png"] and "read: all 10 images decoded" in full.lines


def test_an_odd_size_among_crops_is_broken_and_among_photographs_is_not(plant: Plant) -> None:
    root = plant(f"a/{number:03d}.png" for number in range(100))
    plant(["a/050.png"], size=(20, 16))  # not among the headers that are read at opening
    assert list(check_image_set(root).broken) == ["a/050.png"]
    plant(["a/000.png"], size=(20, 16))
    report = check_image_set(root)
    assert not report.broken and "sizes: 16x16 (98), 20x16 (2)" in report.lines


def test_the_command_prints_lines(plant: Plant) -> None:
    root = plant(["a/0.png", "a/[bold]1.png", "b/2.png"])
    run = CliRunner().invoke(app, ["data", "check", str(root)])
    assert run.exit_code == 0
    assert run.stdout.splitlines()[:3] == [f"path: {root}", "layout: folder", "images: 3"]
    (root / "a" / "[bold]1.png").write_bytes(b"")
    run = CliRunner().invoke(app, ["data", "check", str(root), "--full"])
    assert run.exit_code == 2 and "broken: 1" in run.stdout and "  a/[bold]1.png: " in run.stdout


def test_a_flat_folder_is_checked_too(plant: Plant) -> None:
    root = plant(["0.png", "1.png"])
    (root / "1.png").write_bytes(b"no image")
    run = CliRunner().invoke(app, ["data", "check", str(root)])
    assert run.exit_code == 2 and "layout: unlabelled" in run.stdout and "classes" not in run.stdout
    assert "images: 2" in run.stdout and "broken: 1" in run.stdout and "  1.png: " in run.stdout
