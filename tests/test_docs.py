"""The README runs as pasted, the site builds without a warning, and nothing in it comes from elsewhere."""

import os
import re
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import fozo
from tests.helpers import REPO
from tests.test_examples import write_frames

README = (REPO / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


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


def test_the_readme_s_five_lines_run_in_a_plain_process(folder: Path) -> None:
    """As users run them; only the weights are not fetched."""
    code = next(block for block in blocks("python") if "timm" in block)
    code = code.replace("pretrained=True", "depth=2") + "\nprint(logits.shape)"
    code = f"from tests import torchvision_operators; torchvision_operators.declare_missing()\n{code}"
    command = [sys.executable, "-W", "ignore", "-c", code]
    path = os.pathsep.join(filter(None, [str(REPO), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert "(1, 1000)" in run.stdout, run.stderr


def test_install_lines_are_pinned_and_one_needs_no_cuda() -> None:
    lines = [line for line in "\n".join(blocks("sh")).splitlines() if line.startswith("pip install")]
    assert len(lines) == 2 and all("-c constraints.txt" in line for line in lines)
    assert "Without a graphics card, install PyTorch's CPU build" in README
    make = (REPO / "Makefile").read_text(encoding="utf-8")
    assert "docs: $(VENV)-docs/.ready" in make and "'.[docs]'" in make


def test_the_readme_has_the_two_commands_and_links_that_lead_somewhere() -> None:
    shell = "\n".join(blocks("") + blocks("sh"))
    assert "make demo" in shell and "make test" in shell
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert links and [link for link in links if not (REPO / link).exists()] == []
    words = len(re.findall(r"\S*\w\S*", re.sub(r"```.*?```", "", README, flags=re.DOTALL)))
    assert words < 900 and len(README.splitlines()) <= 90, words  # details are for docs/


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
    example = re.sub(r"<[^>]+>", "", reference)  # without the colours of code
    assert (
        "&gt;&gt;&gt; adapter = fozo.adapter(model," in example and "&gt;&gt;&gt; logits = adapter(batch)\n" in example
    )
    assert "<blockquote>" not in reference
    for path, text in pages.items():
        assert not re.findall(r'<(?:script|img|link)[^>]+(?:src|href)="(?:https?:)?//(?!squidfunk)', text), path
        assert ":class:`" not in text and ":func:`" not in text, path
        assert not re.search(r"<em>[\s),.;:]", text), path  # the asterisks of a formula taken for emphasis
        assert not re.search(r"<code>(?:[^<]* )?--\w", text), path  # an option that may break after a hyphen


def spelled(count: int) -> str:
    words = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty"
    return words.split()[count - 10]


def test_the_readme_counts_the_methods() -> None:
    assert f"`fozo methods` lists these and {spelled(len(fozo.list_methods()) - 2)} others" in README
