"""``fozo quantise`` with the commands that take its scales, and a model that the user quantised."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fozo
from fozo.errors import FozoError
from fozo.types import Tap
from tests.cli.conftest import Call
from tests.helpers import REPO


def test_scales_for_calibrate_and_adapt(call: Call, weights: Path, photos: Path, tmp_path: Path) -> None:
    scales, stats, out = (tmp_path / name for name in ("scales.npz", "stats.npz", "predictions.csv"))
    code, said, errors = call(
        "quantise", weights, photos, "--bits", 6, "--count", 4, "--metric", "l2", "-o", scales
    )  # fmt: skip
    assert (code, errors) == (0, "") and "6-bit scales" in said and "over 4 images" in said
    assert call("calibrate", weights, photos, "--scales", scales, "-o", stats)[0] == 0
    assert call("adapt", weights, photos, "--scales", scales, "--stats", stats, "-o", out)[0] == 0
    code, _, errors = call("adapt", weights, photos, "--stats", stats, "-o", out)
    assert code == 2 and "collect them again" in errors  # statistics of the quantised model are not the plain one's
    code, _, errors = call("quantise", weights, photos, "-o", tmp_path / "no" / "scales.npz")
    assert code == 2 and ": there is no folder" in errors
    code, _, errors = call("quantise", weights, photos, "--count", 0, "-o", scales)
    assert code == 2 and "count is 0" in errors


def test_a_model_that_the_user_quantised_is_adapted_as_it_is(weights: Path, photos: Path, tmp_path: Path) -> None:
    plain = fozo.load_engine(weights)
    fozo.export(plain, tmp_path / "model.onnx")
    script = [sys.executable, *map(str, (REPO / "examples" / "own_int8.py", tmp_path / "model.onnx", photos, photos))]
    run = subprocess.run(script, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("batch ") == 4 and "MB in INT8" in run.stdout
    engine = fozo.load_engine(tmp_path / "model.int8.onnx")
    assert engine.spec.fingerprint.startswith(f"{plain.spec.fingerprint}-int8-")
    images = np.random.default_rng(0).standard_normal((4, 3, 32, 32)).astype(np.float32)
    exact, rounded = (e.run(e.check(images))[Tap.LOGITS] for e in (plain, engine))
    assert 0 < np.abs(exact - rounded).mean() < 0.2 * exact.std()
    with pytest.raises(FozoError):
        fozo.adapter(engine, fozo.calibrate(plain, [images]))
