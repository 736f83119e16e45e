"""Which values images have: what is refused, what is warned of, and what is left open."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import fozo
from fozo.core.normalisation import (
    BYTES,
    CHECKED_EVERY,
    CLIP,
    COMMON,
    FIRST_CHECKED,
    HALF,
    IMAGENET,
    NONE,
    InputRange,
    Normalisation,
    Watch,
    common,
    name_of,
)
from fozo.errors import ImageWarning

CIFAR: Normalisation = ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616))


def images(way: Normalisation, count: int = 4, seed: int = 0, low: int = 0, high: int = 256) -> np.ndarray:
    pixels = np.random.default_rng(seed).integers(low, high, (count, 32, 32, 3)).astype(np.float32) / np.float32(255)
    mean, std = (np.asarray(part, np.float32) for part in way)
    return np.moveaxis((pixels - mean) / std, 3, 1)


@pytest.mark.parametrize("way", COMMON.values())
def test_a_range_from_black_to_white_tells_the_normalisation(way: Normalisation) -> None:
    x = images(way)
    for given in (x, x.astype(np.float64), torch.from_numpy(x)):
        assert InputRange.of(given, None).inferred() == way
    assert InputRange.of(x, CIFAR).inferred() == CIFAR  # the model's own word counts
    assert InputRange.of(images(way, low=100, high=140), None).inferred() is None


def test_what_is_ambiguous_is_left_open() -> None:
    noise = np.random.default_rng(0).standard_normal((4, 3, 32, 32))
    for unclear in (noise, images(CIFAR), np.zeros((4, 3, 32, 32))):
        assert InputRange.of(unclear, None).inferred() is None
    assert InputRange(np.zeros(3), np.array([1.0, 1.0, 0.9]), None).inferred() is None


def test_models_of_other_channels_have_fewer_common_ones() -> None:
    assert common(1) == (((0.0,), (1.0,)), ((0.5,), (0.5,)), ((0.0,), (1 / 255,)))
    assert InputRange.of(images(HALF)[:, :1], None).inferred() == ((0.5,), (0.5,))
    assert set(common(3)) == {NONE, HALF, BYTES, IMAGENET, CLIP}


def test_objections_are_only_made_where_the_clean_images_contradict() -> None:
    half = InputRange.of(images(HALF), None)
    for same in (images(HALF, seed=1), images(HALF, low=128), 1.2 * images(HALF)):
        assert half.objection(same) is None
    assert half.objection(images(NONE)) == f"it lies within [0, 1], but the clean images were {name_of(HALF)}"
    wide = "it holds values of -2.12 to 2.64, but the clean images had -1 to 1"
    assert half.objection(images(IMAGENET)) == half.objection(torch.from_numpy(images(IMAGENET))) == wide


def test_of_an_unknown_normalisation_the_range_of_the_clean_images_counts() -> None:
    gray = InputRange.of(images(HALF, low=30, high=230), None)
    assert gray.inferred() is None
    assert gray.objection(images(HALF)) is None  # brighter and darker by less than three tenths
    for other in (images(IMAGENET), images(BYTES), 5 * images(CIFAR)):
        assert "but the clean images had -0.765 to 0.796" in (gray.objection(other) or "")


def test_a_method_is_warned_once_and_not_of_every_batch() -> None:
    clean = InputRange.of(images(HALF), None)
    unknown = fozo.Spec("m", 0, 0, 10, 3, (32, 32), (32, 32), 0, "f")
    watch = Watch()
    for _ in range(FIRST_CHECKED):
        watch(images(HALF), unknown, clean)
    for _ in range(CHECKED_EVERY - 1):
        watch(images(IMAGENET), unknown, clean)  # not looked at
    with pytest.warns(ImageWarning, match="prepared in another way than the clean images: it holds values"):
        watch(images(IMAGENET), unknown, clean)
    for _ in range(CHECKED_EVERY):
        watch(images(IMAGENET), unknown, clean)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Watch()(images(IMAGENET), replace(unknown, mean=HALF[0], std=HALF[1]), clean)  # its engine sees to it


def test_names() -> None:
    assert name_of(HALF) == "pixels normalised with a mean and std of 0.5"
    assert name_of(((0.1,), (0.2,))) == "pixels normalised with mean 0.1 and std 0.2"


def test_merging_keeps_what_both_agree_on() -> None:
    one = InputRange.of(images(HALF, low=100), HALF)
    two = InputRange.of(images(HALF, high=200), None)
    for merged in (one.merge(two), two.merge(one)):
        assert merged.normalisation == HALF
        np.testing.assert_allclose((merged.low, merged.high), [[-1] * 3, [1] * 3], atol=0.02)
    assert one.merge(InputRange.of(images(NONE), NONE)).normalisation is None
