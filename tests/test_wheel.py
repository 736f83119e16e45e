"""The wheel, installed where there is nothing but the base dependencies: no PyTorch, and everything works.

The environment is made without a download: a fresh venv sees links to those of the test environment's packages that
the wheel's own metadata asks for, and to what these ask for in turn. A dependency that is not declared is not there.
"""

import importlib.metadata as metadata
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from PIL import Image

from fozo import __version__
from fozo.data import sample
from tests.helpers import REPO

pytest.importorskip("hatchling", reason="building the wheel without a download needs hatchling")

BANNED = ("torch", "onnx", "cv2", "matplotlib", "skimage", "timm", "transformers")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(requirements: list[str]) -> dict[str, metadata.Distribution]:
    """Distributions that the requirements lead to, without any extra."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(requirements)
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonical(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found[name] = metadata.distribution(name)
        waiting += found[name].requires or []
    return found


def link(distribution: metadata.Distribution, folder: Path) -> None:
    """Make a distribution's files visible in ``folder``."""
    tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
    for top in tops:
        source = Path(str(distribution.locate_file(top)))
        if source.exists() and not (folder / top).exists():
            (folder / top).symlink_to(source)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel, install it in a venv of its own, and return that venv's Python."""
    root = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(root), str(REPO)]
    subprocess.run(build, check=True, timeout=120)
    (wheel,) = root.glob("fozo-*.whl")
    venv.create(root / "venv", with_pip=False, symlinks=True)
    inside = root / "venv" / "bin" / "python"
    subprocess.run(
        [*pip, "--python", str(inside), "install", "--no-deps", "--no-index", str(wheel)], check=True, timeout=120
    )
    (site,) = (root / "venv" / "lib").glob("python*/site-packages")
    (own,) = (d for d in metadata.distributions(path=[str(site)]) if d.metadata["Name"] == "fozo")
    for distribution in needed(own.requires or []).values():
        link(distribution, site)
    return inside


def run(python: Path, *command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        [str(python), *map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=200
    )


def fozo(python: Path, *command: str | Path, cwd: Path) -> str:
    done = run(python, "-m", "fozo", *command, cwd=cwd)
    found = "fozo: vit-fashion: Align moves the tokens of its 6 blocks\n"
    assert done.returncode == 0 and done.stderr in ("", found)  # quiet when piped, but for what was found
    return done.stdout


def test_there_is_no_torch(python: Path, tmp_path: Path) -> None:
    code = f"import fozo, importlib.util as u; print(fozo.__file__, [n for n in {BANNED} if u.find_spec(n)])"
    where, _, found = run(python, "-c", code, cwd=tmp_path).stdout.partition(" ")
    assert found == "[]\n" and where.startswith(str(python.parent.parent))  # the wheel's, not the source tree's


def test_the_command_and_the_page_of_the_server_are_installed(python: Path, tmp_path: Path) -> None:
    done = run(python, python.parent / "fozo", "--version", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")
    done = run(python, "-c", "from fozo.serve.page import document; print(document())", cwd=tmp_path)
    assert done.stdout.startswith("<!DOCTYPE html>") and "</html>" in done.stdout


def test_the_demo_runs(python: Path, tmp_path: Path) -> None:
    out = fozo(python, "demo", "--images", "16", cwd=tmp_path)
    assert [len(re.findall(rf"^ *{engine} ", out, re.M)) for engine in sample.MODELS] == [7, 7]
    assert (tmp_path / "fozo-demo.html").read_text().startswith("<!DOCTYPE html>")


def test_an_engineer_can_calibrate_adapt_and_compare(python: Path, tmp_path: Path) -> None:
    model = sample.MODELS["float32"]
    with np.load(sample.IMAGES) as archive:
        pixels = archive["images"][:24]
    (tmp_path / "photos").mkdir()
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / "photos" / f"{number:02}.png")
    assert "over 24 images" in fozo(python, "calibrate", model, "photos", "-o", "statistics.safetensors", cwd=tmp_path)
    fozo(python, "adapt", model, "photos", "--statistics", "statistics.safetensors", "-o", "found.csv", cwd=tmp_path)
    assert len((tmp_path / "found.csv").read_text().splitlines()) == 25

    rows = "".join(
        f'[[row]]\nlabel = "{name}"\nmethod = "{name}"\n' for name in ("noadapt", "lame", "t3a", "foa", "fozo", "align")
    )
    (tmp_path / "mine.toml").write_text(f'calibration = 32\n[stream]\nkinds = ["contrast"]\nimages = 32\n{rows}')
    fozo(python, "bench", "mine.toml", "--model", model, "--data", f"imagenet={sample.IMAGES}", cwd=tmp_path)
    fozo(python, "report", "runs", cwd=tmp_path)
    assert "</html>" in (tmp_path / "report.html").read_text()


def test_the_licence_of_the_images_comes_with_them(python: Path) -> None:
    (folder,) = (python.parent.parent / "lib").glob("python*/site-packages/fozo/data/sample")
    assert "Zalando SE" in (folder / "LICENSE").read_text()
    assert sum(file.stat().st_size for file in folder.iterdir()) < 3_000_000
