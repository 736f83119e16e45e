"""The examples do what their first lines promise."""

import re
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fozo
from fozo.state import same
from tests.helpers import HALF, REPO, random_vit


def write_frames(folder: Path, count: int, seed: int, light: float = 1.0) -> Path:
    """Frames of coarse random colours, under a light."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    for i in range(count):
        pixels = (light * rng.integers(0, 256, (30, 40, 3))).astype(np.uint8)
        Image.fromarray(pixels).resize((160, 120), Image.Resampling.NEAREST).save(folder / f"{i:04}.png")
    return folder


def camera(*arguments: Path, without: tuple[str, ...] = ("torch", "onnx")) -> subprocess.CompletedProcess[str]:
    """Run the example as a user would, on a machine that lacks some packages."""
    block = "".join(f"sys.modules[{name!r}] = None; " for name in without)
    code = f"import runpy, sys; {block}sys.argv[1:] = {[*map(str, arguments)]!r}; "
    script = f"runpy.run_path({str(REPO / 'examples' / 'camera.py')!r}, run_name='__main__')"
    return subprocess.run([sys.executable, "-c", code + script], capture_output=True, text=True, timeout=120)


def example(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    """Run one here, where timm can be imported (see torchvision_operators.py)."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(REPO / "examples" / name), run_name="__main__")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    fozo.export(fozo.load_engine(random_vit(), **HALF), path, labels=[f"thing {i}" for i in range(7)])
    return path


def test_camera_sees_a_shift_and_names_classes(model: Path, tmp_path: Path) -> None:
    clean = write_frames(tmp_path / "clean", 48, seed=0)
    shifts = {}
    for name, light in (("same", 1.0), ("dark", 0.3)):
        run = camera(model, clean, write_frames(tmp_path / name, 36, seed=1, light=light))
        assert run.returncode == 0, run.stderr
        lines = run.stdout.splitlines()
        assert len(lines) == 3  # 16 + 16 + 4 frames
        found = [re.fullmatch(r"batch (\d): shift +([\d.]+)   thing [0-6]", line) for line in lines]
        assert [match and match[1] for match in found] == ["0", "1", "2"]
        shifts[name] = [float(match[2]) for match in found if match]
    assert (tmp_path / "clean.statistics.safetensors").exists()
    assert min(shifts["dark"][:2]) > 3 * max(shifts["same"][:2]), shifts


def test_camera_goes_on_with_what_it_saved(model: Path, tmp_path: Path) -> None:
    clean = write_frames(tmp_path / "clean", 24, seed=0)
    live = write_frames(tmp_path / "live", 16, seed=1, light=0.5)
    adapter = fozo.adapter(model, clean)
    for _ in range(2):
        run = camera(model, clean, live)
        assert run.returncode == 0, run.stderr
        adapter([np.asarray(Image.open(path)) for path in sorted(live.iterdir())])
        restored = fozo.adapter(model, clean)
        restored.restore(tmp_path / "live.state")
        assert same(restored.state(), adapter.state())


def test_camera_reads_a_video(model: Path, tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    clean = write_frames(tmp_path / "clean", 20, seed=0)
    video = cv2.VideoWriter(str(tmp_path / "live.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 10, (160, 120))
    for path in sorted(clean.iterdir()):
        video.write(cv2.imread(str(path)))
    video.release()
    run = camera(model, clean, tmp_path / "live.avi")
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) == 2


def test_a_model_of_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    timm = pytest.importorskip("timm")
    monkeypatch.chdir(tmp_path)
    made: list[Any] = []
    create = partial(timm.create_model, depth=2, embed_dim=48, num_heads=3)

    def untrained(name: str, pretrained: bool) -> Any:
        assert pretrained  # which here would fetch
        made.append(create(name))
        return made[0]

    monkeypatch.setattr(timm, "create_model", untrained)
    clean, live = write_frames(tmp_path / "clean", 24, seed=0), write_frames(tmp_path / "live", 40, seed=1, light=0.4)
    example("timm_vit.py", monkeypatch, clean, live)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("32 images, shift ") and lines[2].startswith("40 images, shift ") and len(lines) == 3
    again = fozo.adapter(made[0], clean)
    again.restore(tmp_path / "adapter.state")
    assert again.engine.spec.mean == (0.5, 0.5, 0.5)
