"""The page of one's own images: how ``fozo adapt`` went, from its log."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from fozo.bench.report.charts import Series, line_chart
from fozo.bench.report.page import document
from fozo.cli.folder_run import FolderRun, read_folder_run, wilson
from fozo.errors import FozoError
from fozo.io import atomic_write, check_output, disk_errors

WINDOW = 256
"""Images that a point of the curves is an average over, in whole batches: fewer would show chance."""


def write_folder_page(log: Path, out: Path) -> None:
    """Write the page of a log to ``out``."""
    check_output(out)
    run = read_folder_run(log)
    if not run.batches:
        raise FozoError(f"{log} holds no batch yet; let fozo adapt finish at least one")
    with disk_errors(out), atomic_write(out) as stream:
        stream.write(folder_page(run).encode("utf-8", "backslashreplace"))


def folder_page(run: FolderRun) -> str:
    """Make the page."""
    state = "" if run.finished else " so far (it is not finished)"
    words = f"{run.images} images in {len(run.batches)} batches{state}. {run.said()}".rstrip()
    facts = "".join(
        f"<dt>{escape(str(name))}</dt><dd><code>{escape(str(value))}</code></dd>"
        for name, value in run.header.items()
        if name not in ("kind", "version")
    )
    title = f"fozo: {run.path.name}"
    return document(
        title,
        f"<header><h1>{escape(title)}</h1><p>{escape(words)}.</p></header>"
        f'<section><div class="charts">{"".join(_charts(run))}</div>'
        f"<details open><summary>Conditions</summary><dl>{facts}</dl></details></section>",
    )


def _charts(run: FolderRun) -> list[str]:
    images = np.cumsum([line.images for line in run.batches])
    charts, one = [], len(run.batches) == 1  # a single point makes no curve
    if run.correct is not None:
        hits = [line.correct or 0 for line in run.batches]
        windows = [_window(run, last) for last in range(len(run.batches))]
        counts = [(sum(hits[w]), sum(line.images for line in run.batches[w])) for w in windows]
        ends = [wilson(*each) for each in counts]
        curves = [
            Series(
                "accuracy", images.tolist(), [100 * right / seen for right, seen in counts], 1,
                low=[low for low, _ in ends], high=[high for _, high in ends],
            )
        ]  # fmt: skip
        title = f"Accuracy of the latest {WINDOW} images, with its 95 % interval"
        charts.append(line_chart(title, curves, "images", "accuracy (%)", dots=one))
    if all("shift" in line.metrics for line in run.batches):
        shift = [line.metrics["shift"] for line in run.batches]
        title = "Shift of each batch: about 1 for independent clean images, more as the world drifts"
        charts.append(line_chart(title, [Series("shift", images.tolist(), shift, 2)], "images", "shift", dots=one))
    confidence = _averages(run, [100 * line.confidence for line in run.batches])
    title = f"Mean probability of the predicted class, latest {WINDOW} images"
    curve = Series("confidence", images.tolist(), confidence, 1)
    return [*charts, line_chart(title, [curve], "images", "confidence (%)", dots=one)]


def _window(run: FolderRun, last: int) -> slice:
    """Batches up to ``last`` that hold the latest images: the fewest with at least as many as wanted."""
    first, seen = last, run.batches[last].images
    while first > 0 and seen < WINDOW:
        first -= 1
        seen += run.batches[first].images
    return slice(first, last + 1)


def _averages(run: FolderRun, values: Sequence[float]) -> list[float]:
    weights = [line.images for line in run.batches]
    windows = [_window(run, last) for last in range(len(values))]
    return [float(np.average(values[w], weights=weights[w])) for w in windows]
