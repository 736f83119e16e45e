"""The second test set of corruptions: pure functions, monotone in strength."""

import numpy as np
import pytest

from fozo.data.corruptions.unseen import C_BAR_KINDS, CAMERA_KINDS, STRENGTHS, UNSEEN_KINDS, corrupt_unseen
from fozo.errors import FozoError
from tests.data.conftest import photograph


def test_there_are_ten_kinds_of_c_bar_and_at_least_eight_camera_faults() -> None:
    assert len(C_BAR_KINDS) == 10
    assert len(CAMERA_KINDS) >= 8
    assert set(STRENGTHS) == set(UNSEEN_KINDS)


@pytest.mark.parametrize("kind", UNSEEN_KINDS)
def test_stronger_severities_are_farther_from_the_clean_image(kind: str) -> None:
    image = photograph(224)
    distances = []
    for severity in (1, 3, 5):
        corrupted = [corrupt_unseen(image, kind, severity, seed).astype(float) for seed in range(6)]
        distances.append(np.mean([np.square(picture - image).mean() for picture in corrupted]))
    assert distances == sorted(distances)
    assert all(strength < stronger for strength, stronger in zip(STRENGTHS[kind], STRENGTHS[kind][1:], strict=False))


@pytest.mark.parametrize("kind", UNSEEN_KINDS)
@pytest.mark.parametrize("shape", [(8, 8), (8, 40), (31, 17)])
def test_any_image_of_8_px_or_more_keeps_its_shape(kind: str, shape: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    corrupted = corrupt_unseen(image, kind, 5, 0)
    assert corrupted.shape == image.shape
    assert corrupted.dtype == np.uint8


def test_what_cannot_be_corrupted_is_refused() -> None:
    image = np.zeros((16, 16, 3), np.uint8)
    with pytest.raises(FozoError, match="choose among"):
        corrupt_unseen(image, "fog", 3, 0)
    with pytest.raises(FozoError, match="give 1"):
        corrupt_unseen(image, "flash", 6, 0)
    with pytest.raises(FozoError, match="8 px or more"):
        corrupt_unseen(image[..., 0], "flash", 3, 0)
