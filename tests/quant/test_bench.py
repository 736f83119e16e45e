"""Quantised models in experiments, on the command line, and models that a user quantised."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

import fozo
from fozo import quant
from fozo.bench.experiment import Experiment, StreamPlan
from fozo.bench.recipe import load_recipe
from fozo.bench.run import run_experiment
from fozo.bench.workshop import Places, Workshop
from fozo.engines.export import export
from fozo.engines.vit import Architecture
from fozo.errors import FozoError
from fozo.quant.scales import Scales
from tests.helpers import REPO, random_vit

SHAPE = Architecture(
    image_size=(32, 32), patch_size=(8, 8), channels=3, dim=64, depth=1, heads=1, hidden=64, classes=3
)  # fmt: skip
PLAN = StreamPlan(data="imagenet", kinds=("contrast",), severity=3, images=8, batch_size=4)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "vit_tiny_patch8_32.augreg_random.safetensors"
    save_file(random_vit(SHAPE, seed=5).state_dict(), path)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for label in range(3):
        (root / f"class{label}").mkdir()
        for number in range(8):
            pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / f"class{label}" / f"{number}.png")
    return root


def test_an_experiment_on_a_quantised_model(
    weights: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Experiment(str(weights), "fozo", {}, PLAN, calibration=8)
    experiment = replace(plain, quantise="ptq4vit8")
    assert plain.hash != experiment.hash != replace(experiment, quantise="ptq4vit6").hash
    assert "quantise" not in plain.describe()
    places, shelf = Places(imagenet=str(photos)), tmp_path / "shelf"
    first = run_experiment(experiment, Workshop(places, shelf), tmp_path / "one")
    (kept,) = shelf.glob("ptq4vit8-*.npz")
    scales = Scales.load(kept)
    assert scales.bits == 8 and scales.images == 16  # of 24, 8 are streamed
    monkeypatch.setattr(quant, "ptq4vit", None)  # a second search would fail
    assert run_experiment(experiment, Workshop(places, shelf), tmp_path / "two") == first
    engine, _ = Workshop(places, shelf).stream(experiment)
    assert engine.spec.fingerprint.endswith(f"-ptq4vit8-{scales.digest}")
    with pytest.raises(FozoError, match="choose from ptq4vit4, ptq4vit6, ptq4vit8"):
        replace(plain, quantise="int8")


def test_table3_quantises_weights_and_runs_an_onnx_file_as_it_is() -> None:
    recipe = load_recipe("table3")
    assert {e.quantise for e in recipe.experiments("vit.safetensors")} == {"ptq4vit8"}
    assert {e.quantise for e in recipe.experiments("vit.int8.onnx")} == {""}
    assert {row.method for row in recipe.rows} == {"noadapt", "lame", "t3a", "foa", "zoa", "fozo"}


def fozo_command(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fozo", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_from_the_command_line(weights: Path, photos: Path, tmp_path: Path) -> None:
    scales, stats, out = (tmp_path / name for name in ("scales.npz", "stats.npz", "predictions.csv"))
    made = fozo_command("quantise", weights, photos, "--bits", 6, "--count", 4, "--metric", "l2", "-o", scales)
    assert made.returncode == 0 and made.stderr == "", made.stderr
    assert "6-bit scales" in made.stdout and "over 4 images" in made.stdout
    assert fozo_command("calibrate", weights, photos, "--scales", scales, "-o", stats).returncode == 0
    run = fozo_command("adapt", weights, photos, "--scales", scales, "--stats", stats, "-o", out)
    assert run.returncode == 0, run.stderr
    wrong = fozo_command("adapt", weights, photos, "--stats", stats, "-o", out)
    assert wrong.returncode == 2  # statistics of the quantised model are not the plain one's
    absent = fozo_command("quantise", weights, photos, "-o", tmp_path / "no" / "scales.npz")
    assert absent.returncode == 2 and absent.stderr.startswith("fozo: there is no folder")


def test_a_model_that_the_user_quantised_is_adapted_as_it_is(weights: Path, photos: Path, tmp_path: Path) -> None:
    plain = fozo.load_engine(weights)
    export(plain, tmp_path / "model.onnx")
    script = [sys.executable, *map(str, (REPO / "examples" / "own_int8.py", tmp_path / "model.onnx", photos, photos))]
    run = subprocess.run(script, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("batch ") == 2 and "MB in INT8" in run.stdout
    engine = fozo.load_engine(tmp_path / "model.int8.onnx")
    assert engine.spec.fingerprint.startswith(f"{plain.spec.fingerprint}-int8-")
    images = np.random.default_rng(0).standard_normal((4, 3, 32, 32)).astype(np.float32)
    exact, rounded = (e.logits(e.run(e.embed(images)).pooled) for e in (plain, engine))
    assert 0 < np.abs(exact - rounded).mean() < 0.2 * exact.std()
    source = fozo.SourceStatistics.collect(plain, [images])
    with pytest.raises(FozoError):
        fozo.FOZO(engine, source)
