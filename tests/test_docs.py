"""Pages say what is so: links lead somewhere, snippets run, options and names exist, the site builds."""

import ast
import copy
import os
import pickle
import pkgutil
import re
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main
from PIL import Image

import fozo
from fozo.bench.plan import load_recipe
from fozo.cli import app
from tests.helpers import REPO
from tests.test_examples import write_frames

PAGES = {path.relative_to(REPO).as_posix(): path.read_text(encoding="utf-8") for path in (REPO / "docs").rglob("*.md")}
PAGES["README.md"] = (REPO / "README.md").read_text(encoding="utf-8")
COMMAND = re.compile(r"(?<![\w/.-])fozo ((?:data )?[a-z]+)((?: [^`|\n]*)?)")
BENCHMARK = re.compile(r"python -m benchmarks\.(\w+)")


def blocks(language: str, page: str = "README.md") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], flags=re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One that has the files that the README names."""
    (tmp_path / "camera").mkdir()
    write_frames(tmp_path / "camera" / "clean", 12, seed=0)
    write_frames(tmp_path / "camera" / "today", 8, seed=1)
    return tmp_path


def test_the_readme_s_python_runs_as_pasted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One block after another; only the weights are not fetched."""
    timm = pytest.importorskip("timm")
    create = partial(timm.create_model, depth=2)
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: create(name))
    monkeypatch.chdir(folder)
    (folder / "pasted.py").write_text("\n".join(blocks("python")))
    assert len(blocks("python")) >= 2
    seen = runpy.run_path(str(folder / "pasted.py"))
    assert seen["logits"].shape == (1, 1000) and isinstance(seen["adapter"], fozo.Method)


def test_what_people_have_and_write_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Line after line of docs/models.md's first table."""
    timm = pytest.importorskip("timm")
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(folder / "camera")
    model = timm.create_model("vit_tiny_patch16_224", depth=2)
    names: dict[str, Any] = {
        "copy": copy, "fozo": fozo, "nn": torch.nn, "pickle": pickle, "torch": torch, "model": model,
        "compiled": torch.compile(model), "detect": lambda frame: frame, "batch": torch.zeros(2, 3, 224, 224),
        "pictures": [Image.open(path) for path in sorted(Path("today").iterdir())], "pipeline": transformers.pipeline,
        "processor": transformers.ViTImageProcessor(),
    }  # fmt: skip
    table = PAGES["docs/models.md"].partition("write ...")[2].partition("\n\nA module")[0]
    lines = [line for line in re.findall(r"`([^`]+)`", re.sub(r"(?m)^\|[^|]*\|", "", table)) if "fozo " not in line]
    assert len(lines) == 19
    for line in lines:
        exec(line, names)
    assert len(names["classify"](names["pictures"])) == 8 and names["picture"].size == names["pictures"][0].size


def anchors(page: str) -> set[str]:
    """Of a page's headings, as Python-Markdown and GitHub make them."""
    headings = re.findall(r"^#+ (.*)$", PAGES[page], flags=re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", heading) for heading in headings)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in plain}


def test_links_lead_somewhere() -> None:
    """Between pages, from pages to records and scripts, and from the program to pages."""
    links = [
        (page, os.path.normpath(Path(page).parent / link) if not link.startswith("#") else page + link)
        for page, text in PAGES.items()
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text)
    ]
    links += [
        (page, f"results/{name}") for page, text in PAGES.items() for name in re.findall(r"`results/([\w./-]+)`", text)
    ]
    links += [(page, f"benchmarks/{name}.py") for page, text in PAGES.items() for name in BENCHMARK.findall(text)]
    for root in ("src", "examples", "benchmarks", "deploy", "results", "tests"):
        for path in (REPO / root).rglob("*"):
            if path.suffix in {".py", ".toml", ".md", ".yaml"}:
                named = re.findall(r"\bdocs/[\w/]+\.md(?:#[\w-]+)?", path.read_text(encoding="utf-8"))
                links += [(str(path), link) for link in named]
    broken = []
    for page, link in links:
        file, _, anchor = link.partition("#")
        if not (REPO / file).exists() or (anchor and anchor not in anchors(file)):
            broken.append(f"{page}: {link}")
    assert len(links) > 100 and broken == []


def test_commands_on_the_pages_have_these_options() -> None:
    group = typer.main.get_command(app)
    wrong: list[str] = []
    seen = set()
    for page, text in PAGES.items():
        for name, rest in COMMAND.findall(re.sub(r"(?m)#.*$", "", text)):
            command: Any = group
            for word in name.split():
                command = getattr(command, "commands", {}).get(word)
            options = re.findall(r"(?<!\S)\[?(--?[a-z][\w-]*)", rest)
            if command is None:
                wrong += [f"{page}: fozo {name}"] if options else []  # else it is a sentence about fozo
                continue
            seen.add(name)
            known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            wrong += [f"{page}: fozo {name} {option}" for option in options if option not in known]
    assert wrong == [] and seen >= {"adapt", "bench", "calibrate", "corrupt", "data check", "export", "report", "watch"}


def test_python_on_the_pages_is_python_and_names_what_there_is() -> None:
    missing = []
    for page, text in PAGES.items():
        for block in blocks("python", page):
            ast.parse(block)
        for name in re.findall(r"(?<![\w/.\"-])fozo((?:\.[A-Za-z_]\w*)+)(?![\w/]|\.\w)", text):
            if not name.endswith((".md", ".toml", ".html", ".py")) and not exists(f"fozo{name}"):
                missing.append(f"{page}: fozo{name}")
    assert missing == []


def exists(name: str) -> bool:
    try:
        return name.startswith("fozo.serve.ray") or bool(pkgutil.resolve_name(name))  # tests/serve imports Ray
    except (ImportError, AttributeError):
        return False


def test_the_example_of_a_recipe_is_one(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(blocks("toml", "docs/bench.md")[0])
    assert [row.label for row in load_recipe(str(tmp_path / "mine.toml")).rows] == ["FOZO, 4 passes"]


def test_the_site_builds_without_a_warning_and_has_every_public_name(tmp_path: Path) -> None:
    """``make docs``. Warnings are errors: a broken link, a parameter that a docstring names and a function lacks."""
    pytest.importorskip("mkdocstrings")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    run = subprocess.run(
        command, cwd=REPO, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=240
    )
    assert (run.returncode, run.stdout) == (0, ""), run.stdout + run.stderr
    pages = {path: path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")}
    reference = "".join(text for path, text in pages.items() if path.parent.name == "reference")
    ids = {name.rpartition(".")[2] for name in re.findall(r'id="(fozo\.[\w.]+)"', reference)}
    assert sorted(set(fozo.__all__) - ids - {"NoAdapt"}) == []
    for path, text in pages.items():
        assert not re.findall(r'<(?:script|img|link)[^>]+(?:src|href)="(?:https?:)?//(?!squidfunk)', text), path
        assert ":class:`" not in text and ":func:`" not in text, path
