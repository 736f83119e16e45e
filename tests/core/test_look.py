"""Looks: finite for any image, blind to content, sharp for corruptions."""

from __future__ import annotations

import numpy as np
import pytest

from fozo.core.look import look
from fozo.data.corruptions import corrupt


def pictures(count: int, seed: int = 0) -> np.ndarray:
    """Smooth random scenes, as ``uint8 [n, 64, 64, 3]``."""
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(40, 215, (count, 8, 8, 3))
    smooth = coarse.repeat(8, axis=1).repeat(8, axis=2)
    return np.asarray(smooth + rng.normal(0, 6, smooth.shape)).clip(0, 255).astype(np.uint8)


def looks(images: np.ndarray) -> np.ndarray:
    return look((images.astype(np.float32) / 127.5 - 1).transpose(0, 3, 1, 2))


def test_the_size_depends_on_channels_and_size_only() -> None:
    assert looks(pictures(3)).shape == (3, 3 * (1 + 5 + 1))
    assert look(np.zeros((2, 1, 28, 28), np.float32)).shape == look(np.ones((5, 1, 28, 28), np.float32))[:2].shape
    assert look(np.zeros((1, 1, 28, 28), np.float32)).shape[1] < look(np.zeros((1, 1, 224, 224), np.float32)).shape[1]


def test_energies_add_up_to_the_variance() -> None:
    """The pyramid splits an image's variance into its scales, and loses none of it."""
    images = np.random.default_rng(0).standard_normal((4, 1, 64, 64)).astype(np.float32)
    energies = np.exp(look(images)[:, 1:]).sum(axis=1)
    np.testing.assert_allclose(energies, images.var(axis=(1, 2, 3)), rtol=1e-3)


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
