"""The quickstart and its notebook run without PyTorch and print what they say."""

import json
import re
import runpy
import subprocess
import sys
from typing import Any

import pytest

from tests.helpers import REPO

PAGES = runpy.run_path(str(REPO / "docs" / "make_notebook.py"))


def test_the_quickstart_prints_what_it_says() -> None:
    page = (REPO / "docs" / "quickstart.md").read_text(encoding="utf-8")
    code = "import sys; sys.modules['torch'] = None\n" + "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    right, sentence = run.stdout.splitlines()
    assert f"It prints `{right}`" in page
    for said in re.findall(r"\*([^*]+)\*", page[page.index("It prints *") :])[0].split(", "):
        assert said in PAGES["DATES"].sub("", sentence)


def printed(notebook: dict[str, Any]) -> str:
    return "".join(output.get("text", "") for cell in notebook["cells"] for output in cell.get("outputs", ()))


def figures(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+\.\d", text)]


def test_the_notebook_runs_and_shows_what_it_did_when_it_was_stored() -> None:
    pytest.importorskip("nbclient")
    text = PAGES["NOTEBOOK"].read_text(encoding="utf-8")
    stored, again = (json.loads(text), PAGES["executed"]())
    assert figures(printed(again)) == pytest.approx(figures(printed(stored)), abs=1.0)  # points; else make pages
    assert len(figures(printed(stored))) == 12 and "like fog" in printed(stored)
    assert printed(again).endswith("after a restart: True\n")
    kinds = [[sorted(out.get("data", {})) for out in cell.get("outputs", ())] for cell in stored["cells"]]
    assert str(kinds).count("image/jpeg") == 12 and len(text) < 120_000
    assert not re.search(r"/(?:home|root|tmp|work|Users)/|torch import", text)
