"""Cameras that stand still, on made frames: a picture of large shapes with sensor noise, to which something happens."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

import fozo
from fozo.data.images import Pixels
from fozo.engines.blackbox import black_box
from fozo.errors import FozoError
from fozo.types import Array

SIDE = 64


def scene(seed: int) -> Array:
    """A picture of shapes of many sizes, ``[64, 64, 3]`` in [0, 1]."""
    rng = np.random.default_rng(seed)
    layers = [np.kron(rng.random((SIDE // size, SIDE // size, 3)), np.ones((size, size, 1))) for size in (2, 4, 8, 16)]
    return np.asarray(0.15 + 0.7 * np.mean(layers, axis=0))


def frames(pictures: Any, seed: int = 0) -> Pixels:
    """Give each picture its own noise."""
    rng = np.random.default_rng(seed)
    noisy = [np.clip(picture + rng.normal(0, 0.01, (SIDE, SIDE, 1)), 0, 1) for picture in pictures]
    return np.asarray(255 * np.stack(noisy) + 0.5).astype(np.uint8)


def with_lorries(count: int, seed: int) -> Iterator[Array]:
    """A fixed scene under clouds of 6 percent, with things of a fifth of it that cross it now and then."""
    rng = np.random.default_rng(seed)
    light = 1 + 0.06 * np.sin(np.arange(count) / 25)
    for number in range(count):
        picture = scene(0) * light[number]
        step = number % 90
        if step < 15:
            left = int((SIDE + 28) * step / 15) - 28
            picture[30:58, max(left, 0) : max(left + 28, 0)] = rng.random(3)
        yield picture


class Camera:
    """A monitor of a detector, which is fed frame by frame."""

    def __init__(self, clean: Pixels, **options: Any) -> None:
        self.adapter = fozo.adapter(black_box(len, name="eyes", image_size=(SIDE, SIDE), mean=0, std=1), clean)
        reference = fozo.Reference.collect(self.adapter, clean, corruptions=False)
        self.seconds = itertools.count()
        self.monitor = fozo.Monitor(reference, clock=lambda: float(next(self.seconds)), **options).watch(self.adapter)

    def see(self, pictures: Any, seed: int = 1) -> list[tuple[str, int]]:
        """Show it pictures; return the events."""
        before = len(self.monitor.events)
        for frame in frames(pictures, seed):
            self.adapter(frame[None])
        return [(event.name, event.image) for event in self.monitor.events[before:]]


@pytest.fixture
def camera() -> Camera:
    return Camera(frames(with_lorries(60, 7)))


def test_a_fixed_camera_under_clouds_with_traffic_has_no_event(camera: Camera) -> None:
    assert camera.see(with_lorries(400, 1)) == []


def test_it_is_judged_against_its_own_past_where_the_reference_is_of_others() -> None:
    camera = Camera(frames([scene(seed) for seed in range(40, 100)]))
    assert camera.see([scene(0)] * 60) == []
    ((name, image),) = camera.see([scene(0) * 0.5] * 40)
    assert name == "drift" and abs(image - 61) <= 2
    assert camera.monitor.status.changes[0].statistic == "brightness"


def test_dusk_is_one_episode_that_ends_with_the_day(camera: Camera) -> None:
    """It was dated 27 frames before it began, over after one image, and noticed again."""
    camera.see(with_lorries(60, 1))
    night = [scene(0) * 2 ** (-stops / 2.2) for stops in np.linspace(0, 4, 40)]
    ((name, began),) = camera.see(night)
    assert name == "drift" and 61 <= began <= 80
    assert camera.see([night[-1]] * 60) == [] and camera.monitor.drift.is_drift
    ((name, ended),) = camera.see(with_lorries(60, 2))
    assert name == "drift over" and ended <= 160 + 60


def test_dirt_is_said_with_its_place_and_ends_with_wiping(camera: Camera) -> None:
    camera.see(with_lorries(60, 1))
    picture = scene(0)
    picture[:24, :24] = 0.6 * gaussian_filter(picture, (4, 4, 0))[:24, :24] + 0.1
    ((name, began),) = camera.see([picture] * 60)
    assert name == "dirty" and began <= 60 + 40
    assert camera.monitor.status.faults == ("dirty",)
    assert "dirt or drops on the lens, upper left" in camera.monitor.sentence
    ((name, ended),) = camera.see([scene(0)] * 60)
    assert name == "dirty over" and ended <= 120 + 60


def test_a_sky_that_burns_out_is_not_dirt() -> None:
    """Clouds went from in front of the sun: a third of the picture is white, and has lost its noise."""

    def sky(level: float) -> Array:
        picture = scene(0)
        picture[:20] = level
        return picture

    camera = Camera(frames([sky(0.93)] * 60))
    assert camera.see([sky(0.93)] * 80) == []
    assert camera.see([sky(1.0)] * 60) == []


def test_defocus_is_noticed(camera: Camera) -> None:
    camera.see([scene(0)] * 40)
    ((name, began),) = camera.see([gaussian_filter(scene(0), (1.5, 1.5, 0))] * 20)
    assert name == "drift" and abs(began - 41) <= 3 and "detail -" in camera.monitor.sentence


def moved(camera: Camera) -> None:
    camera.see([scene(0)] * 60)
    ((name, began),) = camera.see([scene(1)] * 20)
    assert name == "turned" and 61 <= began <= 75 and camera.monitor.status.faults == ("turned",)


def test_a_moved_camera_gets_a_new_view_and_forgets_nothing(camera: Camera, tmp_path: Path) -> None:
    moved(camera)
    camera.monitor.accept()
    assert [name for name, _ in camera.see([scene(1)] * 60)] == ["turned over"]
    assert camera.see([scene(0)] * 40) == []  # the old view is known still
    camera.adapter.save(tmp_path / "state")
    ((name, _),) = camera.see([scene(1) * 0.5] * 30)
    assert name == "drift"
    camera.adapter.restore(tmp_path / "state")
    assert not camera.monitor.drift.is_drift and camera.monitor.status.images == 180
    with pytest.raises(FozoError, match="seen or expected, not 'no'"):
        camera.monitor.mark("no")


def test_a_new_view_is_clean_by_itself_after_a_while() -> None:
    camera = Camera(frames([scene(0)] * 60), new_view=50.0)
    moved(camera)
    assert [name for name, _ in camera.see([scene(1)] * 60)] == ["turned over"]


def test_what_is_expected_is_clean_from_then_on(camera: Camera) -> None:
    camera.see([scene(0)] * 40)
    ((_, image),) = camera.see([scene(0) * 0.6] * 30)
    camera.monitor.mark("seen", image)
    assert [event.mark for event in camera.monitor.events] == ["seen"] and camera.monitor.drift.is_drift
    camera.monitor.mark("expected")
    assert [name for name, _ in camera.see([scene(0) * 0.6] * 40)] == ["drift over"]
    assert camera.see([scene(0)] * 40) == []


def test_scenes_of_a_tour_that_were_in_the_clean_video_are_clean() -> None:
    stops = [scene(seed) for seed in range(4) for _ in range(24)]
    camera = Camera(frames(stops))
    assert camera.see(stops * 3) == []
    foggy = [0.4 * picture + 0.6 * 0.85 for picture in stops]
    ((name, began),) = camera.see(foggy)
    assert name == "drift" and 289 <= began <= 300
    assert camera.see(stops * 2)[0][0] == "drift over"
    images = [event.image for event in camera.monitor.events]
    assert images == sorted(images)


def test_fog_on_a_tour_is_one_episode_that_lasts_as_long_as_the_fog() -> None:
    """Frames on the way between views ended it, since they counted and those at views did not."""
    panorama = np.concatenate([scene(seed) for seed in (0, 1, 2, 3, 0)], axis=1)
    lefts = [SIDE * stop + max(step - 19, 0) * 12 for stop in range(4) for step in range(24)]
    tour = [panorama[:, left : left + SIDE] for left in lefts]
    camera = Camera(frames(tour * 2))
    assert camera.see(tour * 2) == []
    ((name, _),) = camera.see([0.4 * picture + 0.6 * 0.85 for picture in tour * 2])
    assert name == "drift" and camera.monitor.drift.is_drift
    ((name, ended),) = camera.see(tour)
    assert name == "drift over" and 384 < ended <= 384 + 60


def test_an_hour_that_is_known_to_be_clean_is_learnt() -> None:
    """A day of four stops in 200 frames, which the reference has not seen."""
    camera = Camera(frames([scene(0)] * 60), learn=400.0)
    days = [scene(0) * 2 ** (-2 * (1 - np.cos(2 * np.pi * number / 200)) / 2.2) for number in range(600)]
    assert camera.see(days) == []
    assert camera.see([gaussian_filter(days[0], (2, 2, 0))] * 30)[0][0] == "drift"


def test_a_belt_after_a_freeze_has_no_fault_but_the_freeze() -> None:
    """Frozen frames were taken for a settled scene: the camera then counted as turned, again and again."""
    rng = np.random.default_rng(3)
    strip = np.concatenate([scene(int(seed)) for seed in rng.integers(500, size=12)], axis=1)
    belt = [strip[:, 3 * number % 640 :][:, :SIDE] for number in range(200)]
    camera = Camera(frames(belt))
    events = camera.see(belt[:60])
    still = frames(belt[59:60])
    for _ in range(20):
        camera.adapter(still)
    events = camera.see(belt[60:180])
    assert [event.name for event in camera.monitor.events if event.name != "drift"][:2] == ["frozen", "frozen over"]
    assert events == [("frozen over", 81)] and camera.monitor.status.faults == ()
