"""CLAHE in NumPy against OpenCV's, and against what it should do."""

import numpy as np
import pytest

from fozo.core.contrast import clahe, luminance
from fozo.types import Floats
from tests.refusals import refuses


def plane(height: int, width: int, low: float = 0.0, high: float = 255.0) -> Floats:
    """Waves of several lengths under a little noise."""
    y, x = np.mgrid[:height, :width]
    waves = np.sin(y / 9) + np.cos(x / 17) + np.sin((x + y) / 41)
    noisy = waves + np.random.default_rng(height).normal(0, 0.2, waves.shape)
    scaled: Floats = low + (high - low) * (noisy - noisy.min()) / np.ptp(noisy)
    return scaled


@pytest.mark.parametrize(("height", "width"), [(224, 224), (225, 224), (240, 321), (9, 11)])
@pytest.mark.parametrize(("clip", "tiles"), [(2.0, 8), (4.0, 4), (40.0, 8), (0.1, 8)])
def test_opencv_gives_the_same(height: int, width: int, clip: float, tiles: int) -> None:
    cv2 = pytest.importorskip("cv2")
    pixels = np.rint(plane(height, width)).astype(np.uint8)
    wanted = cv2.createCLAHE(clip, (tiles, tiles)).apply(pixels).astype(int)
    differs = np.abs(np.rint(255 * clahe(pixels[None] / np.float32(255), clip, tiles)[0]) - wanted)
    assert differs.max() <= 1  # it multiplies and adds in another order
    assert (differs > 0).sum() < 8 + 0.02 * differs.size


def test_planes_are_equalised_apart() -> None:
    pixels = np.stack([plane(64, 48, 0, 1), plane(64, 48, 0.4, 0.47)])
    found = clahe(pixels)
    np.testing.assert_array_equal(clahe(pixels[1:])[0], found[1])
    assert found[1].std() > 1.5 * pixels[1].std()  # contrast grows, and no further than the clip limit allows
    assert found[1].std() < 4 * pixels[1].std()


def test_luminance_weights_three_channels_only() -> None:
    red = np.zeros((1, 3, 2, 2), dtype=np.float32)
    red[:, 0] = 1
    assert luminance(red).max() == pytest.approx(0.299)
    assert luminance(red[:, :2]).max() == pytest.approx(0.5)


@pytest.mark.parametrize(("shape", "words"), [((1, 7, 20), "at least 8x8 px"), ((20, 20), "planes")])
def test_refusals(shape: tuple[int, ...], words: str) -> None:
    refuses(words, clahe, np.zeros(shape))
