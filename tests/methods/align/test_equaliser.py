"""The equaliser: weak bands are raised towards clean ones, strong ones and uncertain ones are left alone."""

from __future__ import annotations

import numpy as np
import pytest

from fozo.core.descriptor import spectra
from fozo.methods.align.equaliser import MAX_LOG_GAIN, energy_deficit, equalise
from fozo.methods.align.retrieval import DomainEstimate

SPECTRA = spectra(1, 32, 32)
FEATURES = 1 + SPECTRA.bands


def domain(mean: float, variance: float = 0.01) -> DomainEstimate:
    """A domain whose every feature is ``mean`` standard deviations from clean."""
    return DomainEstimate(*(np.full((1, FEATURES), value) for value in (mean, variance, mean)))


def images(count: int = 4) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, 1, 32, 32)).astype(np.float32) + 3


def test_only_weakness_counts_and_only_as_far_as_it_is_believed() -> None:
    std = np.full(FEATURES, 2.0)
    assert energy_deficit(SPECTRA, domain(3.0), std).max() == 0
    assert energy_deficit(SPECTRA, domain(-0.9, variance=1.0), std).max() == 0
    np.testing.assert_allclose(energy_deficit(SPECTRA, domain(-3.0, variance=1.0), std), 2 * 3 * (1 - 1 / 9))
    np.testing.assert_allclose(energy_deficit(SPECTRA, domain(-3.0, variance=0.0), std), 2 * 3)


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_a_part_of_the_way_to_the_clean_energy_and_the_mean_stays(strength: float) -> None:
    faded = 3 + 0.5 * (images() - 3)
    deficit = np.full((1, 1, SPECTRA.bands), 2 * np.log(2))
    better = equalise(SPECTRA, SPECTRA.transform(faded)[0], deficit, strength)
    np.testing.assert_allclose(better.mean(axis=(2, 3)), faded.mean(axis=(2, 3)), atol=1e-5)
    np.testing.assert_allclose(better.std(axis=(2, 3)), faded.std(axis=(2, 3)) * 2**strength, rtol=1e-4)


def test_gains_are_bounded() -> None:
    better = equalise(SPECTRA, SPECTRA.transform(images())[0], np.full((1, 1, SPECTRA.bands), 100.0), 1.0)
    np.testing.assert_allclose(better.std(axis=(2, 3)), images().std(axis=(2, 3)) * np.exp(MAX_LOG_GAIN), rtol=1e-4)


def test_every_image_by_its_own_domain() -> None:
    deficit = np.zeros((4, 1, SPECTRA.bands))
    deficit[2] = 1.0
    better = equalise(SPECTRA, SPECTRA.transform(images())[0], deficit, 0.7)
    moved = np.abs(better - images()).max(axis=(1, 2, 3))
    assert moved[2] > 0.1 and moved[[0, 1, 3]].max() < 1e-5
