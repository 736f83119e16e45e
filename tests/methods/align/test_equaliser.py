"""The equaliser: what a domain lacks is restored as far as it is believed, noise attenuated, and nothing else done."""

import numpy as np
import pytest

import fozo
from fozo.core.statistics import Statistics
from fozo.engines.blackbox import black_box
from fozo.methods.align.equaliser import HIGH, LOW, MAX_LOG_GAIN, STRONG, ImageRestorer, Restoration
from fozo.methods.align.memory import DomainEstimate, RetrievalConfig
from fozo.methods.equalise import Memory
from fozo.types import Floats
from tests.helpers import random_images

FEW = 0.01  # variance of a domain that is well known


@pytest.fixture
def equaliser(engine: fozo.Engine, source: Statistics) -> ImageRestorer:
    """Whose clean descriptors have a standard deviation of 0.2."""
    made = ImageRestorer(source, engine, 1.0, RetrievalConfig())
    made.std = np.full_like(made.std, 0.2)
    return made


def plan(made: ImageRestorer, mean: float | np.ndarray, variance: float = FEW, strength: float = 1.0) -> Restoration:
    """For a domain whose features are ``mean`` standard deviations from clean, without any memories of it."""
    made.strength = strength
    means = np.broadcast_to(mean, (1, made.std.size))
    domain = DomainEstimate(means, np.full_like(means, variance, dtype=float), means)
    return made.plan(domain)


def test_only_weakness_counts_and_only_as_far_as_it_is_believed(equaliser: ImageRestorer) -> None:
    assert not plan(equaliser, -0.9, variance=1.0) and not plan(equaliser, 3.0)
    gains = plan(equaliser, -3.0).log_gains
    assert gains.shape == (1, equaliser.spectra.channels, equaliser.spectra.bands)
    np.testing.assert_allclose(plan(equaliser, -9.0, 1e-12).log_gains, 0.2 * 9 / 2)  # half of the log energy
    np.testing.assert_allclose(plan(equaliser, -9.0, 1.0).log_gains, 0.2 * 9 * (1 - 1 / 81) / 2)
    # As far as the domain differs from clean ones by more than chance.
    drifted = 1 - np.exp(-4 / 2 * (0.8**2 / 0.25 - 1 - 2 * np.sqrt(2 / 4)))
    weak = plan(equaliser, -0.8, 1e-12, strength=0.7).log_gains
    np.testing.assert_allclose(weak, 0.7 * 0.2 * 0.8 * drifted / 2, rtol=1e-6)
    assert not plan(equaliser, -0.75, 1e-12)


def test_a_noise_that_was_measured_decides_whether_an_excess_is_noise(equaliser: ImageRestorer) -> None:
    domain = DomainEstimate(*(np.full((1, equaliser.std.size), value) for value in (20.0, 1e-12, 20.0)))
    attenuated = [equaliser.plan(domain, noise).log_gains.min() for noise in (STRONG, STRONG + 0.5, STRONG + 2)]
    assert attenuated[0] == 0 > attenuated[1] > attenuated[2]


def test_no_gain_is_above_four(equaliser: ImageRestorer) -> None:
    np.testing.assert_allclose(np.exp(plan(equaliser, -100.0).log_gains), 4)


def test_noise_is_attenuated_as_wiener_would_and_less_than_noise_is_left_alone(equaliser: ImageRestorer) -> None:
    fine = equaliser.spectra.bands // 2
    gains = plan(equaliser, (STRONG + 1) / 0.2, 1e-12, strength=0.7).log_gains[0]
    np.testing.assert_allclose(gains[:, :fine], -0.7 * (STRONG + 1))
    assert not gains[:, fine:].any()  # coarse detail is never noise
    np.testing.assert_allclose(
        plan(equaliser, (STRONG + 0.5) / 0.2, 1e-12).log_gains[0, :, :fine], -0.5 * (STRONG + 0.5)
    )
    assert not plan(equaliser, STRONG / 0.2, 1e-12)


def restoration(made: ImageRestorer, images: int = 1, **parts: float) -> Restoration:
    """For as many domains, all the same: ``log_gain`` of all bands, and the other parts by name."""
    gains = np.full((images, made.spectra.channels, made.spectra.bands), parts.pop("log_gain", 0.0))
    rows = {name: np.full(images, parts.get(name, 0.0)) for name in ("log_stretch", "brightening", "local")}
    return Restoration(**rows, log_gains=gains, gains=made.spectra.gains(gains[0]) if images == 1 else None)


def test_images_are_amplified_and_their_mean_stays(equaliser: ImageRestorer) -> None:
    faded = 0.5 * random_images(4)
    for gain in (1.0, 1.5, 2.0):
        asked = restoration(equaliser, log_gain=np.log(gain))
        better = equaliser.restore(faded, equaliser.describe(faded)[0], asked)
        np.testing.assert_allclose(better.mean(axis=(2, 3)), faded.mean(axis=(2, 3)), atol=1e-5)
        np.testing.assert_allclose(better.std(axis=(2, 3)), faded.std(axis=(2, 3)) * gain, rtol=1e-4)


def test_every_image_by_its_own_domain(equaliser: ImageRestorer) -> None:
    each = restoration(equaliser, images=4)
    each.log_gains[2] = 0.35
    better = equaliser.restore(random_images(4), equaliser.describe(random_images(4))[0], each)
    moved = np.abs(better - random_images(4)).max(axis=(1, 2, 3))
    assert moved[2] > 0.1 and moved[[0, 1, 3]].max() == 0


SIDE = 64


def photographs(count: int, seed: int = 0) -> Floats:
    """Pixels in [0, 1] whose detail falls with its frequency as that of photographs does, with another contrast
    and exposure in each."""
    rng = np.random.default_rng(seed)
    y, x = np.meshgrid(np.fft.fftfreq(SIDE), np.fft.fftfreq(SIDE), indexing="ij")
    noise = np.fft.fft2(rng.standard_normal((count, 3, SIDE, SIDE)))
    smooth = np.fft.ifft2(noise / np.maximum(np.hypot(y, x), 1 / SIDE) ** 1.5).real
    smooth /= smooth.std(axis=(1, 2, 3), keepdims=True)
    contrast, light = 0.2 * np.exp(0.3 * rng.standard_normal(count)), 0.45 + 0.08 * rng.standard_normal(count)
    return np.clip(light[:, None, None, None] + contrast[:, None, None, None] * smooth, 0, 1).astype(np.float32)


@pytest.fixture(scope="module")
def camera() -> Statistics:
    clean = photographs(64, seed=1)
    return fozo.calibrate(
        black_box(lambda images: images, name="camera", image_size=SIDE, mean=0.0, std=1.0), [clean[:32], clean[32:]]
    )


def seen(camera: Statistics, images: Floats, profile: str = "detector") -> Floats:
    """The images as a black box gets them, the last 16 of them: when the domain is known."""
    engine = black_box(lambda given: given, name="camera", image_size=SIDE, mean=0.0, std=1.0)
    method = fozo.create("equalise", engine, camera, profile=profile)
    for start in range(0, len(images), 16):
        got = method(images[start : start + 16])
    return np.asarray(got)


@pytest.mark.parametrize("profile", ["detector", "tokens"])
def test_clean_images_are_handed_on_bit_for_bit(camera: Statistics, profile: str) -> None:
    clean = photographs(64, seed=2)
    np.testing.assert_array_equal(seen(camera, clean, profile), clean[48:])


@pytest.mark.parametrize(("profile", "at_least"), [("detector", 0.7), ("tokens", 0.4)])
def test_lost_contrast_is_stretched_towards_the_range_of_a_picture(
    camera: Statistics, profile: str, at_least: float
) -> None:
    clean = photographs(64, seed=2)
    better = seen(camera, 0.6 + 0.1 * clean, profile)
    low, high = np.percentile(better, [1, 99], axis=(1, 2, 3))
    assert at_least < np.mean(high - low) < HIGH - LOW + 0.1 and better.min() >= 0 and better.max() <= 1
    assert np.corrcoef(better.ravel(), clean[48:].ravel())[0, 1] > 0.7


@pytest.mark.parametrize(("gamma", "at_least"), [(2.2, 0.4), (3.5, 0.2)])
def test_the_dark_is_brightened_part_of_the_way(camera: Statistics, gamma: float, at_least: float) -> None:
    clean = photographs(64, seed=2)
    dark = clean**gamma
    better = seen(camera, dark, "tokens")
    part = (better.mean() - dark[48:].mean()) / (clean[48:].mean() - dark[48:].mean())
    assert at_least < part < 1


@pytest.mark.parametrize("profile", ["detector", "tokens"])
def test_noise_is_removed_and_the_picture_kept(camera: Statistics, profile: str) -> None:
    clean = photographs(64, seed=2)
    noisy = np.clip(clean + 0.2 * np.random.default_rng(3).standard_normal(clean.shape), 0, 1).astype(np.float32)
    error, before = (np.square(images - clean[48:]).mean() for images in (seen(camera, noisy, profile), noisy[48:]))
    assert error < 0.4 * before


def test_haze_gets_local_contrast_before_a_detector_only(camera: Statistics) -> None:
    clean = photographs(64, seed=2)
    haze = np.linspace(0.2, 0.8, SIDE, dtype=np.float32)[:, None]  # denser below
    seen_by = {profile: seen(camera, clean * (1 - haze) + 0.8 * haze, profile) for profile in ("detector", "tokens")}
    below = {profile: images[:, :, -SIDE // 4 :].std(axis=(2, 3)).mean() for profile, images in seen_by.items()}
    assert below["detector"] > 1.1 * below["tokens"]


def test_blur_is_sharpened_and_not_stretched(camera: Statistics) -> None:
    clean = photographs(64, seed=2)
    rolls = [np.roll(clean, (y, x), axis=(2, 3)) for y in range(-2, 3) for x in range(-2, 3)]
    blurred = np.mean(rolls, axis=0).astype(np.float32)
    detail = {name: np.abs(np.diff(images, axis=3)).mean() for name, images in
              (("plain", blurred[48:]), ("sharpened", seen(camera, blurred)), ("clean", clean[48:]))}  # fmt: skip
    assert 1.2 * detail["plain"] < detail["sharpened"] < detail["clean"]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_pixels_of_unknown_range_are_not_stretched() -> None:
    """Bands are restored all the same, before a detector too."""
    engine = black_box(lambda images: images, name="unknown", image_size=SIDE)
    source = fozo.calibrate(engine, [7 * photographs(64, seed=1) - 30])
    made = ImageRestorer(source, engine, 0.7, RetrievalConfig(), "detector")
    asked = plan(made, -9.0, strength=0.7)
    assert made.normalisation is None and not asked.on_pixels.any() and 0 < asked.log_gains.max() <= MAX_LOG_GAIN


@pytest.mark.parametrize("size", [1, 4, 15, 16, 20])
@pytest.mark.parametrize("remembered", [0, 1, 11, 12, 15, 16, 40])
def test_small_batches_are_judged_with_those_before_them(equaliser: ImageRestorer, size: int, remembered: int) -> None:
    """With all of them while they are few, and with as many as fill up the context then: never with fewer."""
    made = equaliser
    rows = 2 + 0.1 * np.random.default_rng(5).standard_normal((remembered + size, made.std.size))
    before = DomainEstimate(*(rows[:remembered] for _ in range(3)))
    memory = Memory.empty(made.std.size).add(before, 512)
    found = made.domains(rows[remembered:] * made.std + made.mean, memory.descriptor)
    used = max(size, min(remembered + size, made.retrieval.context))
    np.testing.assert_allclose(found.variance, 1 / used)  # so sharp is the mean of so many images of one domain
    np.testing.assert_allclose(found.mean, np.broadcast_to(rows[-used:].mean(axis=0), found.mean.shape))
    np.testing.assert_allclose(found.descriptor, rows[remembered:])
