"""Descriptors: finite for any image, blind to content, sharp for corruptions."""

import numpy as np
import pytest
from scipy.fft import dctn

from fozo.core.descriptor import describe, spectra
from fozo.data.corruptions import corrupt


def pictures(count: int, seed: int = 0) -> np.ndarray:
    """Smooth random scenes, as ``uint8 [n, 64, 64, 3]``."""
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(40, 215, (count, 8, 8, 3))
    smooth = coarse.repeat(8, axis=1).repeat(8, axis=2)
    return np.asarray(smooth + rng.normal(0, 6, smooth.shape)).clip(0, 255).astype(np.uint8)


def descriptors(images: np.ndarray) -> np.ndarray:
    return describe((images.astype(np.float32) / 127.5 - 1).transpose(0, 3, 1, 2))


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_the_size_depends_on_channels_and_size_only() -> None:
    assert descriptors(pictures(3)).shape == (3, 3 * (1 + 10))
    small, large = np.ones((5, 1, 28, 28), np.float32), np.zeros((1, 1, 224, 224), np.float32)
    assert describe(0 * small[:2]).shape == describe(small)[:2].shape
    assert describe(small).shape[1] < describe(large).shape[1]


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 224, 224), (2, 32, 48), (4, 16, 16), (1, 2, 2)])
def test_the_transform_is_scipys_orthonormal_cosine_transform(shape: tuple[int, int, int]) -> None:
    images = noise(9, *shape)  # of 224 px, more than are transformed together
    expected = dctn(images.astype(np.float64), type=2, norm="ortho", axes=(2, 3))
    np.testing.assert_allclose(spectra(*shape).transform(images)[0], expected, atol=2e-5)


def test_colours_become_brightness_and_differences_before_it() -> None:
    images = noise(3, 3, 16, 24)
    red, green, blue = dctn(images.astype(np.float64), type=2, norm="ortho", axes=(2, 3)).transpose(1, 0, 2, 3)
    expected = [red + green + blue, red - green, red + green - 2 * blue]
    found, descriptors = spectra(3, 16, 24).transform(images)
    np.testing.assert_allclose(found, np.stack(expected, axis=1), atol=5e-5)
    assert spectra(3, 16, 24).brightness == slice(0, 1) and spectra(4, 16, 16).brightness == slice(0, 4)
    means = images.mean(axis=(2, 3)).T
    expected = [(means[0] + means[1] + means[2]) / 3**0.5, (means[0] - means[1]) / 2**0.5]
    np.testing.assert_allclose(descriptors[:, :2], np.stack(expected, axis=1), atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 28, 28), (3, 32, 48), (4, 16, 16), (1, 2, 2)])
def test_the_transform_loses_nothing(shape: tuple[int, int, int]) -> None:
    transform, images = spectra(*shape), noise(3, *shape)
    coefficients, _ = transform.transform(images)
    energy = np.square(coefficients).sum(axis=(0, 2, 3)) / ([3, 2, 6] if shape[0] == 3 else 1)
    np.testing.assert_allclose(energy.sum(), np.square(images).sum(), rtol=1e-5)
    np.testing.assert_allclose(transform.inverse(coefficients, np.ones(shape, np.float32)), images, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 28, 28), (3, 32, 48), (1, 2, 2)])
def test_every_band_of_white_noise_has_its_variance(shape: tuple[int, int, int]) -> None:
    """Also: no band is empty, whatever the shape."""
    transform = spectra(*shape)
    energies = transform.log_energies(describe(noise(400, *shape)))
    np.testing.assert_allclose(np.exp(energies).mean(axis=0), 1, atol=0.25)


def test_a_wave_is_found_in_its_own_band() -> None:
    transform = spectra(1, 64, 64)
    strongest = []
    for waves in (4, 8, 16, 32, 63):
        image = np.cos(np.pi * waves * (np.arange(64) + 0.5) / 64) * np.ones((1, 1, 64, 1))
        strongest.append(int(transform.log_energies(describe(image))[0, 0].argmax()))
    assert strongest == [9, 7, 5, 3, 1]  # an octave is two bands


def test_gains_are_interpolated_between_bands_and_leave_the_mean_alone() -> None:
    transform = spectra(1, 64, 64)
    ramp = np.log(transform.gains(np.arange(float(transform.bands))[None]))
    assert ramp.shape == (1, 64, 64) and ramp[0, -1, -1] == ramp[0, 0, 0] == 0
    assert ramp[0, 0, 1] == pytest.approx(transform.bands - 1) == ramp[0, 1, 0]
    assert np.abs(np.diff(ramp[0, 8:, 8:], axis=0)).max() < 0.3
    flat = transform.gains(np.full((2, transform.bands), 0.3))
    np.testing.assert_allclose(flat.reshape(2, -1)[:, 1:], np.exp(0.3), rtol=1e-6)


@pytest.mark.parametrize("value", [0.0, 1.0, -1e4])
def test_uniform_images_have_finite_descriptors(value: float) -> None:
    assert np.isfinite(describe(np.full((1, 3, 32, 32), value, np.float32))).all()


@pytest.mark.parametrize("kind", ["gaussian_noise", "defocus_blur", "contrast", "brightness"])
def test_a_corruption_moves_the_descriptor_more_than_content_does(kind: str) -> None:
    if kind == "defocus_blur":
        pytest.importorskip("cv2")
    clean = descriptors(pictures(64))
    mean, std = clean.mean(axis=0), clean.std(axis=0)
    corrupted = [corrupt(image, kind, 3, 0, image_id=str(i)) for i, image in enumerate(pictures(64, seed=1))]
    bad, other = descriptors(np.stack(corrupted)), descriptors(pictures(64, seed=2))
    distance = [np.square((found.mean(axis=0) - mean) / std).mean() for found in (bad, other)]
    assert distance[0] > 5 * distance[1]
