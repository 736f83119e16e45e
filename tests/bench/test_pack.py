"""Archives of finished runs: what several folders hold is joined, and nothing tells of the machine."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.pack import bare, pack
from fozo.bench.plan import Recipe, load_recipe
from fozo.bench.store import CONDITIONS, RESULT, collect
from fozo.errors import FozoError
from fozo.io import read_json, write_json
from tests.bench.invented import invent


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


def test_commands_lose_their_folders() -> None:
    assert bare("fozo bench quick --model /a/b/vit.safetensors --only 'NEO (tuned)' --out ../runs") == (
        "fozo bench quick --model vit.safetensors --only 'NEO (tuned)' --out runs"
    )
