"""The equaliser: weak bands are raised towards clean ones, strong ones and uncertain ones are left alone."""

from __future__ import annotations

import numpy as np

from fozo.core.descriptor import spectra
from fozo.methods.align.equaliser import equalise, log_gains
from fozo.methods.align.retrieval import DomainEstimate

SPECTRA = spectra(1, 32, 32)
FEATURES = 1 + SPECTRA.bands


def gains(mean: float, variance: float = 0.01, drifted: float = 1.0, strength: float = 1.0) -> np.ndarray:
    """Of a domain whose every feature is ``mean`` standard deviations of 0.2 from clean."""
    domain = DomainEstimate(*(np.full((1, FEATURES), value) for value in (mean, variance, mean)))
    return log_gains(SPECTRA, domain, np.array([drifted]), np.full(FEATURES, 0.2), strength)


def images(count: int = 4) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, 1, 32, 32)).astype(np.float32) + 3


def test_only_weakness_counts_and_only_as_far_as_it_is_believed() -> None:
    assert gains(3.0).max() == gains(-0.9, variance=1.0).max() == 0
    assert gains(-3.0).shape == (1, 1, SPECTRA.bands)
    np.testing.assert_allclose(gains(-3.0, variance=0.0), 0.2 * 3 / 2)  # half of the log energy
    np.testing.assert_allclose(gains(-3.0, variance=1.0), 0.2 * 3 * (1 - 1 / 9) / 2)
    np.testing.assert_allclose(gains(-3.0, variance=0.0, drifted=0.5, strength=0.7), 0.5 * 0.7 * 0.2 * 3 / 2)


def test_no_gain_is_above_four() -> None:
    np.testing.assert_allclose(np.exp(gains(-100.0)), 4)


def test_images_are_amplified_and_their_mean_stays() -> None:
    faded = 3 + 0.5 * (images() - 3)
    for gain in (1.0, 1.5, 2.0):
        better = equalise(SPECTRA, SPECTRA.transform(faded)[0], np.full((1, 1, SPECTRA.bands), np.log(gain)))
        np.testing.assert_allclose(better.mean(axis=(2, 3)), faded.mean(axis=(2, 3)), atol=1e-5)
        np.testing.assert_allclose(better.std(axis=(2, 3)), faded.std(axis=(2, 3)) * gain, rtol=1e-4)


def test_every_image_by_its_own_domain() -> None:
    each = np.zeros((4, 1, SPECTRA.bands))
    each[2] = 0.35
    better = equalise(SPECTRA, SPECTRA.transform(images())[0], each)
    moved = np.abs(better - images()).max(axis=(1, 2, 3))
    assert moved[2] > 0.1 and moved[[0, 1, 3]].max() < 1e-5
