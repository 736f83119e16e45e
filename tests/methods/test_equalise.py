"""Equalise: the half of Align that needs no model, on models of which nothing is known."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fozo
from fozo.core.descriptor import describe
from fozo.core.statistics import Statistics
from fozo.engines.blackbox import BlackBoxEngine, black_box
from fozo.methods.equalise import Equalise
from fozo.public import calibrate
from fozo.testing import check_method
from fozo.types import Floats
from tests.refusals import refuses

RNG = np.random.default_rng(3)
HEAD = RNG.standard_normal((3 * 16 * 16, 5)).astype(np.float32)


def scenes(count: int, seed: int = 0) -> np.ndarray:
    """Smooth random pictures: detail falls off towards high frequencies, as in photographs, and varies a little."""
    rng = np.random.default_rng(seed)
    spectrum = 1 / (1 + np.hypot(*np.mgrid[:16, :16])) * np.exp(0.1 * rng.standard_normal((count, 3, 1, 1)))
    noise = rng.standard_normal((count, 3, 16, 16)) * spectrum
    cosines = np.cos(np.pi * np.arange(16)[:, None] * (np.arange(16) + 0.5) / 16)
    pictures: np.ndarray = (cosines.T @ noise @ cosines).astype(np.float32)
    return pictures


def hazy(images: np.ndarray) -> np.ndarray:
    """A fifth of the contrast."""
    faint: np.ndarray = images.mean(axis=(2, 3), keepdims=True) * 0.8 + images * np.float32(0.2)
    return faint


def classify(images: Any) -> Floats:
    logits: Floats = np.asarray(images, dtype=np.float32).reshape(len(images), -1) @ HEAD
    return logits


@pytest.fixture
def engine() -> BlackBoxEngine:
    return black_box(classify, image_size=16, name="linear")


@pytest.fixture
def source(engine: BlackBoxEngine) -> Statistics:
    return calibrate(engine, [scenes(64), scenes(64, 1)])


def test_it_keeps_every_promise_on_a_black_box(engine: BlackBoxEngine, source: Statistics) -> None:
    engine.run(engine.check(scenes(1)))
    check_method(lambda: Equalise(engine, source))
    check_method(lambda: fozo.NoAdapt(engine))


def test_contrast_is_given_back_and_clean_images_are_left_alone(engine: BlackBoxEngine, source: Statistics) -> None:
    seen: list[np.ndarray] = []
    engine.model = lambda images: seen.append(images) or classify(images)  # type: ignore[func-returns-value]
    method = Equalise(engine, source)
    clean = scenes(32, 7)
    method(clean)
    assert seen[-1] is clean  # the very array
    for seed in (8, 9, 10):
        faint = hazy(scenes(32, seed))
        method(faint)
    assert method.metrics()["shift"] > 10
    lost, left = (describe(images).mean(axis=0)[6:] - source.descriptor.mean[6:] for images in (faint, seen[-1]))
    assert lost.mean() < -2 and abs(left.mean()) < 0.5 * abs(lost.mean())
    off = Equalise(engine, source, strength=0.0)
    off(faint)
    assert seen[-1] is faint
    broken = faint.copy()
    broken[3] = 900.0  # too bright to be described, but accepted where no mean is known
    with pytest.warns(Warning, match="prepared in another way"):
        method(broken)
    assert method.metrics()["skipped"] == 1 and np.array_equal(seen[-1][3], broken[3])


def test_pixels_stay_what_a_camera_gives_where_the_normalisation_is_known() -> None:
    """A model may turn them into 8 bits, where what is brighter than white would come out dark."""
    seen: list[np.ndarray] = []
    for mean, std, least, most in ((0.0, 1.0, 0.0, 1.0), (0.5, 0.25, -2.0, 2.0)):
        engine = black_box(lambda images: seen.append(images), mean=mean, std=std)

        def images(seed: int, contrast: float, mean: float = mean, std: float = std) -> np.ndarray:
            pixels: np.ndarray = (np.clip(0.5 + 0.3 * contrast * scenes(32, seed), 0, 1) - mean) / std
            return pixels.astype(np.float32)

        method = Equalise(engine, calibrate(engine, [images(0, 1.0)]))
        for seed in (1, 2, 3):
            method(images(seed, 0.3))
        assert seen[-1].std() > 1.4 * images(3, 0.3).std()
        assert seen[-1].min() >= least and seen[-1].max() <= most


def test_whatever_the_model_returns_is_returned() -> None:
    given = torch.from_numpy(scenes(3))
    answers: list[Any] = [
        {"boxes": [torch.full((2, 4), torch.nan)]},
        [{"labels": 1}] * 3,
        (np.zeros((3, 2, 2)), "masks"),
        np.array(["a", "b", "c"]),
        np.zeros((3, 16, 16), dtype=np.int64),
        None,
    ]
    for answer in answers:
        method = make(lambda images, answer=answer: answer)
        assert method(given) is answer
        assert method.metrics()["shift"] >= 0


def make(model: Any) -> Equalise:
    engine = black_box(model)
    return Equalise(engine, calibrate(engine, [scenes(16)]))


def test_logits_come_back_as_images_came(engine: BlackBoxEngine, source: Statistics) -> None:
    images = scenes(4)
    logits = Equalise(engine, source, strength=0.0)(torch.from_numpy(images))
    assert isinstance(logits, torch.Tensor) and engine.spec.classes == 5
    np.testing.assert_array_equal(logits.numpy(), classify(images))

    class Output:
        logits = torch.zeros(4, 5)

    assert make(lambda batch: Output())(images).shape == (4, 5)
    refuses("not all finite", make(lambda batch: np.full((len(batch), 2), np.nan)), images)


def test_the_adapter_of_anything_is_equalise(source: Statistics, tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 5)).eval()
    engine = fozo.load_engine(module)
    assert isinstance(engine, BlackBoxEngine) and isinstance(fozo.load_engine(classify), BlackBoxEngine)
    statistics = calibrate(engine, [scenes(16)])
    statistics.save(tmp_path / "source.safetensors")
    adapter = fozo.adapter(engine, tmp_path / "source.safetensors", strength=0.5)
    assert type(adapter) is Equalise and adapter.config.strength == 0.5
    assert adapter(torch.from_numpy(scenes(2))).shape == (2, 5)
    refuses(
        r"size of the images of .* is not known yet; give image_size=",
        fozo.adapter,
        module,
        tmp_path / "source.safetensors",
    )
    refuses("align needs the tokens", fozo.Align, engine, statistics)
    refuses("strength is 2", fozo.adapter, engine, statistics, strength=2.0)


def test_statistics_of_a_black_box_need_no_pass_and_keep_images_only(tmp_path: Path) -> None:
    engine = black_box(lambda images: pytest.fail("calibration ran the model"), name="costly")
    whole = calibrate(engine, [scenes(20)])
    parts = calibrate(engine, [scenes(20)[:8], scenes(20)[8:]])
    assert whole.images == parts.images == 20 and not whole.cls.mean.size and not whole.pooled.mean.size
    np.testing.assert_allclose(whole.descriptor.std, parts.descriptor.std)
    parts.save(tmp_path / "a.npz")
    again = Statistics.load(tmp_path / "a.npz")
    np.testing.assert_array_equal(again.descriptor.mean, parts.descriptor.mean)
    few = calibrate(engine, [2 * scenes(8, 5)])
    blended = whole.blend(few)
    assert np.abs(blended.descriptor.mean - few.descriptor.mean).max() < 0.1
    refuses("these statistics are of costly", Equalise, black_box(classify, image_size=16, name="other"), whole)
    refuses("at least two clean images, not 0", calibrate, engine, [])
