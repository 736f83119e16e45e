"""A camera's day as a page: what ``fozo watch --events`` wrote, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from fozo.bench.report.charts import Series, line_chart
from fozo.bench.report.page import document
from fozo.errors import FozoError
from fozo.io import atomic_write, check_output, disk_errors, open_regular, parse_json
from fozo.monitor.quality import STATISTICS
from fozo.monitor.sentences import clock
from fozo.monitor.thumbnails import check_thumbnail

LONGEST = 1 << 20
"""Bytes of a line."""
MOST = 200_000
"""Lines of a file: at 8 images a batch, more than a million images."""
SHOWN = ("brightness", "contrast", "saturation", "fine detail", "noise", "blockiness")
"""Image-quality statistics that are drawn."""
FORMER_KEYS = {
    "looks": "quality",
    **{f"accuracy_kept{end}": f"relative_accuracy{end}" for end in ("", "_low", "_high")},
}
"""Keys that older events files have."""
PICTURES = {"camera": "camera", "equalised": "equalised"}
"""Thumbnails that an event may have, and how their columns are called."""


def write_timeline(events: Path, out: Path) -> Path:
    """Write the page."""
    check_output(out)
    text = page(events.name, read_events(events))
    with disk_errors(out), atomic_write(out) as stream:
        stream.write(text.encode("utf-8", "backslashreplace"))
    return out


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read the lines; a torn last one is left out, anything else that is none of ``fozo watch`` is refused."""
    found: list[dict[str, Any]] = []
    with open_regular(path) as file:
        while line := file.readline(LONGEST):
            try:
                facts = parse_json(line)
                if facts.get("type") not in ("reading", "event") or len(found) == MOST:
                    raise ValueError("it is no reading and no event, or there are too many lines")
                if type(facts.get("image")) is not int or not isinstance(facts.get("time"), (int, float)):
                    raise ValueError("it names no image or no time")
                if facts["type"] == "event" and not all(isinstance(facts.get(key), str) for key in ("name", "text")):
                    raise ValueError("the event has no name or no text")
                for picture in dict(facts.get("thumbnails") or {}).values():
                    check_thumbnail(picture)
            except (TypeError, ValueError) as error:
                if not line.endswith(b"\n"):  # the watch was killed while it wrote
                    break
                raise FozoError(
                    f"line {len(found) + 1} of {path} is none of fozo watch's ({error}); give its --events file"
                ) from error
            found.append({FORMER_KEYS.get(key, key): value for key, value in facts.items()})
    if not any(line["type"] == "reading" for line in found):
        raise FozoError(f"{path} holds no reading; give what fozo watch --events wrote")
    return found


def page(name: str, lines: Sequence[dict[str, Any]]) -> str:
    """Make the page."""
    readings = [line for line in lines if line["type"] == "reading"]
    events = [line for line in lines if line["type"] == "event"]
    pictures = any(event.get("thumbnails") for event in events)
    heads = "".join(f'<th scope="col">{head}</th>' for head in PICTURES.values()) if pictures else ""
    rows = "".join(
        f'<tr><th scope="row">{event["image"]:,}</th><td>{escape(clock(event["time"]))}</td>'
        f"<td>{escape(event['name'])}</td><td>{escape(event['text'])}</td>{_pictures(event) if pictures else ''}</tr>"
        for event in events
    )
    table = (
        '<div class="scroll"><table><thead><tr><th scope="col">image</th><th scope="col">noticed</th>'
        f'<th scope="col">event</th><th scope="col">what</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
        if events
        else "<p>Nothing happened.</p>"
    )
    return document(
        f"fozo: {name}",
        f"<header><h1>{escape(name)}</h1><p>{readings[-1]['image']:,} images, {len(events)} events. At the end: "
        f"{escape(str(readings[-1].get('sentence', '')))}</p></header>"
        f"<section class=events><h2>Events</h2>{table}</section>"
        f'<section><h2>Readings</h2><div class="charts">{"".join(_charts(readings))}</div></section>',
    )


def _pictures(event: dict[str, Any]) -> str:
    """Cells with what the camera saw, and what the model read."""
    given = event.get("thumbnails") or {}
    image = '<img alt="{}" src="data:image/jpeg;base64,{}">'
    return "".join(
        f"<td>{image.format(escape(head), given[key]) if key in given else ''}</td>" for key, head in PICTURES.items()
    )


def _charts(readings: Sequence[dict[str, Any]]) -> list[str]:
    charts = []
    for title, key, unit in (
        ("Expected accuracy, with its 95 % interval", "expected_accuracy", "accuracy (%)"),
        ("Expected accuracy relative to clean images, with its 95 % interval", "relative_accuracy", "relative (%)"),
    ):
        expected, low, high = (_series("expected", readings, (key + end,), 100.0, 1) for end in ("", "_low", "_high"))
        if list(expected.x) == list(low.x) == list(high.x) != []:
            charts.append(line_chart(title, [replace(expected, low=low.y, high=high.y)], "images", unit))
    distance = _series("distance", readings, ("drift_distance",), 1.0, 1)
    threshold = replace(_series("threshold", readings, ("drift_threshold",), 1.0, 0), dashed=True)
    if distance.x and threshold.x:
        charts.append(line_chart("Distance from clean images", [distance, threshold], "images", "distance"))
    changes = [_series(name, readings, ("quality", name), 1.0, i) for i, name in enumerate(SHOWN)]
    if all(each.x for each in changes):
        units = "; ".join(f"{each.name}: {each.meaning}" for each in STATISTICS if each.name in SHOWN)
        title = "Change of image quality against clean images, in stops and natural logarithms"
        charts.append(line_chart(title, changes, f"images. {units}", "change"))
    return charts


def _series(label: str, readings: Sequence[dict[str, Any]], keys: tuple[str, ...], scale: float, colour: int) -> Series:
    """One number of all readings that have it; ``keys`` leads to it."""
    points = []
    for line in readings:
        value: Any = line
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, (int, float)):
            points.append((float(line["image"]), scale * float(value)))
    return Series(label, [x for x, _ in points], [y for _, y in points], colour)
