"""What engines refuse to read, and what they warn of: limits, sentences, and that nothing has changed."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fozo
from fozo.core.normalisation import ABSURD_PIXELS, NOISE_VALUE, USUAL_PIXELS, check_images
from fozo.errors import FozoError, ImageWarning
from tests.helpers import random_vit
from tests.refusals import refuses

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
HALF = {"mean": 0.5, "std": 0.5}
CAFFE = {"mean": 0.4, "std": 1 / 255}


@pytest.fixture(scope="module", params=["torch", "onnx"])
def make(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., fozo.Engine]:
    """Makes an engine of each kind with a given mean and std."""
    file: Path | None = None
    if request.param == "onnx":
        file = tmp_path_factory.mktemp("images") / "model.onnx"
        fozo.export(fozo.load_engine(random_vit()), file)
    return lambda **options: fozo.load_engine(file or random_vit(), **options)


def photographs(count: int = 8, seed: int = 0) -> np.ndarray:
    """Pixels in [0, 1] with black and white among them, channels first."""
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 3, 16, 16)).astype(np.float32)
    pixels[:, :, 0, 0], pixels[:, :, 0, 1] = 0, 255
    return pixels / 255


def normalised(pixels: np.ndarray, spec: fozo.Spec) -> np.ndarray:
    assert spec.mean is not None and spec.std is not None
    mean, std = (np.array(values, dtype=np.float32)[:, None, None] for values in (spec.mean, spec.std))
    return (pixels - mean) / std


def quiet(engine: fozo.Engine, images: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.check(images)


@pytest.mark.parametrize("options", [IMAGENET, HALF, CAFFE, {"mean": 0.0, "std": 1.0}])
def test_images_and_their_overshoots_are_fine(make: Callable[..., fozo.Engine], options: dict[str, Any]) -> None:
    engine = make(**options)
    for pixels in (photographs(), 1.4 * photographs() - 0.2, np.zeros((1, 3, 16, 16)), np.full((2, 3, 16, 16), 0.7)):
        images = normalised(pixels, engine.spec)
        quiet(engine, images)
        quiet(engine, images.astype(np.float64))
        quiet(engine, torch.from_numpy(images).bfloat16().requires_grad_())
    quiet(engine, np.zeros((2, 3, 16, 16)))  # what engines are warmed up with


def spoiled(images: np.ndarray, value: float, image: int = 1) -> np.ndarray:
    images = images.copy()
    images[image, 2, 5, 5] = value
    return images


@settings(deadline=None)
@given(
    mean=st.floats(0, 1),
    std=st.floats(0.004, 1),
    pixel=st.floats(width=32, allow_nan=True, allow_infinity=True) | st.floats(-5, 5, width=32),
    as_torch=st.booleans(),
)
@example(mean=0.0, std=0.5, pixel=0.0, as_torch=False)
def test_the_limits_are_where_they_are_said_to_be(mean: float, std: float, pixel: float, as_torch: bool) -> None:
    spec = fozo.Spec("m", 1, 8, 2, 1, (4, 4), (4, 4), 8, "f", (mean,), (std,))
    images = np.full((3, 1, 4, 4), (0.5 - mean) / std)
    images[1, 0, 2, 3] = value = (pixel - mean) / std
    given = torch.from_numpy(images) if as_torch else images
    warned: set[str] = set()
    edge = 1e-6 * (1 + abs(mean / std))  # where rounding decides
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImageWarning)
        try:
            check_images(given, spec, warned)
        except FozoError as error:
            assert "image 1 of the batch" in str(error) and "\n" not in str(error)
            inside = ABSURD_PIXELS[0] < pixel < ABSURD_PIXELS[1] or abs(value) < NOISE_VALUE
            assert not inside or min(abs(pixel - end) for end in ABSURD_PIXELS) < edge
        else:
            assert ABSURD_PIXELS[0] <= pixel <= ABSURD_PIXELS[1] or abs(value) <= NOISE_VALUE + edge
            if warned - {"un-normalised"}:
                assert not USUAL_PIXELS[0] + edge < pixel < USUAL_PIXELS[1] - edge
            elif not warned:
                assert USUAL_PIXELS[0] - edge <= pixel <= USUAL_PIXELS[1] + edge


PREPARED: dict[str, tuple[Callable[[np.ndarray, fozo.Spec], np.ndarray], str, str]] = {
    "bytes as floats": (lambda pixels, spec: 255 * pixels, "refused", "image 0 .* 0 to 255.*looks like 0..255; "),
    "not divided": (
        lambda pixels, spec: normalised(255 * pixels, spec), "refused", "damaged, or prepared in another way",
    ),
    "twice": (lambda pixels, spec: normalised(normalised(pixels, spec), spec), "warned", "prepared in another way"),
    "not at all": (lambda pixels, spec: pixels, "warned", "it looks un-normalised"),
    "one pixel": (lambda pixels, spec: spoiled(normalised(pixels, spec), 1e4, 6), "refused", "image 6 .* to 1e"),
    "one NaN": (lambda pixels, spec: spoiled(normalised(pixels, spec), np.nan, 2), "refused", "image 2 .*holds NaN"),
    "bytes": (lambda pixels, spec: (255 * pixels).astype(np.uint8), "refused", r"uint8.*engine\.spec\.normalise"),
    "one large pixel": (
        lambda pixels, spec: spoiled(normalised(pixels, spec), 6.5, 3), "warned", "image 3 .* to 6.5, .* damaged",
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", PREPARED)
@pytest.mark.parametrize("options", [IMAGENET, HALF])
def test_the_likely_cause_is_named(make: Callable[..., fozo.Engine], wrong: str, options: dict[str, Any]) -> None:
    engine = make(**options)
    prepare, outcome, sentence = PREPARED[wrong]
    images = prepare(photographs(), engine.spec)
    if outcome == "refused":
        refuses(sentence, engine.check, images)
        return
    with pytest.warns(ImageWarning, match=sentence) as seen:
        for _ in range(3):
            engine.check(images)
    assert len(seen) == 1  # once for an engine
    with pytest.warns(ImageWarning, match=sentence):
        make(**options).check(images)
