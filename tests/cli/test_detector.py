"""Commands on an ONNX detector, which returns no logits and reads blue first."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fozo
from tests.cli.conftest import Call
from tests.methods.test_frames import scenes
from tests.test_example_detector import SIDE, stand_in

LOAD = ("--mean", "0", "--std", "0.00392157", "--channels", "bgr", "--threads", "1")


def write(folder: Path, frames: np.ndarray) -> Path:
    folder.mkdir()
    for i, frame in enumerate(frames):
        Image.fromarray(np.ascontiguousarray(frame[..., ::-1])).save(folder / f"{i:03}.png")
    return folder


def test_watch_names_the_drift_of_a_detector(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fozo.Reference.collect.__kwdefaults__ or {}, "sample", 4)
    model, stats = stand_in(tmp_path / "model.onnx"), tmp_path / "clean.safetensors"
    clean = write(tmp_path / "clean", scenes(48, SIDE, SIDE))
    live = write(tmp_path / "live", scenes(32, SIDE, SIDE, seed=2) // 2 + 60)
    assert call("calibrate", model, clean, "-o", stats, *LOAD)[0] == 0
    code, out, errors = call(
        "watch",
        model,
        live,
        "--statistics",
        stats,
        "--clean",
        clean,
        "--reference",
        tmp_path / "mon.safetensors",
        *LOAD,
    )
    assert code == 0, errors
    assert "\n32 images, " in out and "contrast -" in out.splitlines()[-1]
    assert "accuracy" not in out.replace(str(tmp_path), "")


def test_an_unknown_order_of_colours_is_refused(tmp_path: Path, call: Call) -> None:
    model = stand_in(tmp_path / "model.onnx")
    clean = write(tmp_path / "clean", scenes(2, SIDE, SIDE))
    code, _, errors = call("calibrate", model, clean, "-o", tmp_path / "clean.safetensors", "--channels", "gbr")
    assert code == 2 and "channels is 'gbr'" in errors
