"""The comparison with the plain model, and the method that falls back to it."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import fozo
from fozo.errors import FozoError
from fozo.methods.common.info import MethodInfo
from fozo.methods.common.options import NoOptions
from fozo.methods.method import Method, Result
from fozo.methods.observer import Observation
from fozo.monitor.accuracy import Comparison
from fozo.state import State, same
from fozo.types import Answer, Batch, Floats, Tap
from tests.monitor.conftest import BATCH, Material, run, watched


@pytest.mark.parametrize(
    ("gain", "hurts", "may_hurt"),
    [(-0.11, True, True), (-0.09, False, True), (-0.06, False, True), (-0.04, False, False), (None, False, False)],
)
def test_the_rule_is_two_standard_errors_to_begin_and_one_to_end(
    gain: float | None, hurts: bool, may_hurt: bool
) -> None:
    comparison = Comparison(32, 0.5, gain, None if gain is None else 0.05)
    assert (comparison.hurts, comparison.may_hurt) == (hurts, may_hurt)


def test_a_guard_that_has_begun_ends_later_than_it_would_begin(
    material: Material, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between one and two standard errors it does what it did before, so that it does not flutter."""
    gains = iter((-0.5, -1.5, -2.5, -1.5, -1.5, -0.5, -1.5))
    compared = lambda *given: Comparison(32, 0.5, next(gains), 1.0)  # noqa: E731
    monkeypatch.setattr("fozo.monitor.monitor.MIN_PAIRS", 0)
    guarded = fozo.Guarded(material.adapter.clone(), fozo.Monitor(material.reference, shadow=1.0))
    state = guarded.monitor.init()
    monkeypatch.setattr(Comparison, "of", compared)
    batch = guarded.engine.check(material.images(slice(400, 404)))
    observation = Observation(batch, plain_logits(guarded, material.images(slice(400, 404))), None)
    guarding, names = [], []
    for _ in range(7):
        state, status = guarded.monitor.update(state, observation)
        guarding.append(status.guarding)
        names += [event.name for event in status.raised if event.name.startswith("guard")]
        assert state.guarding == status.guarding
    assert guarding == [False, False, True, True, True, False, False]
    assert names == ["guard", "guard over"]
    assert [Comparison(32, 0.5, gain, 1.0).hurts for gain in (-2.01, -2.0)] == [True, False]
    assert [Comparison(32, 0.5, gain, 1.0).may_hurt for gain in (-1.01, -1.0)] == [True, False]


def test_images_are_chosen_evenly(material: Material) -> None:
    adapter, monitor = watched(material, shadow=0.3)
    images, chosen = material.images(slice(400, 405)), []
    for _ in range(20):
        adapter(images)
        chosen.append(round(5 * monitor.status.passes_per_image))
    assert sum(chosen) == 30 and set(chosen) == {1, 2}


def test_the_shadow_is_counted_and_compares(material: Material) -> None:
    adapter, monitor = watched(material, shadow=0.25)
    images = material.images(slice(400, 528), "contrast", 4)
    adapted = run(adapter, images)
    assert adapter.passes_per_image == 1 and monitor.status.passes_per_image == 0.25
    comparison = monitor.status.shadow
    assert comparison is not None and comparison.pairs >= 16
    both = adapted, plain_logits(adapter, images)
    adapted_hits, plain_hits = (x.argmax(axis=1) == material.labels[400:528] for x in both)
    assert adapted_hits.mean() > plain_hits.mean() + 0.1  # here adaptation helps,
    assert comparison.gain is not None and comparison.gain > 0 and not comparison.hurts  # and the monitor knows


@dataclass(frozen=True)
class Health(State):
    spoilt: bool = True


class Spoilt(Method[NoOptions, Health]):
    """An adaptation gone wrong, until its state says otherwise: nearly flat predictions, all wrong ones."""

    info = MethodInfo("spoilt", "", "1", "nothing", "")

    def init(self) -> Health:
        return Health()

    def step(self, state: Health, batch: Batch) -> Result[Health]:
        logits = self.plain(batch)
        assert not isinstance(logits, Answer)
        return Result(np.asarray(-0.2 * logits) if state.spoilt else logits, state)


def test_plain_predictions_are_returned_while_adaptation_hurts(material: Material) -> None:
    inner = Spoilt(material.adapter.engine)
    reference = replace(material.reference, method=inner.info.name)
    monitor = fozo.Monitor(reference, shadow=1.0)
    guarded = fozo.Guarded(inner, monitor)
    images = material.images(slice(400, 528))
    run(guarded, images)
    assert monitor.status.guarding and monitor.events[-1].name == "guard" and guarded.metrics()["guarding"] == 1
    assert "adaptation hurts, so the plain model predicts" in monitor.sentence
    np.testing.assert_array_equal(guarded(images[-BATCH:]), plain_logits(inner, images[-BATCH:]))
    assert guarded.passes_per_image == 2
    guarded.load_state(replace(guarded.state(), inner=Health(False)))
    run(guarded, material.images(slice(600, 792)))
    assert [event.name for event in monitor.events if event.name.startswith("guard")][-1] == "guard over"
    guarded.reset()
    assert monitor.status.images == 0


def plain_logits(method: fozo.Method[Any, Any], images: Floats) -> Floats:
    logits: Floats = method.engine.run(method.engine.check(images))[Tap.LOGITS][0]
    return logits


def test_equal_predictions_gain_and_lose_nothing(material: Material) -> None:
    """Shirts only, from an Align without moves: whatever the confidences of two regressions suggest."""
    monitor = fozo.Monitor(material.reference, shadow=1.0)
    adapter = material.adapter
    still = fozo.Align(
        adapter.engine,
        adapter.statistics,
        mean_strength=0.0,
        cls_strength=0.0,
        covariance_strength=0.0,
        centre_images=0.0,
    )
    guarded = fozo.Guarded(still, monitor)
    shirts = material.images(np.flatnonzero(material.labels == 6)[-96:])
    np.testing.assert_array_equal(run(guarded, shirts).argmax(axis=1), plain_logits(guarded, shirts).argmax(axis=1))
    comparison = monitor.status.shadow
    assert comparison is not None and comparison.agreement == 1 and comparison.gain == 0 == comparison.error
    assert not comparison.hurts and not comparison.may_hurt and not monitor.events


def test_a_stream_of_one_class_is_saved_from_a_method_that_collapses_on_it(material: Material) -> None:
    """FOZO as published takes trousers, seen alone, for drift; nothing is spoilt by hand here."""
    adapter = fozo.create("fozo", material.adapter.engine, material.adapter.statistics)
    reference = fozo.Reference.collect(adapter, material.pixels[:100], material.labels[:100], sample=5)
    some = np.flatnonzero(material.labels[100:] == 1)[:128] + 100
    alone = (run(adapter.clone(), material.images(some)).argmax(axis=1) == 1).mean()
    monitor = fozo.Monitor(reference, shadow=0.25)
    guarded = fozo.Guarded(adapter, monitor)
    right = run(guarded, material.images(some)).argmax(axis=1) == 1
    assert alone < 0.3 and right[-48:].mean() > 0.9
    assert "guard" in {event.name for event in monitor.events} and guarded.passes_per_image > 2


def test_it_is_a_method_whose_state_can_be_saved(material: Material, tmp_path: Any) -> None:
    images = material.images(slice(400, 448), "fog", 4)
    guarded = fozo.Guarded(material.adapter.clone(), fozo.Monitor(material.reference))
    other = guarded.clone()
    assert other.inner is not guarded.inner and other.monitor is not guarded.monitor
    expected = run(guarded, images)
    assert guarded.drift.drift_detected and not other.monitor.drift.drift_detected
    np.testing.assert_array_equal(run(material.adapter.clone(), images), expected)
    guarded.save(tmp_path / "state")
    other.restore(tmp_path / "state")
    assert same(other.state(), guarded.state()) and other.monitor.status == guarded.monitor.status
    np.testing.assert_array_equal(other(images[:BATCH]), guarded(images[:BATCH]))


def test_a_guard_without_comparisons_is_refused(material: Material) -> None:
    adapter = material.adapter.clone()
    with pytest.raises(FozoError, match="it needs a monitor with shadow above 0"):
        fozo.Guarded(adapter, fozo.Monitor(material.reference, shadow=0))
    fozo.Monitor(material.reference).watch(adapter)  # nobody watches it yet
