"""What a release is made of: a version in one place, a complete sdist."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import fozo
from tests.helpers import REPO

LEFT_OUT = {".gitignore", ".ci/run"}
"""Of the repository, not of the project."""


def tracked() -> set[str]:
    run = subprocess.run(["git", "ls-files"], cwd=REPO, capture_output=True, text=True)
    if run.returncode:
        pytest.skip("this is not a clone")
    return {name for name in run.stdout.splitlines() if (REPO / name).exists()} - LEFT_OUT


def test_the_sdist_has_every_file(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=REPO, check=True, capture_output=True, timeout=120)
    (archive,) = tmp_path.glob("*.tar.gz")
    assert archive.name == f"fozo-{fozo.__version__}.tar.gz"
    with tarfile.open(archive) as file:
        held = {name.partition("/")[2] for name in file.getnames()}
    assert sorted(tracked() - held) == []


def test_the_version_is_in_one_place() -> None:
    named = [
        name
        for name in tracked() - {"CHANGELOG.md"}
        if name.endswith((".py", ".toml", ".yml", ".cff", ".md"))
        and f'"{fozo.__version__}"' in (REPO / name).read_text(encoding="utf-8")
    ]
    assert named == ["src/fozo/__init__.py"]
    assert f"## {fozo.__version__}" in (REPO / "CHANGELOG.md").read_text(encoding="utf-8")
