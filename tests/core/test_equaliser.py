"""The equaliser: weak bands are raised towards clean ones, strong ones and doubtful ones are left alone."""

from __future__ import annotations

import numpy as np
import pytest

from fozo.core.equaliser import MOST, equalise, missing
from fozo.core.look import spectra
from fozo.core.recall import Keys

SPECTRA = spectra(1, 32, 32)
FEATURES = 1 + SPECTRA.bands


def keys(centre: float, variance: float = 0.01, count: int = 1) -> Keys:
    """Keys whose every feature is ``centre`` standard deviations from clean."""
    return Keys(*(np.full((count, FEATURES), value) for value in (centre, variance, centre)))


def images(count: int = 4) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, 1, 32, 32)).astype(np.float32) + 3


def test_only_weakness_counts_and_only_as_far_as_it_is_believed() -> None:
    spread = np.full(FEATURES, 2.0)
    assert missing(SPECTRA, keys(3.0), spread).max() == 0
    assert missing(SPECTRA, keys(-0.9, variance=1.0), spread).max() == 0
    np.testing.assert_allclose(missing(SPECTRA, keys(-3.0, variance=1.0), spread), 2 * 3 * (1 - 1 / 9))
    np.testing.assert_allclose(missing(SPECTRA, keys(-3.0, variance=0.0), spread), 2 * 3)


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_a_part_of_the_way_to_the_clean_energy_and_the_mean_stays(part: float) -> None:
    faded = 3 + 0.5 * (images() - 3)
    lacking = np.full((1, 1, SPECTRA.bands), 2 * np.log(2))
    better = equalise(SPECTRA, SPECTRA.transform(faded), lacking, part)
    np.testing.assert_allclose(better.mean(axis=(2, 3)), faded.mean(axis=(2, 3)), atol=1e-5)
    np.testing.assert_allclose(better.std(axis=(2, 3)), faded.std(axis=(2, 3)) * 2**part, rtol=1e-4)


def test_gains_are_bounded() -> None:
    better = equalise(SPECTRA, SPECTRA.transform(images()), np.full((1, 1, SPECTRA.bands), 100.0), 1.0)
    np.testing.assert_allclose(better.std(axis=(2, 3)), images().std(axis=(2, 3)) * np.exp(MOST), rtol=1e-4)


def test_every_image_by_its_own_key() -> None:
    lacking = np.zeros((4, 1, SPECTRA.bands))
    lacking[2] = 1.0
    better = equalise(SPECTRA, SPECTRA.transform(images()), lacking, 0.7)
    moved = np.abs(better - images()).max(axis=(1, 2, 3))
    assert moved[2] > 0.1 and moved[[0, 1, 3]].max() < 1e-5
