"""Which mean and std images were normalised with: grids, ranges, and what is left open."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fozo
from fozo.core.normalisation import (
    BYTES,
    CLIP,
    COMMON,
    HALF,
    IMAGENET,
    NONE,
    InputRange,
    Normalisation,
    check_images,
    common,
    name_of,
    recognise,
)
from fozo.errors import FozoError
from fozo.io import load_arrays, save_arrays

CIFAR: Normalisation = ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616))


def images(way: Normalisation, count: int = 4, seed: int = 0, low: int = 0, high: int = 256) -> np.ndarray:
    pixels = np.random.default_rng(seed).integers(low, high, (count, 32, 32, 3)).astype(np.float32) / np.float32(255)
    mean, std = (np.asarray(part, np.float32) for part in way)
    return np.moveaxis((pixels - mean) / std, 3, 1)


def smooth(x: np.ndarray) -> np.ndarray:
    """As if resized as floats; the extremes stay, as they do in large bright and dark areas."""
    made: np.ndarray = (x + np.roll(x, 1, 2)) / 2
    made[:, :, 0, 0], made[:, :, 0, 1] = x.min(axis=(0, 2, 3)), x.max(axis=(0, 2, 3))
    return made


@pytest.mark.parametrize("way", COMMON.values())
def test_grids_and_ranges_tell(way: Normalisation) -> None:
    x = images(way)
    assert recognise(x) == way == recognise(torch.from_numpy(x))
    assert recognise(x.astype(np.float64), CIFAR) == way
    assert InputRange.of(smooth(x), None).normalisation is None and InputRange.of(smooth(x), None).inferred() == way
    # Dark, and of little contrast: the grid still tells, the range no longer.
    dim = images(way, low=100, high=140)
    assert recognise(dim) == way and InputRange.of(smooth(dim), None).inferred() is None


def test_what_is_ambiguous_is_left_open() -> None:
    noise = np.random.default_rng(0).standard_normal((4, 3, 32, 32))
    assert recognise(noise) is None and recognise(images(CIFAR)) is None
    assert recognise(images(IMAGENET).astype(np.float16)) is None
    for flat in (np.zeros((4, 3, 32, 32)), np.full((4, 3, 32, 32), 0.2)):
        assert recognise(flat) is None
    # Bright images under 0.5 are also pixels of 0 to 1: both grids fit, so neither is claimed.
    bright = images(HALF, low=128)
    assert recognise(bright) is None and recognise(bright, HALF) == HALF
    assert InputRange(np.zeros(3), np.array([1.0, 1.0, 0.9]), None).inferred() is None


def test_the_models_own_comes_first() -> None:
    assert recognise(images(CIFAR), CIFAR) == CIFAR
    padded = images(IMAGENET)
    padded[:, :, :16] = 0  # gray bars, after Normalize
    assert recognise(padded, IMAGENET) is None
    assert InputRange.of(images(IMAGENET), IMAGENET).objection(padded) is None


def test_models_of_other_channels_have_fewer_common_ones() -> None:
    assert common(1) == (((0.0,), (1.0,)), ((0.5,), (0.5,)), ((0.0,), (1 / 255,)))
    assert recognise(images(HALF)[:, :1]) == ((0.5,), (0.5,))
    assert set(common(3)) == {NONE, HALF, BYTES, IMAGENET, CLIP}


def test_objections_are_hedged_and_only_made_where_the_clean_images_contradict() -> None:
    half = InputRange.of(images(HALF), None)
    assert half.objection(images(HALF, seed=1)) is None and half.objection(images(HALF, low=128)) is None
    objection = half.objection(images(NONE)) or ""
    assert objection.startswith(f"it looks like {name_of(NONE)}, but the clean images were {name_of(HALF)}")
    unknown = InputRange.of(smooth(images(HALF, low=30, high=230)), None)
    assert unknown.inferred() is None
    assert unknown.objection(images(HALF)) is None  # the same way, and only now recognised
    assert "ImageNet" in (unknown.objection(images(IMAGENET)) or "")
    assert "0 to 255" in (unknown.objection(images(BYTES)) or "")
    wide = unknown.objection(5 * smooth(images(CIFAR))) or ""
    assert wide.startswith("it holds values of") and "but the clean images had -0.7" in wide


def test_a_refusal_names_the_image_the_channel_and_the_range_that_is_read(engine: fozo.Engine) -> None:
    spec, batch = replace(engine.spec, mean=IMAGENET[0], std=IMAGENET[1], image_size=(32, 32)), images(IMAGENET)
    batch[2, 1, 3, 4] = 500
    with pytest.raises(
        FozoError, match=r"image 2 of .* 500 in channel 1, where .* reads -2\.04 to 2\.43: it looks like"
    ):
        check_images(batch, spec, set())
    batch[2, 1, 3, 4] = np.nan
    with pytest.raises(FozoError, match="image 2 of the batch holds NaN"):
        check_images(batch, spec, set())


def test_names() -> None:
    assert name_of(HALF) == "pixels normalised with a mean and std of 0.5"
    assert name_of(((0.1,), (0.2,))) == "pixels normalised with mean 0.1 and std 0.2"


def test_merging_keeps_what_both_agree_on() -> None:
    one, two = InputRange.of(images(HALF, low=100), None), InputRange.of(smooth(images(HALF, high=200)), None)
    for merged in (one.merge(two), two.merge(one)):
        assert merged.normalisation == HALF
        np.testing.assert_allclose((merged.low, merged.high), [[-1] * 3, [1] * 3], atol=0.02)
    assert one.merge(InputRange.of(images(NONE), None)).normalisation is None


def test_files_keep_it_and_forged_ones_are_refused(
    engine: fozo.Engine, source: fozo.SourceStatistics, tmp_path: Path
) -> None:
    path = tmp_path / "stats.npz"
    source.save(path)
    kept = fozo.SourceStatistics.load(path).inputs
    assert kept is not None and source.inputs is not None
    np.testing.assert_equal(kept.arrays(), source.inputs.arrays())
    header, arrays = load_arrays(path, source.KIND)
    for name, forged in (
        ("low", np.full(3, 9.0)),
        ("low", np.full(3, np.nan)),
        ("normalisation", np.zeros((1, 3))),
        ("normalisation", np.stack([np.zeros(3), -np.ones(3)])),
    ):
        save_arrays(path, header, {**arrays, f"inputs.{name}": forged})
        with pytest.raises(FozoError, match="damaged source statistics"):
            fozo.SourceStatistics.load(path)
    gray = {"inputs.low": np.zeros(2), "inputs.high": np.ones(2), "inputs.normalisation": np.zeros((0, 2))}
    save_arrays(path, header, {**arrays, **gray})
    with pytest.raises(FozoError, match="images of 2 channels, where vit reads 3"):
        fozo.Align(engine, fozo.SourceStatistics.load(path))
