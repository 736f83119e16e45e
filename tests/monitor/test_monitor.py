from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import fozo
from fozo.errors import FozoError
from fozo.methods.common.observer import Observation
from fozo.monitor import Event
from fozo.monitor.types import Drift
from fozo.types import Floats, Tap
from tests.monitor.conftest import CALIBRATION, Material

BATCH = 16


def run(method: fozo.Method[Any], images: Floats) -> Floats:
    return np.concatenate([method(images[start : start + BATCH]) for start in range(0, len(images), BATCH)])


def watched(material: Material, **options: Any) -> tuple[fozo.Method[Any], fozo.Monitor]:
    adapter = material.adapter.clone()
    return adapter, fozo.Monitor(adapter, material.reference, **options)


def test_a_day_of_a_camera(material: Material, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Event] = []
    times = iter(range(10_000))
    adapter, monitor = watched(material, on_event=told.append, clock=lambda: 1.0 * next(times))
    with caplog.at_level(logging.INFO, "fozo.monitor"):
        run(adapter, material.images(slice(CALIBRATION, CALIBRATION + 96)))
        assert not adapter.drift.drift_detected and monitor.sentence.startswith("no drift; expected accuracy")
        run(adapter, material.images(slice(400, 496), "fog", 4))
        assert monitor.drift.is_drift and monitor.drift.since == 97 and monitor.drift.since_time == 6.0
        assert "since image 97 (1970-01-01 00:00:06Z): like fog" in monitor.sentence
        assert "contrast -" in monitor.sentence
        in_fog = monitor.accuracy
        run(adapter, material.images(slice(500, 596)))
    assert not adapter.drift.drift_detected
    assert [event.name for event in told] == ["drift", "drift over"] == [event.name for event in monitor.events]
    assert told[0].image == 97 and told[0].facts["drift"] == 1.0
    assert "drift at image 97" in caplog.text and "the images look clean again" in caplog.text
    assert in_fog is not None and monitor.accuracy is not None and in_fog.value < monitor.accuracy.value
    metrics = adapter.metrics()
    assert metrics["drift"] == 0 and 0 < metrics["expected_accuracy"] <= 1 and "shift" in metrics
    monitor.reset()
    assert monitor.status.images == 0 and monitor.drift == Drift() and not monitor.events


def test_predictions_are_the_same_with_a_monitor(material: Material) -> None:
    images = material.images(slice(400, 464), "fog", 3)
    expected = run(material.adapter.clone(), images)
    np.testing.assert_array_equal(run(watched(material)[0], images), expected)


def test_a_monitor_that_fails_does_not_break_predictions(material: Material, caplog: pytest.LogCaptureFixture) -> None:
    adapter = material.adapter.clone()

    class Broken:
        drift = Drift()

        def observe(self, observation: Observation) -> None:
            raise RuntimeError("no disk")

        def metrics(self) -> dict[str, float]:
            return {}

    images = material.images(slice(400, 416))
    expected = material.adapter.clone()(images)
    adapter.attach(Broken())
    np.testing.assert_array_equal(adapter(images), expected)
    assert "the monitor of align failed" in caplog.text
    adapter.attach(None)
    with pytest.raises(FozoError, match="align has no monitor"):
        adapter.drift  # noqa: B018 - the attribute is what is asked about


def test_the_shadow_is_counted_and_compares(material: Material) -> None:
    adapter, monitor = watched(material, shadow=0.25)
    images = material.images(slice(400, 528), "contrast", 4)
    run(adapter, images)
    assert adapter.passes_per_image == 1.25
    comparison = monitor.status.shadow
    assert comparison is not None and comparison.pairs >= 16
    plain = adapter.engine.run(adapter.engine.check(images))[Tap.LOGITS][0]
    better = (run(material.adapter.clone(), images).argmax(axis=1) == material.labels[400:528]).mean()
    assert better > (plain.argmax(axis=1) == material.labels[400:528]).mean() + 0.1  # here adaptation helps,
    assert comparison.gain is not None and comparison.gain > 0 and not comparison.hurts  # and the monitor knows


def test_the_guard_returns_plain_predictions_while_adaptation_hurts(material: Material) -> None:
    adapter, monitor = watched(material, shadow=1.0, guard="on")
    spoilt = material.images(slice(400, 528))
    honest = type(adapter).step

    def spoil(batch: Any) -> Floats:
        """An adaptation gone wrong: nearly flat predictions, all wrong ones."""
        return np.asarray(-0.2 * np.asarray(honest(adapter, batch)))

    adapter.step = spoil  # type: ignore[method-assign]
    run(adapter, spoilt)
    assert monitor.status.guarding and monitor.events[-1].name == "guard"
    assert adapter.metrics()["guarding"] == 1
    last = spoilt[-BATCH:]
    plain = adapter.engine.run(adapter.engine.check(last))[Tap.LOGITS][0]
    np.testing.assert_array_equal(adapter(last), plain)
    adapter.step = lambda batch: honest(adapter, batch)  # type: ignore[method-assign]
    run(adapter, material.images(slice(600, 792)))
    assert [event.name for event in monitor.events if event.name.startswith("guard")][-1] == "guard over"


def test_where_both_models_say_the_same_nothing_is_gained_or_lost(material: Material) -> None:
    """Shirts only: Align keeps every prediction, whatever the confidences of two regressions suggest."""
    adapter, monitor = watched(material, shadow=1.0, guard="on")
    shirts = material.images(np.flatnonzero(material.labels == 6)[-96:])
    np.testing.assert_array_equal(
        run(adapter, shirts).argmax(axis=1),
        adapter.engine.run(adapter.engine.check(shirts))[Tap.LOGITS][0].argmax(axis=1),
    )
    comparison = monitor.status.shadow
    assert comparison is not None and comparison.agreement == 1 and comparison.gain == 0 == comparison.error
    assert not comparison.hurts and not comparison.may_hurt and not monitor.events


def test_the_guard_saves_a_stream_of_one_class_from_a_method_that_collapses_on_it(material: Material) -> None:
    """FOZO as published takes trousers, seen alone, for drift; nothing is spoilt by hand here."""
    adapter = fozo.create("fozo", material.adapter.engine, material.adapter.source)
    reference = fozo.MonitorReference.collect(adapter, material.pixels[:100], material.labels[:100], sample=5)
    some = np.flatnonzero(material.labels[100:] == 1)[:128] + 100
    alone = (run(adapter.clone(), material.images(some)).argmax(axis=1) == 1).mean()
    monitor = fozo.Monitor(adapter, reference, shadow=0.25, guard="on")
    guarded = run(adapter, material.images(some)).argmax(axis=1) == 1
    assert alone < 0.3 and guarded[-48:].mean() > 0.9
    assert "guard" in {event.name for event in monitor.events} and adapter.passes_per_image > 2


def test_a_camera_that_goes_black_is_an_event(material: Material) -> None:
    adapter, monitor = watched(material)
    run(adapter, material.images(slice(400, 432)))
    black = adapter.engine.spec.normalise(np.zeros((BATCH, 28, 28, 1), dtype=np.uint8))
    adapter(black)
    assert set(monitor.status.faults) == {"black", "frozen"}
    assert monitor.sentence.startswith("the picture is black")
    assert {"black", "frozen"} <= {event.name for event in monitor.events}


def test_what_makes_no_sense_is_refused(material: Material, engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    adapter = material.adapter.clone()
    with pytest.raises(FozoError, match="guard is 'maybe'"):
        fozo.Monitor(adapter, material.reference, guard="maybe")
    with pytest.raises(FozoError, match="shadow is 2"):
        fozo.Monitor(adapter, material.reference, shadow=2)
    with pytest.raises(FozoError, match="it needs shadow above 0"):
        fozo.Monitor(adapter, material.reference, shadow=0, guard="on")
    with pytest.raises(FozoError, match=r"is of align on vit-fashion .* not of align on vit"):
        fozo.Monitor(fozo.Align(engine, source), material.reference)
    with pytest.raises(FozoError, match="not of noadapt on vit-fashion"):
        fozo.Monitor(fozo.NoAdapt(adapter.engine), material.reference)
    assert adapter.observer is None
