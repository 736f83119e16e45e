"""Static front ends: what the model reads, on any engine and any kind of output."""

from typing import Any

import numpy as np
import pytest

import fozo
from fozo.core.contrast import luminance
from fozo.engines.blackbox import black_box
from fozo.methods.static import AutoLevels, Clahe
from tests.refusals import refuses

NAMES = ("clahe", "autolevels", "histeq", "greyworld")


def pictures(low: int = 0, high: int = 255, size: int = 32) -> np.ndarray:
    """Two RGB pictures as ``uint8 [2, 3, size, size]``: waves with a red cast."""
    y, x = np.mgrid[:size, :size]
    waves = np.stack([np.sin(y / 3) + np.cos(x / 5), np.sin(x / 4), np.cos((x + y) / 7)])
    scaled = (waves - waves.min()) / np.ptp(waves) * np.array([1.0, 0.8, 0.6])[:, None, None]
    both = np.stack([scaled, scaled[:, ::-1]])
    return np.asarray(low + both * (high - low)).astype(np.uint8)


def read_by(name: str, pixels: np.ndarray, mean: float = 0.5, std: float = 0.25, **options: Any) -> np.ndarray:
    """What a model reads, as pixels of 0..255; it returns something that is not logits."""
    seen: list[np.ndarray] = []
    engine = black_box(lambda images: seen.append(images) or "boxes", mean=mean, std=std)  # type: ignore[func-returns-value]
    assert fozo.create(name, engine, **options)(pixels) == "boxes"
    assert seen[0].dtype == np.float32
    return np.asarray((seen[0] * std + mean) * 255)


def luma(pixels: np.ndarray) -> np.ndarray:
    return luminance(pixels.astype(np.float32))


@pytest.mark.parametrize("name", NAMES)
def test_the_normalisation_of_the_model_does_not_matter(name: str) -> None:
    one, other = (read_by(name, pictures(40, 90), *own) for own in ((0.5, 0.25), (0.0, 1 / 255)))
    assert (np.abs(one - other) > 0.02).mean() < 0.1  # luminance just between two levels may be either
    assert one.min() >= -1e-3 and one.max() <= 255.001


def test_levels_are_stretched_by_channel_and_flat_channels_left() -> None:
    faint = pictures(100, 130)
    faint[:, 2] = 77
    stretched = read_by("autolevels", faint)
    for channel in (0, 1):
        low, high = np.quantile(faint[:, channel], (0.01, 0.99))
        wanted = (faint[:, channel] - low) / (high - low) * 255
        assert np.abs(stretched[:, channel] - wanted.clip(0, 255)).max() < 15  # two levels of 30, stretched
    np.testing.assert_allclose(stretched[:, 2], 77, atol=1e-3)


def test_histograms_of_luminance_become_flat_and_chroma_stays() -> None:
    faint = pictures(60, 120)
    found = read_by("histeq", faint)
    counts = np.histogram(luma(found), bins=4, range=(0, 255))[0]
    assert counts.min() > 0.7 * counts.mean()
    red, green, blue = (found.astype(float) - faint).swapaxes(0, 1)
    inside = (found.min(1) > 0) & (found.max(1) < 255)
    np.testing.assert_allclose(red[inside], green[inside], atol=1e-2)
    np.testing.assert_allclose(red[inside], blue[inside], atol=1e-2)


def test_clahe_is_that_of_opencv_on_luminance() -> None:
    cv2 = pytest.importorskip("cv2")
    gray = np.repeat(pictures(60, 120)[:, :1], 3, axis=1)
    wanted = np.stack([cv2.createCLAHE(3.0, (4, 4)).apply(image[0]) for image in gray])
    found = read_by("clahe", gray, clip=3.0, tiles=4)
    assert np.abs(found[:, 1] - wanted).max() <= 1.01


def test_the_grey_world_has_one_mean() -> None:
    found = read_by("greyworld", pictures(20, 120))
    assert np.ptp(found.mean((0, 2, 3))) < 0.01


def test_an_unknown_range_is_refused_unless_clean_images_show_it() -> None:
    engine = black_box(lambda images: images, name="plain")
    refuses("clahe needs the range of pixels: give the mean= and std= of plain", Clahe, engine)
    clean = np.repeat(pictures()[:, :1], 3, axis=1).astype(np.float32) / 255  # black and white in every channel
    faint = 0.4 + np.float32(0.2) * clean
    assert Clahe(engine, fozo.calibrate(engine, [clean, clean]))(faint).std() > faint.std()


def test_it_stands_before_another_method_and_shows_what_the_model_read() -> None:
    engine = black_box(lambda images: images.mean((2, 3)), mean=0, std=1)
    inner = fozo.NoAdapt(engine)
    both = AutoLevels.around(inner)
    faint = pictures(100, 130)
    assert np.ptp(both(faint)) > 2 * np.ptp(inner(faint))
    assert both.last_input is not None and np.ptp(both.last_input) == pytest.approx(1)
