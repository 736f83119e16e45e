import numpy as np
import pytest

from fozo.monitor.quality import QualityStatistics
from fozo.monitor.reference import SEVERITIES, Signatures
from tests.monitor.conftest import Material


def test_corruptions_of_other_images_are_recognised(material: Material) -> None:
    signatures, quality = material.reference.signatures, QualityStatistics(material.adapter.engine.spec)
    assert signatures is not None and len(signatures.kinds) == 18
    for kind in ("gaussian_noise", "defocus_blur", "fog", "brightness", "contrast"):
        guess = signatures.guess(quality(material.images(slice(500, 564), kind, 3)))
        assert kind in guess.kinds, f"{kind} was taken for {guess}"
        assert guess.known and 1.5 < guess.severity < 4.5
        assert str(guess).startswith("like ")
    assert signatures.guess(quality(material.images(slice(500, 564)))).kind == "clean"


def test_two_kinds_that_do_the_same_are_said_to_be_alike() -> None:
    rng = np.random.default_rng(0)
    away = np.array([3.0, 0, 0, 0])
    corrupted = {
        (kind, severity): rng.standard_normal((40, 4)) + severity * offset
        for kind, offset in (("mist", away), ("haze", away), ("rain", -away))
        for severity in SEVERITIES
    }
    signatures = Signatures.of(rng.standard_normal((200, 4)), corrupted)
    guess = signatures.guess(rng.standard_normal((16, 4)) + 3 * away)
    assert set(guess.kinds) == {"mist", "haze"} and guess.known
    assert " or " in str(guess)
    assert guess.severity == pytest.approx(3, abs=0.7)
    far = signatures.guess(rng.standard_normal((16, 4)) + np.array([0, 9.0, 9.0, 0]))
    assert not far.known and "unlike all that was seen" in str(far)
