"""What docs/serving.md shows runs as pasted, against a server."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fozo.serve.config import read_config
from tests.helpers import REPO
from tests.serve.conftest import config, frames, running

DOCS = (REPO / "docs" / "serving.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", DOCS, flags=re.DOTALL)
    assert found is not None
    return found[1]


def test_the_clients_of_the_docs_are_answered(tmp_path: Path, reference: Path) -> None:
    """curl with a picture, and tritonclient with an array; the bundled model is gray, so its frames are too."""
    Image.fromarray(np.kron(frames(1)[0, :, :, 0], np.ones((8, 8), np.uint8))).save(tmp_path / "frame.jpg")
    settings = config(reference=reference)
    settings = replace(settings, models=(replace(settings.models[0], name="gates"),))
    with running(settings) as (url, _):
        command = block("sh").replace("127.0.0.1:8000", url)
        reply = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        if reply.returncode == 127:
            pytest.skip("there is no curl on this machine")
        answer = json.loads(reply.stdout)
        assert answer["id"] == "frame-17" and "sentence" in answer["parameters"]
        code = block("python").replace("127.0.0.1:8000", url)
        assert code.count('convert("RGB")') == 1
        gray = code.replace('convert("RGB"))[None]', 'convert("L"))[None, :, :, None]')
        ran = subprocess.run([sys.executable, "-c", gray], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stderr
        labels = {each["name"]: each["data"] for each in answer["outputs"]}["labels"]
        assert labels[0] in ran.stdout and "accuracy" in ran.stdout


def test_the_settings_of_the_docs_are_settings(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "serve.toml").write_text(block("toml"))
    found = read_config(tmp_path / "serve.toml")
    assert found.token == "secret" and [model.name for model in found.models] == ["gates", "shelves"]
