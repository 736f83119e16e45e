"""Corruptions: the interface, the distribution of noise, and frost."""

from __future__ import annotations

import hashlib
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fozo.data.corruptions import CONSTANTS, EXTRA_KINDS, KINDS, corrupt, frost_source
from fozo.data.corruptions import frost as frost_module
from fozo.data.corruptions.functions import frost
from fozo.data.images import Pixels
from fozo.errors import FozoError
from fozo.types import Floats
from tests.data.conftest import photograph
from tests.helpers import REPO

pytest.importorskip("cv2")

ALL = KINDS + EXTRA_KINDS
DETERMINISTIC = {
    "defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression", "saturate", "gaussian_blur",
}  # fmt: skip


def test_kinds_are_the_published_ones_in_the_papers_order() -> None:
    assert (
        " ".join(KINDS) == "gaussian_noise shot_noise impulse_noise defocus_blur glass_blur motion_blur zoom_blur "
        "snow frost fog brightness contrast elastic_transform pixelate jpeg_compression"
    )
    assert EXTRA_KINDS == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    assert set(CONSTANTS) == set(ALL)
    assert all(len(CONSTANTS[kind][scale]) == 5 for kind in ALL for scale in (32, 64, 224))


def test_constants_are_the_ones_that_were_checked() -> None:
    """They were compared number by number with the three published programs; a change must be deliberate."""
    digest = hashlib.sha256(json.dumps(CONSTANTS, sort_keys=True).encode()).hexdigest()
    assert digest == "46bd4dc72a3fd3d76de71eaeae0bd788c82939ec421e1e2c5b0f17cd1628a32f"


@pytest.mark.parametrize("size", [32, 64, 224])
# Not elastic_transform, whose published severities trade a large affine move for small ripples.
@pytest.mark.parametrize("kind", [kind for kind in ALL if kind != "elastic_transform"])
def test_severity_5_is_farther_from_the_clean_image_than_severity_1(kind: str, size: int) -> None:
    image = photograph(size)
    slight, strong = (
        np.mean([np.square(corrupt(image, kind, severity, seed) - image.astype(float)).mean() for seed in range(6)])
        for severity in (1, 5)
    )
    assert strong > slight


@pytest.mark.parametrize("kind", ALL)
def test_same_arguments_same_pixels_and_input_untouched(kind: str) -> None:
    image = photograph(64)
    before = image.copy()
    first = corrupt(image, kind, 3, 0, image_id="a")
    np.random.seed(1)  # noqa: NPY002 - the point is that global seeds are not used
    corrupt(image, "gaussian_noise", 1, 5)
    np.testing.assert_array_equal(corrupt(image, kind, 3, 0, image_id="a"), first)
    np.testing.assert_array_equal(image, before)
    assert first.dtype == np.uint8 and first.shape == image.shape and first.flags.writeable
    assert not np.array_equal(first, image)


@pytest.mark.parametrize("kind", sorted({*ALL} - DETERMINISTIC))
def test_random_kinds_depend_on_the_name_the_seed_and_nothing_hidden(kind: str) -> None:
    image = photograph(64)
    base = corrupt(image, kind, 3, 0, image_id="a")
    assert not np.array_equal(corrupt(image, kind, 3, 0, image_id="b"), base)
    assert not np.array_equal(corrupt(image, kind, 3, 1, image_id="a"), base)


@given(
    kind=st.sampled_from(ALL),
    severity=st.integers(1, 5),
    height=st.integers(8, 120),
    width=st.integers(8, 120),
    channels=st.sampled_from([(), (1,), (3,)]),
    scale=st.sampled_from([None, 32, 64, 224]),
    fill=st.sampled_from(["noise", "black", "white", "gray"]),
)
@settings(max_examples=150, deadline=None)
def test_any_image_of_8_px_or_more_keeps_its_shape(
    kind: str, severity: int, height: int, width: int, channels: tuple[int, ...], scale: int | None, fill: str
) -> None:
    shape = (height, width, *channels)
    image = {
        "noise": np.random.default_rng(0).integers(0, 256, shape, np.uint8),
        "black": np.zeros(shape, np.uint8),
        "white": np.full(shape, 255, np.uint8),
        "gray": np.full(shape, 100, np.uint8),
    }[fill]
    with np.errstate(divide="raise", invalid="raise"):
        result = corrupt(image, kind, severity, 0, scale=scale)
    assert result.shape == shape and result.dtype == np.uint8


@pytest.mark.parametrize(
    ("kind", "severity", "message"),
    [
        ("fogg", 1, "did you mean fog?"),
        ("rain", 1, "choose among gaussian_noise"),
        ("fog", 0, "severity is 0"),
        ("fog", 6, "severity is 6"),
    ],
)
def test_wrong_kind_or_severity(kind: str, severity: int, message: str) -> None:
    with pytest.raises(FozoError, match=message.replace("?", r"\?")):
        corrupt(photograph(32), kind, severity, 0)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((7, 40, 3), np.uint8), "40 x 7 px"),
        (np.zeros((40, 40, 4), np.uint8), r"shape \(40, 40, 4\)"),
        (np.zeros((2, 40, 40, 3), np.uint8), "shape"),
        (np.zeros((40, 40, 3), np.float32), "float32 pixels"),
    ],
)
def test_wrong_image(image: npt.NDArray[Any], message: str) -> None:
    with pytest.raises(FozoError, match=message):
        corrupt(image, "fog", 1, 0)


def test_wrong_scale() -> None:
    with pytest.raises(FozoError, match="choose among 32, 64, 224"):
        corrupt(photograph(32), "fog", 1, 0, scale=100)


@pytest.mark.parametrize(("side", "scale"), [(48, 32), (49, 64), (96, 64), (97, 224)])
def test_scale_follows_the_shorter_side(side: int, scale: int) -> None:
    image = np.asarray(photograph(224)[:side, :150])
    default = corrupt(image, "gaussian_noise", 5, 0)
    np.testing.assert_array_equal(default, corrupt(image, "gaussian_noise", 5, 0, scale=scale))
    others = [other for other in (32, 64, 224) if other != scale]
    assert not any(np.array_equal(default, corrupt(image, "gaussian_noise", 5, 0, scale=o)) for o in others)


def test_gray_is_the_gray_of_three_equal_channels() -> None:
    gray = np.ascontiguousarray(photograph(64)[..., 1])
    coloured = np.repeat(gray[..., None], 3, axis=2)
    expected = np.array(Image.fromarray(corrupt(coloured, "frost", 4, 0)).convert("L"))
    np.testing.assert_array_equal(corrupt(gray, "frost", 4, 0), expected)
    np.testing.assert_array_equal(corrupt(gray[..., None], "frost", 4, 0)[..., 0], expected)


def test_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(FozoError, match=r"needs OpenCV; run: pip install 'fozo\[bench\]'"):
        corrupt(photograph(32), "defocus_blur", 1, 0)


def test_only_opencv_comes_from_an_extra() -> None:
    """SciPy is a base dependency: no reader and no corruption sends users to an extra for it."""
    sources = (REPO / "src" / "fozo" / "data").rglob("*.py")
    assert [path.name for path in sources if "fozo[" in path.read_text(encoding="utf-8")] == ["common.py"]


def test_importing_the_module_loads_no_heavy_library() -> None:
    program = (
        "import sys, fozo.data.corruptions;"
        "print([n for n in ('cv2', 'scipy', 'skimage', 'numba', 'imagecorruptions') if n in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    assert output.strip() == "[]"


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


@pytest.mark.parametrize("severity", [1, 2, 3])
def test_gaussian_noise_distribution(severity: int) -> None:
    noisy = corrupt(flat(128), "gaussian_noise", severity, 0) / 255
    (scale,) = CONSTANTS["gaussian_noise"][224][severity - 1]
    # Rounding down takes half a step off the mean.
    assert noisy.mean() == pytest.approx(127.5 / 255, abs=0.002)
    assert noisy.std() == pytest.approx(scale, rel=0.02)
    assert_white(noisy)


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_shot_noise_is_a_poisson_count(severity: int) -> None:
    (photons,) = CONSTANTS["shot_noise"][224][severity - 1]
    noisy = corrupt(flat(51), "shot_noise", severity, 0) / 255
    counts = np.random.default_rng(0).poisson(0.2 * photons, 400_000) / photons
    expected = np.floor(np.clip(counts, 0, 1) * 255) / 255
    assert noisy.mean() == pytest.approx(expected.mean(), rel=0.02)
    assert noisy.std() == pytest.approx(expected.std(), rel=0.02)
    assert_white(noisy)


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_impulse_noise_replaces_the_published_share(severity: int) -> None:
    (share,) = CONSTANTS["impulse_noise"][224][severity - 1]
    noisy = corrupt(flat(128), "impulse_noise", severity, 0)
    assert (noisy == 0).mean() == pytest.approx(share / 2, rel=0.06)
    assert (noisy == 255).mean() == pytest.approx(share / 2, rel=0.06)
    assert set(np.unique(noisy)) == {0, 128, 255}
    assert_white(noisy.astype(np.float64))


@pytest.mark.parametrize("value", [40, 80])
def test_speckle_noise_grows_with_the_value(value: int) -> None:
    noisy = corrupt(flat(value), "speckle_noise", 2, 0) / 255
    assert noisy.std() == pytest.approx(0.2 * value / 255, rel=0.03)
    assert_white(noisy)


# Frost.


@pytest.fixture
def no_photographs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(frost_module, "_folder", lambda: None)
    frost_module.textures.cache_clear()
    yield
    frost_module.textures.cache_clear()


@pytest.fixture
def photographs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Five files where an installed imagecorruptions would have them."""
    package = tmp_path / "imagecorruptions"
    (package / "frost").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    for index, name in enumerate(frost_module.FILES):
        Image.new("RGB", (300, 260), (40 * index + 20, 90, 200)).save(package / "frost" / name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "imagecorruptions", raising=False)
    importlib.invalidate_caches()
    frost_module.textures.cache_clear()
    yield
    frost_module.textures.cache_clear()


def test_frost_takes_photographs_of_an_installed_package(photographs: None) -> None:
    assert frost_source() == "imagecorruptions"
    reds = set()
    for seed in range(40):
        frosted = corrupt(flat(100), "frost", 5, seed)
        reds.add(int(frosted[0, 0, 0]))
        assert (frosted == frosted[0, 0]).all()
        assert abs(int(frosted[0, 0, 2]) - (0.6 * 100 + 0.75 * 200)) <= 2
    expected = {int(0.6 * 100 + 0.75 * (40 * index + 20)) for index in range(5)}
    assert len(reds) == 5 and all(min(abs(red - e) for e in expected) <= 2 for red in reds)


def test_frost_without_photographs_is_drawn(no_photographs: None) -> None:
    assert frost_source() == "procedural"
    black = np.zeros((224, 224, 3), np.uint8)
    for severity in (1, 5):
        weight, strength, _ = CONSTANTS["frost"][224][severity - 1]
        ice = np.stack([corrupt(black, "frost", severity, seed) for seed in range(150)])
        mean = np.mean([colour for colour, _ in frost_module.COLOURS], axis=0)
        np.testing.assert_allclose(ice.mean(axis=(0, 1, 2)), strength * mean, rtol=0.12)
        frosted = corrupt(photograph(224), "frost", severity, 0)
        ours = corrupt(black, "frost", severity, 0)
        expected = np.clip(weight * photograph(224).astype(float) + ours, 0, 255)
        assert np.abs(frosted - expected).max() <= 2


@pytest.mark.parametrize("index", range(5))
def test_drawn_frost_has_the_colours_of_the_photographs(index: int) -> None:
    texture = frost_module.draw_texture(index)
    mean, std = frost_module.COLOURS[index]
    np.testing.assert_allclose(texture.mean(axis=(0, 1)), mean, atol=3)
    np.testing.assert_allclose(texture.std(axis=(0, 1)), std, atol=4)


def test_frost_larger_than_its_texture(no_photographs: None) -> None:
    image = np.zeros((700, 530, 3), np.uint8)
    assert frost(image, np.random.default_rng(0), 0.6, 0.75, 1).std() > 5
