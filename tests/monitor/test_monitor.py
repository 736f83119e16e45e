import logging
import re

import numpy as np
import pytest

import fozo
from fozo.data import sample
from fozo.errors import FozoError
from fozo.monitor import Event
from fozo.monitor.drift import Drift
from fozo.monitor.quality import QualityStatistics
from tests.monitor.conftest import BATCH, CALIBRATION, Material, run, watched


def test_a_day_of_a_camera(material: Material, caplog: pytest.LogCaptureFixture) -> None:
    raised: list[Event] = []
    times = iter(range(10_000))
    adapter, monitor = watched(material, on_event=raised.append, clock=lambda: 1.0 * next(times))
    with caplog.at_level(logging.INFO, "fozo.monitor"):
        run(adapter, material.images(slice(CALIBRATION, CALIBRATION + 96)))
        assert not adapter.drift.drift_detected and monitor.sentence.startswith("no drift; expected accuracy")
        run(adapter, material.images(slice(400, 496), "fog", 4))
        assert monitor.drift.is_drift and monitor.drift.since == 97 and monitor.drift.since_time == 6.0
        assert "since image 97 (00:00:06): like fog" in monitor.sentence
        assert "contrast -" in monitor.sentence
        in_fog = monitor.accuracy
        run(adapter, material.images(slice(500, 596)))
    assert not adapter.drift.drift_detected
    assert [event.name for event in raised] == ["drift", "drift over"] == [event.name for event in monitor.events]
    assert raised[0].image == 97 and raised[0].metrics["drift"] == 1.0
    assert "drift at image 97" in caplog.text and "the images look like clean ones" in caplog.text
    assert in_fog is not None and monitor.accuracy is not None and in_fog.value < monitor.accuracy.value
    metrics = adapter.metrics()
    assert metrics["drift"] == 0 and 0 < metrics["expected_accuracy"] <= 1 and "shift" in metrics
    monitor.reset()
    assert monitor.status.images == 0 and monitor.drift == Drift() and not monitor.events


def test_words_follow_the_drift(material: Material) -> None:
    """Fog that turns into noise: words, numbers and dates are those of the change."""
    adapter, monitor = watched(material, thumbnails=True, shadow=0, clock=lambda: 0.0)
    run(adapter, material.images(slice(300, 348)))
    run(adapter, material.images(slice(400, 464), "fog", 4))
    hazy = monitor.status.quality
    run(adapter, material.images(slice(464, 528), "gaussian_noise", 3))
    noise = QualityStatistics(adapter.engine.spec)(material.images(slice(464, 528), "gaussian_noise", 3)).mean(axis=0)
    change = noise - material.reference.clean.whitening.mean
    assert list(monitor.status.quality.values()) == pytest.approx(change[: len(hazy)]) and hazy["noise"] < 0.5
    date = r"\([\d :Z-]+\)"
    wanted = rf"drift since image 49 {date}, changed at 113 {date}: noise x[\d.]+.*: like gaussian noise.*; add light"
    assert re.match(wanted, monitor.sentence)
    run(adapter, material.images(slice(528, 560)))
    events = list(monitor.events)
    assert [(event.name, event.image) for event in events[:2]] == [("drift", 49), ("drift changed", 113)]
    assert re.match(wanted, events[1].text) and [event.name for event in events[2:]] == ["drift over"]
    first, second = (event.metrics["drift_ratio"] for event in events[:2])
    assert min(first, second) > 1 > monitor.metrics()["drift_ratio"]


def test_predictions_are_the_same_with_a_monitor_and_with_one_that_fails(
    material: Material, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    images = material.images(slice(400, 464), "fog", 3)
    expected = run(material.adapter.clone(), images)
    np.testing.assert_array_equal(run(watched(material)[0], images), expected)
    adapter, monitor = watched(material)
    monkeypatch.setattr(monitor, "clock", lambda: 1 / 0)
    np.testing.assert_array_equal(run(adapter, images), expected)
    assert "the monitor of align failed" in caplog.text
    monitor.unwatch()
    with pytest.raises(FozoError, match="align has no monitor"):
        adapter.drift  # noqa: B018 - the attribute is what is asked about


def test_a_camera_that_goes_black_is_an_event(material: Material) -> None:
    adapter, monitor = watched(material)
    run(adapter, material.images(slice(400, 432)))
    black = adapter.engine.spec.normalise(np.zeros((BATCH, 28, 28, 1), dtype=np.uint8))
    adapter(black)
    assert set(monitor.status.faults) == {"black", "frozen"}
    assert monitor.sentence.startswith("the picture is black")
    assert {"black", "frozen"} <= {event.name for event in monitor.events}


def test_reprs_are_one_line(material: Material) -> None:
    _, monitor = watched(material)
    assert repr(material.reference) == (
        "<Reference of align on vit-fashion: 300 clean images with labels, 18 corruptions>"
    )
    assert repr(monitor) == "<Monitor of <Align on vit-fashion>, 0 images: no drift>"
    monitor.unwatch()
    assert repr(monitor).startswith("<Monitor of no adapter")
    assert repr(fozo.open_images(sample.IMAGES)) == "<ImageSet arrays: 2,000 images, 10 classes, 28x28 px>"


def test_watching_begins_and_ends(material: Material) -> None:
    adapter, images = material.adapter.clone(), material.images(slice(400, 416))
    with fozo.Monitor(material.reference).watch(adapter) as monitor:
        assert monitor.watch(adapter) is monitor  # once is enough
        with pytest.raises(FozoError, match="align is watched by a Monitor already"):
            fozo.Monitor(material.reference).watch(adapter)
        with pytest.raises(FozoError, match="watches another adapter already"):
            monitor.watch(material.adapter.clone())
        adapter(images)
    assert adapter.reading is None and monitor.status.images == 16
    adapter(images)
    assert monitor.status.images == 16
    with pytest.raises(FozoError, match="watches no adapter"):
        monitor.adapter  # noqa: B018
    monitor.watch(adapter)
    adapter(images)
    assert monitor.status.images == 16  # of the new stream


def test_what_does_not_fit_is_refused(material: Material, engine: fozo.Engine, source: fozo.Statistics) -> None:
    with pytest.raises(FozoError, match="shadow is 2"):
        fozo.Monitor(material.reference, shadow=2)
    monitor = fozo.Monitor(material.reference)
    with pytest.raises(FozoError, match=r"is of align on vit-fashion .* not of align on vit"):
        monitor.watch(fozo.Align(engine, source))
    plain = fozo.NoAdapt(material.adapter.engine)
    with pytest.raises(FozoError, match="not of noadapt on vit-fashion"):
        monitor.watch(plain)
    assert plain.reading is None
