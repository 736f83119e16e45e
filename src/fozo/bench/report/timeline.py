"""A camera's day as a page: what ``fozo watch --events`` wrote, drawn."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fozo.bench.report.render import Series, line_chart, render, write_page
from fozo.errors import FozoError
from fozo.io import check_output, open_regular, parse_json
from fozo.monitor.monitor import clock
from fozo.monitor.quality import STATISTICS
from fozo.monitor.state import check_thumbnail

MAX_LINE = 1 << 20  # bytes of a line
MAX_LINES = 200_000  # lines of a file: at 8 images a batch, more than a million images
DRAWN = ("brightness", "contrast", "saturation", "fine detail", "noise", "blockiness")  # of image quality
THUMBNAILS = ("camera", "equalised")  # pictures that an event may have: what the camera saw, and what the model read


def write_timeline(events: Path, out: Path) -> Path:
    check_output(out)
    write_page(out, page(events.name, read_events(events)))
    return out


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read the lines; a torn last one is left out, any other damage is refused."""
    found: list[dict[str, Any]] = []
    with open_regular(path) as file:
        while line := file.readline(MAX_LINE):
            try:
                payload = parse_json(line)
                if payload.get("type") not in ("reading", "event") or len(found) == MAX_LINES:
                    raise ValueError("it is neither a reading nor an event, or there are too many lines")
                if type(payload.get("image")) is not int or not isinstance(payload.get("time"), (int, float)):
                    raise ValueError("it lacks the image or the time")
                if payload["type"] == "event" and not all(
                    isinstance(payload.get(key), str) for key in ("name", "text")
                ):
                    raise ValueError("the event lacks a name or a text")
                for picture in dict(payload.get("thumbnails") or {}).values():
                    check_thumbnail(picture)
            except (TypeError, ValueError) as error:
                if not line.endswith(b"\n"):  # the watch was killed while it wrote
                    break
                raise FozoError(
                    f"line {len(found) + 1} of {path} was not written by fozo watch ({error}); give its --events file"
                ) from error
            found.append(payload)
    if not any(line["type"] == "reading" for line in found):
        raise FozoError(f"{path} holds no reading; give what fozo watch --events wrote")
    return found


def page(name: str, lines: Sequence[dict[str, Any]]) -> str:
    readings = [line for line in lines if line["type"] == "reading"]
    events = [line for line in lines if line["type"] == "event"]
    return render(
        "timeline.html",
        title=f"fozo: drift and expected accuracy, {name}",
        name=name,
        images=readings[-1]["image"],
        sentence=str(readings[-1].get("sentence", "")),
        events=events,
        thumbnails=THUMBNAILS if any(event.get("thumbnails") for event in events) else (),
        clock=clock,
        charts=_charts(readings),
    )


def _charts(readings: Sequence[dict[str, Any]]) -> list[Markup]:
    charts = []
    for title, key, unit in (
        ("Expected accuracy, with its 95 % interval", "expected_accuracy", "accuracy (%)"),
        ("Expected accuracy relative to clean images, with its 95 % interval", "relative_accuracy", "relative (%)"),
    ):
        expected, low, high = (_series("expected", readings, (key + end,), 100.0, 1) for end in ("", "_low", "_high"))
        if list(expected.x) == list(low.x) == list(high.x) != []:
            charts.append(line_chart(title, [replace(expected, low=low.y, high=high.y)], "images", unit))
    ratio = _series("distance over threshold", readings, ("drift_ratio",), 1.0, 1)
    if ratio.x:
        threshold = replace(ratio, label="threshold", y=[1.0] * len(ratio.x), colour=0, dashed=True)
        charts.append(
            line_chart("Distance from clean images over its threshold", [ratio, threshold], "images", "ratio")
        )
    changes = [_series(name, readings, ("quality", name), 1.0, i) for i, name in enumerate(DRAWN)]
    if all(each.x for each in changes):
        units = "; ".join(f"{each.name}: {each.meaning}" for each in STATISTICS if each.name in DRAWN)
        title = "Change of image quality against clean images, in stops and natural logarithms"
        charts.append(line_chart(title, changes, f"images. {units}", "change"))
    return charts


def _series(label: str, readings: Sequence[dict[str, Any]], keys: tuple[str, ...], scale: float, colour: int) -> Series:
    points = []
    for line in readings:
        value: Any = line
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, (int, float)):
            points.append((float(line["image"]), scale * float(value)))
    return Series(label, [x for x, _ in points], [y for _, y in points], colour)
