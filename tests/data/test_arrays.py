"""Sets in one .npz file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fozo.data.sets import open_images
from fozo.errors import FozoError


def write(path: Path, images: np.ndarray, labels: object = (0, 1, 1), classes: object = ("a", "b")) -> Path:
    np.savez_compressed(path, images=images, labels=np.array(labels), classes=np.array(classes))
    return path


@pytest.mark.parametrize("shape", [(3, 6, 6), (3, 6, 6, 3)])
def test_gray_and_coloured_images_are_read(tmp_path: Path, shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    images = open_images(write(tmp_path / "set.npz", pixels))
    assert (images.name, images.classes, images.size, images.corrupted) == ("arrays", ("a", "b"), (6, 6), False)
    assert images.labels.tolist() == [0, 1, 1]
    expected = np.repeat(pixels[1][..., None], 3, axis=2) if len(shape) == 3 else pixels[1]
    got = images.read(1)
    np.testing.assert_array_equal(got, expected)
    got[:] = 0  # what a reader does to its copy stays there
    np.testing.assert_array_equal(images.read(1), expected)
    assert open_images(tmp_path / "set.npz", classes=("x", "y", "z")).classes == ("x", "y", "z")


def test_what_is_no_set_is_refused(tmp_path: Path) -> None:
    good = np.zeros((3, 6, 6), np.uint8)
    path = tmp_path / "set.npz"
    path.write_bytes(b"nonsense")
    with pytest.raises(FozoError, match=r"not a readable \.npz"):
        open_images(path)
    np.savez(path, images=good)
    with pytest.raises(FozoError, match=r"not a readable \.npz of images, labels and classes"):
        open_images(path)
    for images, labels in ((good.astype(float), (0, 1, 1)), (good, (0, 1)), (good[0], (0, 1, 1))):
        with pytest.raises(FozoError, match=r"give uint8 images .* and N whole numbers"):
            open_images(write(path, images, labels))
    with pytest.raises(FozoError, match="labels from 0 to 2 for 2 classes"):
        open_images(write(path, good, (0, 1, 2)))
    np.savez(path, images=good, labels=np.array([0, 1, 1]), classes=np.array([object(), "a"], dtype=object))
    with pytest.raises(FozoError, match="not a readable"):  # a pickle, which is never loaded
        open_images(path)
