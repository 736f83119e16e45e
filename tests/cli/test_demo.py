"""The demo and the files that it runs on."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from markupsafe import escape
from typer.testing import CliRunner

import fozo
from fozo.cli import app
from fozo.cli.demo_run import BATCH, SCRIPT, CameraRun, run_camera
from fozo.data import sample
from fozo.data.sets import open_images
from fozo.monitor import Reference
from tests.helpers import REPO

IMAGES = 48


@pytest.fixture(scope="module")
def camera() -> CameraRun:
    return CameraRun(list(run_camera(IMAGES, 0)))


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """What a small demo prints, and the page that it writes."""
    page = tmp_path_factory.mktemp("demo") / "page.html"
    result = CliRunner().invoke(app, ["demo", "--images", "16", "-o", str(page)])
    assert result.exit_code == 0, result.output
    assert [file.name for file in page.parent.iterdir()] == ["page.html"]
    return result.output, page.read_text()


def test_the_monitor_reports_what_happens_in_the_order_of_the_script(camera: CameraRun) -> None:
    events = [event for _, event in camera.events]
    assert events[0].name == "drift" and "like fog" in events[0].text and events[0].image == IMAGES + 1
    assert events[-1].name == "drift over" and camera.steps[-1].status.sentence.startswith("no drift")
    reported = " ".join(event.text for event in events)
    assert all(word in reported for word in ("fog", "contrast", "motion blur", "gaussian noise"))
    changes = [(event.image, event.text) for event in events if event.name == "drift changed"]
    begins = [1 + scene * IMAGES for scene in (2, 3, 4)]
    assert [image for image, _ in changes] == pytest.approx(begins, abs=4)  # fog and a loss of contrast are similar
    for (image, text), kind in zip(changes, SCRIPT[2:5], strict=True):
        assert f"drift since image {IMAGES + 1}, changed at {image}: " in text and kind.replace("_", " ") in text
    assert not re.search(r"\d{4}-\d\d-\d\d", reported)  # a demo has no time of day
    assert [scene.domain for scene in camera.scenes] == list(SCRIPT)
    assert camera.scenes[0].delay is None and all(scene.delay is not None for scene in camera.scenes[1:])


def test_accuracies_are_of_the_same_images(camera: CameraRun) -> None:
    for scene in camera.scenes:
        assert scene.images == IMAGES and [step.plain.images for step in scene.steps] == [BATCH] * 3
        plain, adapted, expected, _, images = scene.cells
        right = sum(len(step.plain.right) for step in scene.steps)
        assert float(plain) == pytest.approx(100 * right / IMAGES, abs=0.06) and images == str(IMAGES)
        assert float(adapted) == pytest.approx(100 * scene.correct("adapted") / IMAGES, abs=0.06)
        estimate = scene.steps[-1].status.accuracy  # fewer than 64 images: all of them
        assert estimate is not None and float(expected) == pytest.approx(100 * estimate.value, abs=0.06)
    gains = [100 * (scene.correct("adapted") - scene.correct("plain")) / IMAGES for scene in camera.scenes[1:-1]]
    assert camera.gain.value == pytest.approx(np.mean(gains)) and camera.gain.side == 1
    running = camera.running_accuracy("plain")
    assert len(running) == len(camera.steps) and camera.steps[-1].images == 6 * IMAGES
    assert running[-1] == 100 * sum(step.plain.correct for step in camera.steps[-4:]) / 64


def test_the_table_of_the_docs_is_what_the_demo_prints() -> None:
    """Within two of 256 images: other processors round differently."""
    page = (REPO / "docs" / "bench.md").read_text(encoding="utf-8").partition("## The demo")[2]
    rows = {name: row.split(" | ") for name, row in re.findall(r"^\| (plain|Align) \| (.*) \|$", page, re.MULTILINE)}
    scenes = CameraRun(list(run_camera(300, 0))).scenes[:5]
    for column, name in enumerate(rows):
        shown = [float(scene.cells[column]) for scene in scenes]
        assert [float(cell) for cell in rows[name]] == pytest.approx(shown, abs=0.8)


def test_the_summary_follows_the_numbers(camera: CameraRun) -> None:
    assert re.search(r"\(\+[\d.]+ points, \+[\d.]+ to \+[\d.]+ at 95 %\)", camera.summary)
    assert "4 of 4 changes" in camera.summary
    worse = CameraRun([replace(step, adapted=step.plain, plain=step.adapted) for step in camera.steps])
    assert re.search(r"\(-[\d.]+ points, -[\d.]+ to -[\d.]+ at 95 %\)", worse.summary)


def test_the_page_stands_alone_and_repeats_the_conclusions(printed: tuple[str, str]) -> None:
    out, page = printed
    said = [line for line in out.splitlines() if "Points against NoAdapt" in line]
    for line, engine in zip(said, sample.MODELS, strict=True):
        assert line.startswith(f"{engine}: ") and escape(line.removeprefix(f"{engine}: ")) in page
    events = out.count(", the monitor: ")
    assert events and page.count('<span class="event"') == events
    assert page.count("<svg") >= 3 and "Motion blur" in page and "nan" not in page
    assert "While the camera was bad" in out and "While the camera was bad" in page
    assert not re.search(r"(src|href)=\"(?!#)", page)
    assert "4096 images of the training set" in page


@pytest.mark.parametrize("images", [0, 2001])
def test_a_bad_size_is_refused(images: int, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--images", str(images), "-o", str(tmp_path / "page.html")])
    assert result.exit_code and str(images) in str(result.exception) and not list(tmp_path.iterdir())


def test_the_bundled_reference_is_of_the_bundled_model() -> None:
    reference = Reference.load(sample.MONITOR)
    assert reference.fingerprint == sample.statistics(sample.MODELS["float32"]).fingerprint
    assert reference.method == "align" and reference.signatures is not None


@pytest.mark.parametrize("kind", sample.MODELS)
def test_the_sample_is_what_it_says(kind: str) -> None:
    images = open_images(sample.IMAGES)
    engine = fozo.load_engine(sample.MODELS[kind])
    assert len(images) == 2000 and np.bincount(images.labels).tolist() == [200] * 10
    assert engine.spec.labels == images.classes and images.classes[9] == "Ankle boot"
    assert sample.statistics(sample.MODELS[kind]).fingerprint == engine.spec.fingerprint
    assert engine.spec.fingerprint.endswith("-int8d") == (kind == "INT8")
    pixels = np.stack([images.read(i)[..., :1] for i in range(0, 2000, 4)])
    right = fozo.NoAdapt(engine)(engine.spec.normalise(pixels)).argmax(axis=1) == images.labels[::4]
    assert right.mean() > 0.8  # 86 % of the whole test set; 500 images have a standard error of 1.6 points
