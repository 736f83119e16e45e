from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fozo
from fozo.core.descriptor import describe
from fozo.errors import FozoError
from fozo.monitor import Change, Drift, Status
from fozo.monitor.quality import NAMES, STATISTICS, QualityStatistics, advice, changes
from fozo.types import Array

SPEC = fozo.Spec("any", 1, 1, 2, 3, (64, 64), (8, 8), 1, "", (0.5,) * 3, (0.25,) * 3)


def picture(seed: int = 0) -> Array:
    """A smooth coloured picture in [0.1, 0.6], ``[3, 64, 64]``."""
    rng = np.random.default_rng(seed)
    waves = np.cumsum(np.cumsum(rng.standard_normal((3, 64, 64)), axis=1), axis=2)
    low, high = waves.min(axis=(1, 2), keepdims=True), waves.max(axis=(1, 2), keepdims=True)
    return np.asarray(0.1 + 0.5 * (waves - low) / (high - low))


def statistics(image: Array) -> dict[str, float]:
    normalised = ((image - 0.5) / 0.25)[None].astype(np.float32)
    return dict(zip(NAMES, QualityStatistics(SPEC)(normalised)[0], strict=False))


def change(image: Array) -> dict[str, float]:
    before, after = statistics(picture()), statistics(image)
    return {name: after[name] - before[name] for name in NAMES}


def test_brightness_is_in_stops_of_linear_light_and_contrast_and_detail_are_amplitudes() -> None:
    image = picture()
    assert change(image * 2 ** (1 / 2.2))["brightness"] == pytest.approx(1.0, abs=0.01)
    flat = change(image.mean() + 0.5 * (image - image.mean()))
    # A level of 1/255 is added before the logarithm, so it is not quite a half where there was little.
    for name in ("contrast", "fine detail", "medium detail"):
        assert np.exp(flat[name]) == pytest.approx(0.5, abs=0.04), name


def test_noise_is_a_sigma_and_specks_are_uneven() -> None:
    rng, image = np.random.default_rng(1), picture()
    noisy = image + rng.normal(0, 0.05, image.shape)
    luma = 0.05 * np.sqrt(np.square([0.2126, 0.7152, 0.0722]).sum())  # of noise that is independent in each channel
    assert np.exp(statistics(noisy)["noise"]) == pytest.approx(luma + 1 / 255, rel=0.08)
    specks = np.where(rng.random((1, 64, 64)) < 0.05, 1.0, image)
    assert change(specks)["evenness of noise"] < -0.5 < 0 < change(noisy)["evenness of noise"]


def test_casts_have_a_direction() -> None:
    image = picture()
    warm = change(image * np.array([1.2, 1, 0.8])[:, None, None])
    assert warm["warmth"] > 0.05 and abs(warm["green"]) < 0.03
    assert change(image * np.array([1, 1.2, 1])[:, None, None])["green"] > 0.05
    gray = np.repeat(image.mean(axis=0, keepdims=True), 3, axis=0)
    assert change(gray)["saturation"] < -2


def test_blocks_motion_and_clipped_pixels_are_seen() -> None:
    image = picture()
    blocks = image.reshape(3, 8, 8, 8, 8).mean(axis=(2, 4), keepdims=True)
    blocks = np.broadcast_to(blocks, (3, 8, 8, 8, 8)).reshape(3, 64, 64)
    assert change(blocks)["blockiness"] > 1
    sideways = np.mean([np.roll(image, step, axis=2) for step in range(9)], axis=0)
    down = np.mean([np.roll(image, step, axis=1) for step in range(9)], axis=0)
    assert change(sideways)["sideways detail"] < -0.3 < 0.3 < change(down)["sideways detail"]
    image[:, :16], image[:, 16:24] = 1.0, 0.0
    found = statistics(image)
    assert found["burnt highlights"] == pytest.approx(0.25) and found["blocked shadows"] == pytest.approx(0.125)


def test_descriptors_that_a_method_measured_are_used() -> None:
    images = np.random.default_rng(0).standard_normal((3, 3, 64, 64)).astype(np.float32)
    quality = QualityStatistics(SPEC)
    np.testing.assert_array_equal(quality(images), quality(images, describe(images)))
    assert quality(images).shape == (3, quality.width)
    with pytest.raises(FozoError, match="the mean and std of any are unknown"):
        QualityStatistics(replace(SPEC, mean=None, std=None))


def test_words_are_of_clear_changes_only_and_of_one_octave_of_detail() -> None:
    mean, std = np.zeros(len(STATISTICS)), np.full(len(STATISTICS), 0.2)
    features = np.zeros((4, len(STATISTICS)))
    for name, value in {"contrast": np.log(0.59), "fine detail": np.log(0.3), "finest detail": np.log(0.5)}.items():
        features[:, NAMES.index(name)] = value
    features[:, NAMES.index("noise")] = -2.0  # less noise is nothing to say
    features[:, NAMES.index("warmth")] = 0.05  # a quarter of a deviation may be content
    clearest = changes(features, mean, std)[1]
    assert clearest == (Change("fine detail", np.log(0.3)), Change("contrast", np.log(0.59)))
    assert list(map(str, clearest)) == ["fine detail -70 %", "contrast -41 %"]


@pytest.mark.parametrize(
    ("change", "text", "direction"),
    [
        (Change("brightness", -1.25), "brightness -1.2 stops", ("brightness", False)),
        (Change("noise", 1.5), "noise x4.5", ("noise", True)),
        (Change("warmth", 0.051), "warmth +5 points", ("warmth", True)),
        (Change("contrast", np.log(1.5)), "contrast +50 %", ("contrast", True)),
    ],
)
def test_a_change_is_a_value_and_words_only_in_print(change: Change, text: str, direction: tuple[str, bool]) -> None:
    assert str(change) == text and change.direction == direction


def test_describe_gives_columns_with_units(tmp_path: Path) -> None:
    """The same pixels as an array, floats, PIL images and a folder; numbers that can be computed by hand."""
    pixels = np.full((3, 64, 64, 3), 51, dtype=np.uint8)
    pixels[1, :16], pixels[1, 16:] = 255, 0  # a quarter burnt, the rest blocked
    pixels[2] = np.random.default_rng(0).normal(128, 12, (64, 64, 1)).clip(0, 255)  # gray noise
    columns = fozo.describe(pixels, size=64)
    assert list(columns)[:3] == ["brightness (stops)", "contrast (%)", "saturation (%)"]
    assert len(columns) == len(NAMES) and all(column.shape == (3,) for column in columns.values())
    assert columns["brightness (stops)"][0] == pytest.approx(2.2 * np.log2(0.2), abs=0.01)
    assert columns["burnt highlights (%)"].tolist() == [0, 25, 0] and columns["blocked shadows (%)"][1] == 75
    assert columns["contrast (%)"] == pytest.approx([0, 100 * np.sqrt(0.1875), 4.7], abs=0.1)
    assert columns["noise (%)"] == pytest.approx([0, 0, 4.7], abs=0.3) and columns["blockiness (ratio)"][0] == 1
    pictures = [Image.fromarray(one) for one in pixels]
    for number, picture in enumerate(pictures):
        picture.save(tmp_path / f"{number}.png")
    floats = pixels.transpose(0, 3, 1, 2) / 255
    for same in (fozo.describe(given, size=64) for given in (pictures, tmp_path, floats)):
        assert all(same[name] == pytest.approx(columns[name], abs=1e-4) for name in columns)
    assert {len(column) for column in fozo.describe([]).values()} == {0}
    with pytest.raises(FozoError, match="from 0 to 4 are not RGB pixels"):
        fozo.describe(4 * floats)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"brightness": -2.1, "noise": 1.5}, "raise the exposure"),
        ({"finest detail": -1.4, "contrast": -1.4, "brightness": -4.6}, "raise the exposure"),
        ({"finest detail": -1.4, "contrast": -1.4, "brightness": -0.5}, "clean the lens, or wait for haze to clear"),
        ({"brightness": 1.5, "burnt highlights": 0.3}, "lower the exposure"),
        ({"noise": 1.5}, "add light, or lower the gain"),
        ({"finest detail": -1.2, "contrast": -0.3}, "check the focus"),
        ({"finest detail": -0.9, "contrast": -0.8}, "clean the lens, or wait for haze to clear"),
        ({"finest detail": -1.2, "sideways detail": -0.5}, "keep the camera still"),
        ({"blockiness": 0.9}, "compress less"),
        ({"warmth": 0.3, "green": -0.2}, "set the white balance"),
        ({"contrast": 0.9}, ""),
    ],
)
def test_advice_is_what_a_person_can_do(change: dict[str, float], wanted: str) -> None:
    features = np.array([[change.get(name, 0.0) for name in NAMES]])
    quality, clearest = changes(features, 0 * features[0], np.full(len(NAMES), 0.2))
    status = Status(drift=Drift(True, since=7), quality=quality, changes=clearest)
    assert advice(clearest, quality) == wanted and str(status) == status.sentence and status.sentence.endswith(wanted)
    assert replace(status, drift=Drift()).sentence == "no drift"  # nothing to do
