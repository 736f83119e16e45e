"""Looks: finite for any image, blind to content, sharp for corruptions."""

from __future__ import annotations

import numpy as np
import pytest

from fozo.core.look import look, spectra
from fozo.data.corruptions import corrupt


def pictures(count: int, seed: int = 0) -> np.ndarray:
    """Smooth random scenes, as ``uint8 [n, 64, 64, 3]``."""
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(40, 215, (count, 8, 8, 3))
    smooth = coarse.repeat(8, axis=1).repeat(8, axis=2)
    return np.asarray(smooth + rng.normal(0, 6, smooth.shape)).clip(0, 255).astype(np.uint8)


def looks(images: np.ndarray) -> np.ndarray:
    return look((images.astype(np.float32) / 127.5 - 1).transpose(0, 3, 1, 2))


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_the_size_depends_on_channels_and_size_only() -> None:
    assert looks(pictures(3)).shape == (3, 3 * (1 + 10))
    assert look(np.zeros((2, 1, 28, 28), np.float32)).shape == look(np.ones((5, 1, 28, 28), np.float32))[:2].shape
    assert look(np.zeros((1, 1, 28, 28), np.float32)).shape[1] < look(np.zeros((1, 1, 224, 224), np.float32)).shape[1]


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 28, 28), (3, 32, 48), (4, 16, 16), (1, 2, 2)])
def test_the_transform_loses_nothing(shape: tuple[int, int, int]) -> None:
    transform, images = spectra(*shape), noise(3, *shape)
    coefficients = transform.transform(images)
    np.testing.assert_allclose(np.square(coefficients).sum(), np.square(images).sum(), rtol=1e-5)
    np.testing.assert_allclose(transform.inverse(coefficients), images, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 28, 28), (3, 32, 48), (1, 2, 2)])
def test_every_band_of_white_noise_has_its_variance(shape: tuple[int, int, int]) -> None:
    """Also: no band is empty, whatever the shape."""
    transform = spectra(*shape)
    energies = transform.energies(transform.look(transform.transform(noise(400, *shape))))
    np.testing.assert_allclose(np.exp(energies).mean(axis=0), 1, atol=0.25)


def test_a_wave_is_found_in_its_own_band() -> None:
    transform = spectra(1, 64, 64)
    strongest = []
    for waves in (4, 8, 16, 32, 63):
        image = np.cos(np.pi * waves * (np.arange(64) + 0.5) / 64) * np.ones((1, 1, 64, 1))
        strongest.append(int(transform.energies(look(image))[0, 0].argmax()))
    assert strongest == [9, 7, 5, 3, 1]  # an octave is two bands


def test_values_of_bands_go_over_smoothly() -> None:
    transform = spectra(1, 64, 64)
    ramp = transform.spread_out(np.arange(float(transform.bands))[None])
    assert ramp.shape == (1, 64, 64) and ramp[0, -1, -1] == 0 and ramp[0, 0, 0] == transform.bands - 1
    assert np.abs(np.diff(ramp[0, 8:, 8:], axis=0)).max() < 0.3
    np.testing.assert_allclose(transform.spread_out(np.full((2, transform.bands), 0.3)), 0.3, rtol=1e-6)


@pytest.mark.parametrize("value", [0.0, 1.0, -1e4])
def test_uniform_images_have_finite_looks(value: float) -> None:
    assert np.isfinite(look(np.full((1, 3, 32, 32), value, np.float32))).all()


@pytest.mark.parametrize("kind", ["gaussian_noise", "defocus_blur", "contrast", "brightness"])
def test_a_corruption_moves_the_look_more_than_content_does(kind: str) -> None:
    clean = looks(pictures(64))
    mean, spread = clean.mean(axis=0), clean.std(axis=0)
    bad = looks(np.stack([corrupt(image, kind, 3, 0, image_id=str(i)) for i, image in enumerate(pictures(64, seed=1))]))
    other = looks(pictures(64, seed=2))
    distance = [np.square((found.mean(axis=0) - mean) / spread).mean() for found in (bad, other)]
    assert distance[0] > 5 * distance[1]
