"""The pixels that streams give: prepared, corrupted on the fly or stored, normalised."""

import io
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fozo.data.corrupt_tree import corrupt_tree
from fozo.data.corruptions import corrupt
from fozo.data.images import resize_crop
from fozo.data.scenarios import Continual
from fozo.data.sets import CLEAN, Domain, open_images
from fozo.data.streams import Corrupting, Stream
from tests.data.conftest import MakeSpec, plant_noise

TWO = ("fog", "snow")


@pytest.mark.parametrize(("channels", "size"), [(3, (16, 16)), (1, (16, 16)), (1, (12, 20)), (3, (8, 9))])
def test_pixels_are_cropped_corrupted_and_normalised(
    tmp_path: Path, make_spec: MakeSpec, channels: int, size: tuple[int, int]
) -> None:
    images = open_images(plant_noise(tmp_path, {"a/0.png": (40, 50), "b/1.png": (37, 31)}))
    spec = make_spec(2, channels=channels, mean=(0.4,) * channels, std=(0.3,) * channels, image_size=size)
    stream = Stream(images, spec, Continual(kinds=("clean", "gaussian_noise", "fog"), severity=2, shuffle=False))
    clean, *corrupted = stream.batches()
    cropped = [resize_crop(images.read(i), size) for i in range(2)]
    if channels == 1:
        cropped = [np.array(Image.fromarray(pixels).convert("L"))[..., None] for pixels in cropped]
    np.testing.assert_array_equal(clean.images, spec.normalise(np.stack(cropped)))
    for kind, batch in zip(("gaussian_noise", "fog"), corrupted, strict=True):
        # The gray image is what is corrupted: a gray camera has one channel of noise, not the mean of three.
        named = zip(("a/0.JPEG", "b/1.JPEG"), cropped, strict=True)
        expected = np.stack([corrupt(pixels, kind, 2, 0, image_id=name) for name, pixels in named])
        np.testing.assert_array_equal(batch.images, spec.normalise(expected))
    preparation = str(stream.describe()["preparation"])
    assert "CenterCrop(" in preparation and preparation.endswith("+ luminance") == (channels == 1)


@pytest.mark.parametrize(("size", "words"), [(16, "16 px crops as they are"), (24, "Resize(24, bilinear)")])
def test_stored_corruptions_are_loaded_as_they_are(tmp_path: Path, make_spec: MakeSpec, size: int, words: str) -> None:
    shapes = {f"{kind}/5/{label}/0.png": (16, 16) for kind in TWO for label in "abc"}
    images = open_images(plant_noise(tmp_path, shapes))
    stream = Stream(images, make_spec(3, size=size), Continual(kinds=TWO, shuffle=False))
    assert stream.describe()["preparation"] == words
    for number, batch in enumerate(stream.batches()):
        stored = [images.read(i, Domain(TWO[number], 5)) for i in range(3)]
        if size == 24:
            stored = [resize_crop(pixels, 24, resize=24) for pixels in stored]
        np.testing.assert_array_equal(batch.images, make_spec(3, size=size).normalise(np.stack(stored)))


SHAPES = {
    "photographs": [(40, 50), (40, 50), (40, 50)],
    "photographs, one of the model's size": [(40, 50), (16, 16), (30, 20)],
    "squares of two sizes": [(16, 16), (24, 24), (16, 16)],
    "ready-made crops": [(16, 16), (16, 16), (16, 16)],
    "crops of another size": [(24, 24), (24, 24), (24, 24)],
}


@pytest.mark.parametrize("case", SHAPES)
def test_on_the_fly_equals_a_corrupted_tree_before_its_jpeg_coding(
    tmp_path: Path, make_spec: MakeSpec, case: str
) -> None:
    shapes = dict(zip(("a/0.png", "a/1.webp", "b/1.JPEG"), SHAPES[case], strict=True))
    plant_noise(tmp_path / "clean", shapes)
    kinds, out = ("impulse_noise", "frost"), tmp_path / "tree"
    corrupt_tree(tmp_path / "clean", out, kinds=kinds, severities=(3,), size=16, seed=4, workers=1)
    clean, scenario = open_images(tmp_path / "clean"), Continual(kinds=kinds, severity=3)
    fly = Corrupting(clean, 16, seed=4)
    for kind, index in product(kinds, range(3)):
        coded = io.BytesIO()
        Image.fromarray(fly.load(Domain(kind, 3), index)).save(coded, "JPEG", quality=85, optimize=True)
        written = (out / kind / "3" / clean.samples[index].path).with_suffix(".JPEG")
        assert coded.getvalue() == written.read_bytes()
    # A photograph of the model's size is cropped like its neighbours; a ready-made crop is left alone.
    untouched = [np.array_equal(fly.load(CLEAN, index), clean.read(index)) for index in range(3)]
    assert untouched == [case == "ready-made crops"] * 3
    described = Stream(open_images(out), make_spec(2), scenario).describe()
    assert (described["corruption"], described["corruption_seed"], described["corruption_quality"]) == ("stored", 4, 85)
    assert described["frost"] == Stream(fly, make_spec(2), scenario).describe()["frost"]
