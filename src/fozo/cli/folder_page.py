"""The page of a folder run: how ``fozo adapt`` went, from its log."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup

from fozo.bench.report.charts import Series, line_chart
from fozo.bench.report.render import render, write_page
from fozo.cli.folder_run import FolderRun, read_folder_run, wilson
from fozo.errors import FozoError
from fozo.io import check_output

WINDOW = 256  # images that a point of the curves is an average over, in whole batches: fewer would show chance


def write_folder_page(log: Path, out: Path) -> None:
    check_output(out)
    run = read_folder_run(log)
    if not run.images:
        raise FozoError(f"{log} does not have a prediction yet; let fozo adapt finish a batch")
    write_page(out, folder_page(run))


def folder_page(run: FolderRun) -> str:
    return render("folder.html", title=f"fozo: {run.path.name}", run=run, charts=_charts(run))


def _charts(run: FolderRun) -> list[Markup]:
    batches = [line for line in run.batches if line.images]
    sizes = [line.images for line in batches]
    images, windows = np.cumsum(sizes).tolist(), latest(sizes, WINDOW)
    charts, one = [], len(sizes) == 1  # a single point makes no curve
    if run.correct is not None:
        hits = [line.correct or 0 for line in batches]
        counts = [(sum(hits[window]), sum(sizes[window])) for window in windows]
        shares = [100 * right / seen for right, seen in counts]
        low, high = zip(*(wilson(*each) for each in counts), strict=True)
        title = f"Accuracy of the latest {WINDOW} images, with its 95 % interval"
        curve = Series("accuracy", images, shares, 1, low=low, high=high)
        charts.append(line_chart(title, [curve], "images", "accuracy (%)", dots=one))
    if all("shift" in line.metrics for line in batches):
        shift = [line.metrics["shift"] for line in batches]
        title = "Shift of each batch: about 1 for independent clean images, more under drift"
        charts.append(line_chart(title, [Series("shift", images, shift, 2)], "images", "shift", dots=one))
    confidence = [100 * line.confidence for line in batches]
    means = [float(np.average(confidence[window], weights=sizes[window])) for window in windows]
    title = f"Mean probability of the predicted class, latest {WINDOW} images"
    curve = Series("confidence", images, means, 1)
    return [*charts, line_chart(title, [curve], "images", "confidence (%)", dots=one)]


def latest(sizes: Sequence[int], images: int) -> list[slice]:
    """For each batch, the fewest up to it that hold at least ``images`` images; ``sizes`` are of the batches."""
    ends = np.cumsum([0, *sizes])
    firsts = np.maximum(np.searchsorted(ends, ends[1:] - images, side="right") - 1, 0)
    return [slice(int(first), last) for last, first in enumerate(firsts, 1)]
