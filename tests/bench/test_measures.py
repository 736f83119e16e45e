"""Records and measures against their definitions, written out over single images."""

from dataclasses import asdict

import numpy as np
import pytest

from fozo.bench.measures import BINS, BatchRecord, Cost, Measures, at_budget, measure, score, within_domains
from tests.refusals import refuses


def records(batches: int = 12, size: int = 20, seed: int = 0) -> tuple[list[BatchRecord], np.ndarray, np.ndarray]:
    """Records of random predictions over two domains of unequal size, with all logits and labels."""
    generator = np.random.default_rng(seed)
    found, logits, labels = [], [], []
    for index in range(batches):
        domain, count = ("fog/5", size) if index < 4 else ("snow/5", size // 2)
        labels.append(generator.integers(0, 8, count))
        logits.append(generator.standard_normal((count, 8)))
        logits[-1][np.arange(count), labels[-1]] += 1.0 if domain == "fog/5" else 2.0
        found.append(score(logits[-1], labels[-1], index=index, domain=domain, passes=2))
    return found, np.concatenate(logits), np.concatenate(labels)


def test_scores() -> None:
    logits = np.log(np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]], dtype=np.float64))
    record = score(logits, np.array([0, 1]))
    assert (record.images, record.correct, record.correct5) == (2, 1, 2)
    assert record.bin_images[int(0.7 * BINS)] == 1 and record.bin_correct[int(0.7 * BINS)] == 1
    assert record.bin_images[9] == 1 and record.bin_correct[9] == 0
    assert sum(record.bin_confidence) == pytest.approx(1.3)
    ten = np.arange(10.0)[None]
    assert [score(ten, np.array([label])).correct5 for label in (9, 5, 4)] == [1, 1, 0]
    assert score(np.zeros((1, 10)), np.array([0])).correct5 == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_are_refused_in_a_sentence(value: float) -> None:
    logits = np.zeros((4, 3))
    logits[2, 1] = value
    refuses(
        r"batch 7 \(fog/5\) was given logits that are NaN or infinite; ",
        score,
        logits,
        np.zeros(4, dtype=np.int64),
        index=7,
        domain="fog/5",
    )


def test_a_metric_may_not_be_called_as_a_field() -> None:
    record = score(np.eye(3), np.arange(3), metrics={"domain": 1.0})
    refuses("metric is called 'domain'", record.line)


def test_accuracies() -> None:
    found, logits, labels = records()
    right = logits.argmax(axis=1) == labels
    m = measure(found)
    fog, snow = 100 * right[:80].mean(), 100 * right[80:].mean()
    assert m.domains == pytest.approx({"fog/5": fog, "snow/5": snow})
    assert m.average == pytest.approx((fog + snow) / 2) and m.top1 == pytest.approx(100 * right.mean())
    assert measure(found[:-2]).average != pytest.approx(measure(found[:-2]).top1)  # unequal sizes: the two differ
    five = np.argsort(-logits, axis=1)[:, :5]
    assert m.top5 == pytest.approx(100 * (five == labels[:, None]).any(axis=1).mean())
    assert (m.images, m.batches, m.passes, m.passes_per_image) == (160, 12, 320, 2)
    assert Measures.read(asdict(m)) == m


def test_calibration_error_is_the_textbooks() -> None:
    found, logits, labels = records()
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    confidence, right = p.max(axis=1), p.argmax(axis=1) == labels
    expected = 0.0
    for low in range(BINS):
        inside = (confidence >= low / BINS) & (confidence < (low + 1) / BINS)
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert measure(found).ece == pytest.approx(100 * expected)


def test_intervals_are_seeded_and_as_wide_as_theory_says() -> None:
    found, _, _ = records(batches=40, size=50)
    m = measure(found)
    assert m == measure(found) and m.top1_interval != measure(found, seed=1).top1_interval
    p = m.domains["fog/5"] / 100
    width = 2 * 1.96 * 100 * np.sqrt(p * (1 - p) / 200)
    fog = m.domain_intervals["fog/5"]
    assert fog.high - fog.low == pytest.approx(width, rel=0.15)
    for value, within in ((m.average, m.average_interval), (m.top5, m.top5_interval), (m.top1, m.top1_interval)):
        assert within.low < value < within.high
    assert m.ece_interval.low < m.ece_interval.high
    state = repr(np.random.get_state())  # noqa: NPY002 - the global generator must not have been touched
    measure(found)
    assert state == repr(np.random.get_state())  # noqa: NPY002


def test_curves() -> None:
    found, _, _ = records()
    costs = [Cost(index, 0.5 if index < 4 else 0.25, 1) for index in range(len(found))]
    curves = within_domains(found, costs)
    assert [curve[0][-1] for curve in curves] == [2.0, 2.0]
    first, last = at_budget(curves, 0.0), at_budget(curves, 2.0)
    assert last == pytest.approx(measure(found).average)
    assert first == pytest.approx(np.mean([100 * found[0].correct / 20, 100 * found[4].correct / 10]))
    half = at_budget(curves, 1.0)  # two batches of fog, four of snow
    assert half == pytest.approx(np.mean([100 * sum(r.correct for r in found[:2]) / 40,
                                          100 * sum(r.correct for r in found[4:8]) / 40]))  # fmt: skip
