import pytest
from hypothesis import given
from hypothesis import strategies as st

from fozo.core.schedule import Schedule
from fozo.errors import FozoError
from fozo.methods.fozo.method import AUTHORS_SCHEDULE


@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=40))
def test_scales_stay_within_their_bounds(losses: list[float]) -> None:
    pace = AUTHORS_SCHEDULE.start()
    for loss in losses:
        pace = AUTHORS_SCHEDULE.next(pace, loss)
        assert 0.2 <= pace.epsilon <= 0.5
        assert 0.1 <= pace.rate <= 3.0


def test_decays_to_the_minimum_and_jumps_back() -> None:
    """Eq. 12."""
    schedule = Schedule()
    pace = schedule.start()
    for _ in range(20):
        pace = schedule.next(pace, 10.0)
        assert not pace.jumped
    assert pace.epsilon == 0.2
    assert pace.average == pytest.approx(10.0)
    assert pace.rate == 0.08  # the paper's own rate is constant
    pace = schedule.next(pace, 10.6)  # 1.05 x the average that already holds it: 10.563
    assert pace.jumped and pace.epsilon == 0.5
    pace = schedule.next(pace, 10.5)
    assert not pace.jumped and pace.epsilon == pytest.approx(0.45)


def test_the_average_that_a_loss_is_compared_with_holds_it_already() -> None:
    """Eq. 12: 10.52 is above 1.05 times the old average, 10.5, and below 1.05 times the new one, 10.55."""
    schedule = Schedule()
    assert schedule.ema_decay == 0.9
    pace = schedule.next(schedule.start(), 10.0)
    assert not schedule.next(pace, 10.52).jumped
    assert schedule.next(pace, 10.57).jumped


def test_bounds_are_allowed_and_a_loss_at_the_threshold_is_no_jump() -> None:
    pace = Schedule(epsilon_min=0.5, decay=1.0, ema_decay=0.0, rate_min=0.08, rate_max=0.08).start()
    assert (pace.epsilon, pace.rate) == (0.5, 0.08)
    doubling = Schedule(threshold=1.25, ema_decay=0.5)
    pace = doubling.next(doubling.start(), 3.0)
    assert not doubling.next(pace, 5.0).jumped  # 5 is 1.25 times the average, 4
    with pytest.raises(FozoError):
        Schedule(decay=1.5)


def test_authors_rate_tends_to_a_third_and_falls_at_a_jump() -> None:
    pace = AUTHORS_SCHEDULE.next(AUTHORS_SCHEDULE.start(), 10.0)
    assert pace.rate == pytest.approx(0.156)
    for _ in range(50):
        pace = AUTHORS_SCHEDULE.next(pace, 10.0)
    assert pace.rate == pytest.approx(1 / 3)
    assert AUTHORS_SCHEDULE.next(pace, 100.0).rate == 0.1


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0.1},
        {"epsilon_min": 0.0},
        {"decay": 0.0},
        {"ema_decay": 1.0},
        {"threshold": 1.0},
        {"rate_min": 2.0, "rate_max": 1.0},
    ],
)
def test_refuses_senseless_values(wrong: dict[str, float]) -> None:
    with pytest.raises(FozoError):
        Schedule(**wrong)
