"""Corruptions: the interface, the distribution of noise, and frost."""

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fozo.data.corruptions import (
    ALL_KINDS,
    CONSTANTS,
    EXTRA_KINDS,
    KINDS,
    UNSEEN_KINDS,
    corrupt,
    frost_source,
    functions,
)
from fozo.data.corruptions.unseen import STRENGTHS
from fozo.data.images import Pixels
from fozo.types import Floats
from tests.data.conftest import photograph
from tests.refusals import refuses

pytest.importorskip("cv2")

DETERMINISTIC = {
    "defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression", "saturate", "gaussian_blur",
    "low_bitrate", "dithering", "demosaic",
}  # fmt: skip


def test_kinds_are_the_published_ones_in_the_papers_order() -> None:
    assert (
        " ".join(KINDS) == "gaussian_noise shot_noise impulse_noise defocus_blur glass_blur motion_blur zoom_blur "
        "snow frost fog brightness contrast elastic_transform pixelate jpeg_compression"
    )
    assert EXTRA_KINDS == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    # The constants were compared number by number with the three published programs; a change must be deliberate.
    digest = hashlib.sha256(json.dumps(CONSTANTS, sort_keys=True).encode()).hexdigest()
    assert digest == "46bd4dc72a3fd3d76de71eaeae0bd788c82939ec421e1e2c5b0f17cd1628a32f"


def test_the_second_set_is_frozen() -> None:
    """Methods are judged on it, so nobody changes it after having looked at them."""
    assert STRENGTHS.keys() == set(UNSEEN_KINDS) and len(UNSEEN_KINDS) == 22
    digest = hashlib.sha256(json.dumps(STRENGTHS, sort_keys=True).encode()).hexdigest()
    assert digest == "19936ea62e07c58ec968b9e4dcf0be8b8b87877d8a3c3635beb6689820e9a858"
    image = np.arange(64 * 64 * 3).astype(np.uint8).reshape(64, 64, 3)
    pixels = hashlib.sha256()
    for kind in ("lost_rows", "bit_errors", "stuck_columns"):  # whose arithmetic is of whole numbers everywhere
        pixels.update(corrupt(image, kind, 3, 0, image_id="n01440764/a.JPEG").tobytes())
    assert pixels.hexdigest() == "c5e020e6f2193e1b82d00b867fedf2c4a4fed031d80972b6b97e529dfc0adb1d"


# Not elastic_transform, whose published severities trade a large affine move for small ripples.
@pytest.mark.parametrize("kind", [kind for kind in ALL_KINDS if kind != "elastic_transform"])
def test_severity_5_is_farther_from_the_clean_image_than_severity_1(kind: str) -> None:
    for image in map(photograph, (32, 64, 100)):
        slight, strong = (
            np.mean([np.square(corrupt(image, kind, severity, seed) - image.astype(float)).mean() for seed in range(4)])
            for severity in (1, 5)
        )
        assert strong > slight


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_name_and_the_seed_decide_all_draws_and_the_input_is_untouched(kind: str) -> None:
    image = photograph(64)
    before = image.copy()
    first = corrupt(image, kind, 3, 0, image_id="a")
    np.random.seed(1)  # noqa: NPY002 - the point is that global seeds are not used
    corrupt(image, "gaussian_noise", 1, 5)
    np.testing.assert_array_equal(corrupt(image, kind, 3, 0, image_id="a"), first)
    np.testing.assert_array_equal(image, before)
    assert first.dtype == np.uint8 and first.shape == image.shape and first.flags.writeable
    assert not np.array_equal(first, image)
    for seed, name in ((0, "b"), (1, "a")):
        assert np.array_equal(corrupt(image, kind, 3, seed, image_id=name), first) == (kind in DETERMINISTIC)


@given(
    kind=st.sampled_from(ALL_KINDS),
    severity=st.integers(1, 5),
    height=st.integers(8, 120),
    width=st.integers(8, 120),
    channels=st.sampled_from([(), (1,), (3,)]),
    fill=st.sampled_from([None, 0, 255, 100]),
)
@settings(max_examples=150, deadline=None)
def test_any_image_of_8_px_or_more_keeps_its_shape(
    kind: str, severity: int, height: int, width: int, channels: tuple[int, ...], fill: int | None
) -> None:
    shape = (height, width, *channels)
    noise = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    image = noise if fill is None else np.full(shape, fill, np.uint8)
    with np.errstate(divide="raise", invalid="raise"):
        result = corrupt(image, kind, severity, 0)
    assert result.shape == shape and result.dtype == np.uint8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "fogg"}, r"did you mean fog\?"),
        ({"kind": "rain"}, "choose among gaussian_noise"),
        ({"severity": 0}, "severity is 0"),
        ({"severity": 6}, "severity is 6"),
        ({"image": np.zeros((7, 40, 3), np.uint8)}, "40 x 7 px"),
        ({"image": np.zeros((40, 40, 4), np.uint8)}, r"shape \(40, 40, 4\)"),
        ({"image": np.zeros((2, 40, 40, 3), np.uint8)}, "shape"),
        ({"image": np.zeros((40, 40, 3), np.float32)}, "float32 pixels"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    refuses(message, corrupt, **{"image": photograph(32), "kind": "fog", "severity": 1, "seed": 0, **changes})


@pytest.mark.parametrize(("side", "scale"), [(48, 32), (49, 64), (96, 64), (97, 224)])
def test_constants_follow_the_shorter_side(side: int, scale: int, monkeypatch: pytest.MonkeyPatch) -> None:
    image = np.asarray(photograph(224)[:side, :150])
    before = corrupt(image, "gaussian_noise", 5, 0)
    for other in (32, 64, 224):
        with monkeypatch.context() as patch:
            patch.setitem(CONSTANTS["gaussian_noise"], other, ((0.5,),) * 5)
            assert np.array_equal(before, corrupt(image, "gaussian_noise", 5, 0)) == (other != scale)


def test_gray_is_the_gray_of_three_equal_channels() -> None:
    gray = np.ascontiguousarray(photograph(64)[..., 1])
    coloured = np.repeat(gray[..., None], 3, axis=2)
    expected = np.array(Image.fromarray(corrupt(coloured, "frost", 4, 0)).convert("L"))
    np.testing.assert_array_equal(corrupt(gray, "frost", 4, 0), expected)
    np.testing.assert_array_equal(corrupt(gray[..., None], "frost", 4, 0)[..., 0], expected)


# Noise, in distribution.


def flat(value: int, size: int = 224) -> Pixels:
    return np.full((size, size, 3), value, np.uint8)


def assert_white(noise: Floats) -> None:
    """No correlation with the neighbours, nor between channels: a flat spectrum."""
    centred = noise - noise.mean(axis=(0, 1))
    variance = (centred**2).mean()
    bound = 5 / np.sqrt(centred.size)
    assert abs((centred[1:] * centred[:-1]).mean()) < bound * variance
    assert abs((centred[:, 1:] * centred[:, :-1]).mean()) < bound * variance
    assert abs((centred[..., 0] * centred[..., 1]).mean()) < 2 * bound * variance


NOISE: dict[str, Callable[..., Floats]] = {
    "gaussian_noise": lambda clean, rng, scale: clean + rng.normal(0, scale, clean.shape),
    "shot_noise": lambda clean, rng, photons: rng.poisson(clean * photons) / photons,
    "impulse_noise": lambda clean, rng, share: np.where(
        rng.random(clean.shape) < share, rng.integers(0, 2, clean.shape), clean
    ),
    "speckle_noise": lambda clean, rng, scale: clean * (1 + rng.normal(0, scale, clean.shape)),
}


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("kind", NOISE)
def test_noise_is_white_and_distributed_as_published(kind: str, severity: int) -> None:
    noisy = corrupt(flat(51), kind, severity, 0) / 255
    drawn = NOISE[kind](flat(51) / 255, np.random.default_rng(0), *CONSTANTS[kind][224][severity - 1])
    expected = np.floor(np.clip(drawn, 0, 1) * 255) / 255
    assert noisy.mean() == pytest.approx(expected.mean(), rel=0.02)
    assert noisy.std() == pytest.approx(expected.std(), rel=0.03)
    np.testing.assert_allclose(
        [(noisy == end).mean() for end in (0, 1)], [(expected == end).mean() for end in (0, 1)], atol=0.003
    )
    assert_white(noisy)


# Frost.


@pytest.fixture
def fresh_textures() -> Iterator[None]:
    functions.frost_textures.cache_clear()
    yield
    functions.frost_textures.cache_clear()


def test_frost_takes_photographs_of_an_installed_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fresh_textures: None
) -> None:
    """Of five flat ones, which the package has in files; its code is not run."""
    package = tmp_path / "imagecorruptions"
    (package / "frost").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    for index, name in enumerate(functions.FROST_FILES):
        Image.new("RGB", (300, 260), (40 * index + 20, 90, 200)).save(package / "frost" / name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "imagecorruptions", raising=False)
    importlib.invalidate_caches()
    assert frost_source() == "imagecorruptions"
    colours = [corrupt(flat(100), "frost", 5, seed)[0, 0] for seed in range(40)]
    reds = sorted({int(colour[0]) for colour in colours})
    assert reds == pytest.approx([60 + 0.75 * (40 * i + 20) for i in range(5)], abs=2)
    assert [int(colour[2]) for colour in colours] == pytest.approx([60 + 150] * 40, abs=2)


def test_frost_without_photographs_is_drawn(monkeypatch: pytest.MonkeyPatch, fresh_textures: None) -> None:
    monkeypatch.setattr(functions, "_frost_folder", lambda: None)
    assert frost_source() == "procedural"
    for texture, (mean, std) in zip(functions.frost_textures(1), functions.FROST_COLOURS, strict=True):
        np.testing.assert_allclose(texture.mean(axis=(0, 1)), mean, atol=3)
        np.testing.assert_allclose(texture.std(axis=(0, 1)), std, atol=4)
    image, black = photograph(100), flat(0, size=100)
    for severity in (1, 5):
        weight, strength, _ = CONSTANTS["frost"][224][severity - 1]
        ice = np.stack([corrupt(black, "frost", severity, seed) for seed in range(150)])
        mean_colour = np.mean([colour for colour, _ in functions.FROST_COLOURS], axis=0)
        np.testing.assert_allclose(ice.mean(axis=(0, 1, 2)), strength * mean_colour, rtol=0.12)
        expected = np.clip(weight * image.astype(float) + ice[0], 0, 255)
        assert np.abs(corrupt(image, "frost", severity, 0) - expected).max() <= 2
    larger = functions.frost(np.zeros((700, 530, 3), np.uint8), np.random.default_rng(0), 0.6, 0.75, 1)
    assert larger.std() > 5
