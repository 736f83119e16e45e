"""The film of the demo: what the monitor says of a camera that goes bad, and how terminals, pipes and pages show it."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from fozo.cli import screen
from fozo.cli.demo_camera import BATCH, SCRIPT, Film, shoot, summary
from fozo.cli.demo_page import SHOWN, film_sections, scene_cells
from fozo.data import sample
from fozo.errors import FozoError
from fozo.monitor import MonitorReference

IMAGES = 48


@pytest.fixture(scope="module")
def film() -> Film:
    seen: list[int] = []
    film = shoot(IMAGES, 0, lambda film: seen.append(len(film.frames)))
    assert seen == list(range(1, len(SCRIPT) * IMAGES // BATCH + 1))
    return film


def test_the_monitor_tells_what_happens_in_the_order_of_the_script(film: Film) -> None:
    """On 48 images of each scene; which names stand beside the right one may differ."""
    events = [event for frame in film.frames for event in frame.events]
    assert events[0].name == "drift" and "like fog" in events[0].text and events[0].image == IMAGES + 1
    assert events[-1].name == "drift over" and film.frames[-1].status.sentence.startswith("no drift")
    told = " ".join(event.text for event in events)
    assert all(word in told for word in ("fog", "contrast", "motion blur", "gaussian noise"))
    assert not re.search(r"\d{4}-\d\d-\d\d", told)  # a film has no time of day
    assert [scene.domain for scene in film.scenes] == list(SCRIPT)
    assert film.scenes[0].noticed is None and all(scene.noticed is not None for scene in film.scenes[1:])


def test_accuracies_are_of_the_same_images(film: Film) -> None:
    for scene in film.scenes:
        assert scene.images == IMAGES and [frame.plain.images for frame in scene.frames] == [BATCH] * 3
        plain, adapted, expected, _, images = scene_cells(scene)
        right = sum(len(frame.plain.right) for frame in scene.frames)
        assert float(plain) == pytest.approx(100 * right / IMAGES, abs=0.06) and images == str(IMAGES)
        assert len(scene.windows) == 1  # fewer than 64 images: all of them
        ((estimate, truth),) = scene.windows
        assert float(adapted) == pytest.approx(100 * truth, abs=0.06)
        assert float(expected) == pytest.approx(100 * estimate.value, abs=0.06)
    bad = film.scenes[1:-1]
    gains = [scene.share("adapted") - scene.share("plain") for scene in bad]
    assert film.gain.value == pytest.approx(np.mean(gains)) and film.gain.side == 1
    last = film.frames[-1]
    assert film.live("plain") == 100 * sum(f.plain.correct for f in film.frames[-4:]) / 64 and last.images == 6 * IMAGES


def test_pictures_are_what_was_seen_and_read(film: Film) -> None:
    by_scene = {scene.domain: scene.frames[-1].picture for scene in film.scenes[:3]}
    clean, contrast = by_scene["clean"], by_scene["contrast"]
    assert (clean.clean == clean.camera).all() and clean.camera.shape == (28, 28, 1)
    assert contrast.camera.std() < 0.8 * contrast.clean.std() < contrast.clean.std()
    assert contrast.read.std() > 1.1 * contrast.camera.std()  # the equaliser


def test_the_summary_follows_the_numbers(film: Film) -> None:
    said = summary(film)
    assert "points more than the plain one's" in said and "4 of 4 changes" in said
    same = Film([replace(frame, adapted=frame.plain) for frame in film.frames])
    assert "level with the plain one's" in summary(same)
    worse = Film([replace(frame, adapted=frame.plain, plain=frame.adapted) for frame in film.frames])
    assert "points less than the plain one's" in summary(worse)


def test_the_page_shows_it(film: Film) -> None:
    html = film_sections(film)
    events = sum(len(frame.events) for frame in film.frames)
    assert html.count('<span class="event"') == events == html.count('<th scope="row">') - len(SCRIPT)
    assert html.count("data:image/png;base64,") == 3 * SHOWN * len(SCRIPT)
    assert "Motion blur" in html and "nan" not in html and 'src="data:' in html
    assert not re.search(r'(src|href)="(?!data:image/png)', html)


def test_a_pipe_gets_lines_and_a_terminal_a_picture(film: Film, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "PACE", 0.0)
    pipe = io.StringIO()
    with screen.Screen(Console(file=pipe, width=60)) as shown:
        for count in range(1, len(film.frames) + 1):
            shown(Film(film.frames[:count]))
    lines = pipe.getvalue().splitlines()
    assert len(lines) == 1 + sum(len(frame.events) for frame in film.frames) and "\x1b" not in pipe.getvalue()
    assert "  image 64, the monitor: drift: " in lines[1] and len(lines[1]) > 60  # a line is a line
    shown.end(film)
    assert "Gaussian noise" in pipe.getvalue() and summary(film) in pipe.getvalue().replace("\n", " ")
    terminal = io.StringIO()
    with screen.Screen(Console(file=terminal, force_terminal=True, width=80, height=24)) as shown:
        shown(film)
    assert "▀" in terminal.getvalue() and "monitor" in terminal.getvalue()
    silent = io.StringIO()
    with screen.Screen(Console(file=silent, width=60), quiet=True) as shown:
        shown(film)
    assert silent.getvalue() == ""


@pytest.mark.parametrize("height", [24, 40, 80])
def test_the_screen_fits(film: Film, height: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    lines = console.render_lines(screen.view(Film(film.frames[:10]), height), pad=False)
    assert len(lines) <= height


def test_the_bundled_reference_is_of_the_bundled_model() -> None:
    reference = MonitorReference.load(sample.MONITOR)
    assert reference.fingerprint == sample.source(sample.MODELS["float32"]).fingerprint
    assert reference.method == "align" and reference.signatures is not None
    with pytest.raises(FozoError, match="0"):
        shoot(0, 0, lambda film: None)
