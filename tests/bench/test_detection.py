"""Average precision and suppression of the detector benchmark, on cases worked out by hand."""

import numpy as np
import pytest

from benchmarks import detectors
from benchmarks.detection import Boxes, average_precision


def boxes(*rows: tuple[float, ...]) -> Boxes:
    """Squares of side 10 by their left edge, with class and score."""
    left, classes, scores = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    corners = np.stack([left, np.zeros_like(left), left + 10, np.full_like(left, 10)], axis=1)
    return Boxes(corners, classes.astype(np.intp), scores)


NONE = Boxes(np.zeros((0, 4)), np.zeros(0, dtype=np.intp), np.zeros(0))
ONCE = np.ones((1, 2), dtype=np.intp)


def test_average_precision_by_hand() -> None:
    """Right, wrong, right of three true boxes: recall 1/3 at precision 1, then 2/3 at precision 2/3."""
    truth = [boxes((0, 0, 1), (40, 0, 1)), boxes((0, 0, 1))]
    found = [boxes((0, 0, 0.9), (80, 0, 0.8), (40, 0, 0.7)), NONE]
    wanted = 100 * (1 / 3 + 1 / 3 * 2 / 3)
    assert average_precision(found, truth, [0], ONCE)[0] == pytest.approx(wanted)
    # A class that the truth lacks is left out; one that is never found counts as 0.
    assert average_precision(found, truth, [0, 7], ONCE)[0] == pytest.approx(wanted)
    truth[1] = boxes((0, 1, 1), (0, 0, 1))
    assert average_precision(found, truth, [0, 1], ONCE)[0] == pytest.approx(wanted / 2)
    # Without the second image there are two true boxes; with it twice there are four.
    first, twice = average_precision(found, truth, [0], np.array([[1, 0], [1, 2]]))
    assert (first, twice) == (
        pytest.approx(100 * (1 / 2 + 1 / 2 * 2 / 3)),
        pytest.approx(100 * (1 / 4 + 1 / 4 * 2 / 3)),
    )


def test_records_pair_the_draws() -> None:
    draws = {
        arm: {"clear, all": np.array([50.0 + shift, 49 + shift, 51 + shift])}
        for arm, shift in (("plain", 0), ("clahe", 2))
    }
    plain, clahe = detectors.records(draws, {"clear, all": 9})
    assert (clahe["against_plain"], clahe["plain_half_width"], plain["against_clahe"]) == ("2.00", "0.00", "-2.00")
    assert plain["half_width"] == "1.96" and plain["images"] == "9" and "against_plain" not in plain
