"""benchmarks/calibration.py: which images it uses, and what it counts."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file

import fozo
from benchmarks import calibration
from benchmarks.common import clean_batches
from fozo.data.groups import CLASSES
from fozo.data.sets import ImageSet
from fozo.types import Engine
from tests.bench.conftest import TINY
from tests.helpers import random_vit


@pytest.fixture(scope="module")
def engine(weights: Path) -> Engine:
    return fozo.load_engine(weights)


@pytest.fixture(scope="module")
def images(photos: Path) -> ImageSet:
    return fozo.open_images(photos)


def test_every_class_is_halved_and_takes_turns_in_streams(images: ImageSet) -> None:
    clean, rest = calibration.halves(images, seed=3)
    assert not set(clean) & set(rest) and set(clean) | set(rest) == set(images.samples)
    assert sorted(each.label for each in clean) == sorted(images.labels.tolist()[::2])
    assert all({each.label for each in rest[start : start + 6]} == set(range(6)) for start in range(0, 30, 6))


def test_instalments_are_what_all_at_once_would_give(engine: Engine, images: ImageSet) -> None:
    found = calibration.instalments(engine, images, images.samples, (8, 20, 100), "")
    assert {size: source.images for size, source in found.items()} == {8: 8, 20: 20, 60: 60}
    once = fozo.calibrate(engine, clean_batches(calibration.subset(images, images.samples[:20]), engine.spec))
    np.testing.assert_allclose(found[20].patch_mean.mean, once.patch_mean.mean, atol=1e-6)
    np.testing.assert_allclose(found[20].content.cross["cls"], once.content.cross["cls"], atol=1e-4)


def test_an_image_counts_once_however_many_domains_it_is_seen_in() -> None:
    ours, theirs = np.array([[1.0, 1, 0, 1]] * 5), np.array([[0.0, 1, 0, 0]] * 5)
    gain, within = calibration.paired(ours, theirs)
    assert gain == 50 and within == pytest.approx(1.96 * np.std([100, 0, 0, 100], ddof=1) / 2)
    assert calibration.cell(ours, theirs).startswith("75.00 (+50.00 ± ")


def test_the_command_prints_both_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, path = tmp_path / "vit_tiny_patch8_32.augreg_random.safetensors", tmp_path / "set.npz"
    save_file(random_vit(replace(TINY, classes=CLASSES), seed=5).state_dict(), weights)
    pixels = np.random.default_rng(0).integers(0, 256, (4 * CLASSES, 8, 8), dtype=np.uint8)
    names = [f"n{number:08d}" for number in range(CLASSES)]
    np.savez(path, images=pixels, labels=np.tile(np.arange(CLASSES), 4), classes=names)
    options = ["calibration", str(weights), str(path), "--images", "2", "--clean", "16"]
    monkeypatch.setattr(sys, "argv", options)
    calibration.main()
    printed = capsys.readouterr().out
    assert "| all classes, 12 images | 6 narrow groups, 12 images |" in printed
    assert "| 16 images |" in printed
    assert [line.split(" | ")[2] for line in printed.splitlines() if line.startswith("| animals")] == ["0", "8", "16"]
    assert "Blend less the better of the two" in printed
