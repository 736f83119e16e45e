"""What a release is made of: a version in one place, a complete sdist, readable workflows and citation."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import fozo
from tests.helpers import REPO

yaml = pytest.importorskip("yaml")
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


def test_workflows_are_readable_and_run_the_versions_that_are_promised() -> None:
    found = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in (REPO / ".github").rglob("*.yml")}
    assert {"test", "docs", "release", "bug"} <= set(found)
    matrix = found["test"]["jobs"]["portable"]["strategy"]["matrix"]
    metadata = (REPO / "pyproject.toml").read_text(encoding="utf-8")
    assert [python for python in matrix["python"] if f"Python :: {python}" not in metadata] == []
    assert found["release"]["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    hooks = yaml.safe_load((REPO / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    assert {hook["entry"].split()[0] for hook in hooks} == {"ruff", "lint-imports", "mypy"}


def test_the_citation_names_the_paper() -> None:
    cited = yaml.safe_load((REPO / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    paper = cited["references"][0]
    assert paper["title"].startswith("FOZO: ") and [a["family-names"] for a in paper["authors"]] == ["Wang", "Wang"]
