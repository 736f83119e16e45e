"""The examples do what their first lines promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fozo
from fozo.exporting import export
from tests.helpers import REPO, random_vit


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


def test_camera_sees_a_shift_and_names_classes(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    export(fozo.load_engine(random_vit(), mean=0.5, std=0.5), model, labels=[f"thing {i}" for i in range(7)])
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
    assert (tmp_path / "model.statistics.npz").exists()
    assert min(shifts["dark"][:2]) > 3 * max(shifts["same"][:2]), shifts


def test_camera_reads_a_video(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    model = tmp_path / "model.onnx"
    export(fozo.load_engine(random_vit(), mean=0.5, std=0.5), model)
    clean = write_frames(tmp_path / "clean", 20, seed=0)
    video = cv2.VideoWriter(str(tmp_path / "live.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 10, (160, 120))
    for path in sorted(clean.iterdir()):
        video.write(cv2.imread(str(path)))
    video.release()
    run = camera(model, clean, tmp_path / "live.avi")
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) == 2 and "class " in run.stdout
