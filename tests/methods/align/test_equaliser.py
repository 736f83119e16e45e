"""The equaliser: weak bands are raised towards clean ones, strong ones and uncertain ones are left alone."""

import numpy as np
import pytest

import fozo
from fozo.core.statistics import SourceStatistics
from fozo.methods.align.equaliser import Equaliser
from fozo.methods.align.memory import DomainEstimate, RetrievalConfig, Retrieved, Rows
from tests.helpers import random_images


@pytest.fixture
def equaliser(engine: fozo.Engine, source: SourceStatistics) -> Equaliser:
    """Whose clean descriptors have a standard deviation of 0.2."""
    made = Equaliser(source, engine, 1.0, RetrievalConfig())
    made.std = np.full_like(made.std, 0.2)
    return made


def gains(made: Equaliser, mean: float, variance: float = 0.01, strength: float = 1.0) -> np.ndarray:
    """Of a domain whose every feature is ``mean`` standard deviations from clean, without any memories of it."""
    made.strength = strength
    domain = DomainEstimate(*(np.full((1, made.std.size), value) for value in (mean, variance, mean)))
    nothing = Retrieved(Rows.empty(0, made.std.size, (0, 0, 0)), np.zeros((1, 0)), np.zeros(1))
    return made.log_gains(domain, nothing)


def test_only_weakness_counts_and_only_as_far_as_it_is_believed(equaliser: Equaliser) -> None:
    assert gains(equaliser, 3.0).max() == gains(equaliser, -0.9, variance=1.0).max() == 0
    assert gains(equaliser, -3.0).shape == (1, equaliser.spectra.channels, equaliser.spectra.bands)
    np.testing.assert_allclose(gains(equaliser, -9.0, 1e-12), 0.2 * 9 / 2)  # half of the log energy
    np.testing.assert_allclose(gains(equaliser, -9.0, 1.0), 0.2 * 9 * (1 - 1 / 81) / 2)
    drifted = 1 - np.exp(-4 / 2 * (0.6**2 / 0.25 - 1))  # as far as the domain differs from clean ones
    np.testing.assert_allclose(gains(equaliser, -0.6, 1e-12, strength=0.7), 0.7 * 0.2 * 0.6 * drifted / 2, rtol=1e-6)


def test_no_gain_is_above_four(equaliser: Equaliser) -> None:
    np.testing.assert_allclose(np.exp(gains(equaliser, -100.0)), 4)


def test_images_are_amplified_and_their_mean_stays(equaliser: Equaliser) -> None:
    faded = 0.5 * random_images(4)
    shape = (1, equaliser.spectra.channels, equaliser.spectra.bands)
    for gain in (1.0, 1.5, 2.0):
        better = equaliser.equalise(equaliser.describe(faded)[0], np.full(shape, np.log(gain)))
        np.testing.assert_allclose(better.mean(axis=(2, 3)), faded.mean(axis=(2, 3)), atol=1e-5)
        np.testing.assert_allclose(better.std(axis=(2, 3)), faded.std(axis=(2, 3)) * gain, rtol=1e-4)


def test_every_image_by_its_own_domain(equaliser: Equaliser) -> None:
    each = np.zeros((4, equaliser.spectra.channels, equaliser.spectra.bands))
    each[2] = 0.35
    better = equaliser.equalise(equaliser.describe(random_images(4))[0], each)
    moved = np.abs(better - random_images(4)).max(axis=(1, 2, 3))
    assert moved[2] > 0.1 and moved[[0, 1, 3]].max() < 1e-5


@pytest.mark.parametrize("size", [1, 4, 15, 16, 20])
@pytest.mark.parametrize("remembered", [0, 1, 11, 12, 15, 16, 40])
def test_small_batches_are_judged_with_those_before_them(equaliser: Equaliser, size: int, remembered: int) -> None:
    """With all of them while they are few, and with as many as fill up the context then: never with fewer."""
    made, memory = equaliser, equaliser.memory()
    rows = 2 + 0.1 * np.random.default_rng(5).standard_normal((remembered + size, made.std.size))
    before = DomainEstimate(*(rows[:remembered] for _ in range(3)))
    memory.add(Rows.pack(before, np.zeros((remembered, 0, 0), np.float32), np.zeros((remembered, 0))))
    found = made.domains(rows[remembered:] * made.std + made.mean, memory)
    used = max(size, min(remembered + size, made.retrieval.context))
    np.testing.assert_allclose(found.variance, 1 / used)  # so sharp is the mean of so many images of one domain
    np.testing.assert_allclose(found.mean, np.broadcast_to(rows[-used:].mean(axis=0), found.mean.shape))
    np.testing.assert_allclose(found.descriptor, rows[remembered:])
