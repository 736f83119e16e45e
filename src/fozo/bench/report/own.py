"""The page of one's own images: how ``fozo adapt`` went, from its log."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

import numpy as np

from fozo.bench.own import OwnRun, read_own, wilson
from fozo.bench.report.charts import Series, line_chart
from fozo.errors import FozoError
from fozo.io import atomic_write, check_output, disk_errors

WINDOW = 256
"""Images that a point of the curves is an average over, in whole batches: fewer would show chance."""


def write_own_report(log: Path, out: Path) -> None:
    """Write the page of a log to ``out``."""
    check_output(out)
    run = read_own(log)
    if not run.batches:
        raise FozoError(f"{log} holds no batch yet; let fozo adapt finish at least one")
    with disk_errors(out), atomic_write(out) as stream:
        stream.write(own_page(run).encode("utf-8", "backslashreplace"))


def own_page(run: OwnRun) -> str:
    """Make the page."""
    style = files("fozo.bench.report").joinpath("report.css").read_text(encoding="utf-8")
    state = "" if run.finished else " so far (it is not finished)"
    words = f"{run.images} images in {len(run.batches)} batches{state}. {run.said()}".rstrip()
    facts = "".join(
        f"<dt>{escape(str(name))}</dt><dd><code>{escape(str(value))}</code></dd>"
        for name, value in run.header.items()
        if name not in ("kind", "version")
    )
    title = f"fozo: {escape(run.path.name)}"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{title}</title><style>{style}</style></head><body><main>"
        f"<header><h1>{title}</h1><p>{escape(words)}.</p></header>"
        f'<section><div class="charts">{"".join(_charts(run))}</div>'
        f"<details open><summary>Conditions</summary><dl>{facts}</dl></details></section></main></body></html>\n"
    )


def _charts(run: OwnRun) -> list[str]:
    images = np.cumsum([line.images for line in run.batches])
    charts = []
    if run.correct is not None:
        hits = [line.correct or 0 for line in run.batches]
        windows = [_window(run, last) for last in range(len(run.batches))]
        counts = [(sum(hits[w]), sum(line.images for line in run.batches[w])) for w in windows]
        ends = [wilson(*each) for each in counts]
        curves = [
            Series("accuracy", images.tolist(), [100 * right / seen for right, seen in counts], 0),
            Series("95 % interval, low", images.tolist(), [low for low, _ in ends], 7, dashed=True),
            Series("95 % interval, high", images.tolist(), [high for _, high in ends], 7, dashed=True),
        ]
        charts.append(line_chart(f"Accuracy of the latest {WINDOW} images", curves, "images", "accuracy (%)"))
    if all("shift" in line.metrics for line in run.batches):
        shift = [line.metrics["shift"] for line in run.batches]
        title = "Shift of each batch: about 1 for independent clean images, more as the world drifts"
        charts.append(line_chart(title, [Series("shift", images.tolist(), shift, 1)], "images", "shift"))
    confidence = _averages(run, [100 * line.confidence for line in run.batches])
    title = f"Mean probability of the predicted class, latest {WINDOW} images"
    curve = Series("confidence", images.tolist(), confidence, 2)
    return [*charts, line_chart(title, [curve], "images", "confidence (%)")]


def _window(run: OwnRun, last: int) -> slice:
    """Batches up to ``last`` that hold the latest images: the fewest with at least as many as wanted."""
    first, seen = last, run.batches[last].images
    while first > 0 and seen < WINDOW:
        first -= 1
        seen += run.batches[first].images
    return slice(first, last + 1)


def _averages(run: OwnRun, values: Sequence[float]) -> list[float]:
    weights = [line.images for line in run.batches]
    windows = [_window(run, last) for last in range(len(values))]
    return [float(np.average(values[w], weights=weights[w])) for w in windows]
