"""The page of ``fozo demo``: a timeline with the monitor's events, pictures, scenes, and every method's table."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from fozo.bench.report.charts import Series, Span, line_chart
from fozo.bench.report.colours import COLOURS
from fozo.bench.report.page import chapters
from fozo.bench.report.pictures import picture
from fozo.bench.report.render import render
from fozo.bench.report.tables import full_name
from fozo.bench.store import Group
from fozo.cli.demo_camera import HEADINGS, LATEST, SEVERITY, CameraRun

PLAIN, ALIGN = list(COLOURS).index("NoAdapt"), list(COLOURS).index("Align")
EXPECTED = len(COLOURS)
PICTURES = 3  # images of each scene: the last of its last batches, whether recognised or not


def demo_page(camera: CameraRun, groups: Mapping[str, Group], quantised: str) -> str:
    return render(
        "demo.html",
        title="fozo: a camera goes bad",
        camera=camera,
        timeline=timeline(camera),
        headings=HEADINGS,
        severity=SEVERITY,
        picture=picture,
        pictures=PICTURES,
        chapters=chapters(groups),
        quantised=quantised,
    )


def timeline(camera: CameraRun) -> Markup:
    """Draw the accuracies, true and expected, with the scenes' names below and the events' numbers above."""
    x = [step.images for step in camera.steps]
    expected = [(step.images, e) for step in camera.steps if (e := step.status.accuracy) is not None]
    series = [
        Series(
            "expected by the monitor, with its 95 % interval",
            [images for images, _ in expected],
            [100 * e.value for _, e in expected],
            EXPECTED,
            dashed=True,
            low=[100 * e.low for _, e in expected],
            high=[100 * e.high for _, e in expected],
        ),
        Series("plain model", x, camera.running_accuracy("plain"), PLAIN),
        Series("adapted (Align)", x, camera.running_accuracy("adapted"), ALIGN),
    ]
    spans = [Span(s.first - 1, s.first - 1 + s.images, full_name(s.domain)) for s in camera.scenes]
    events = [(event.image, str(number)) for number, (_, event) in enumerate(camera.events, 1)]
    title = f"Accuracy of the latest {LATEST} images, and what the monitor expects without labels"
    return line_chart(title, series, "", "accuracy (%)", spans=spans, events=events)
