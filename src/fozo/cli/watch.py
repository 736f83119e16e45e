"""``fozo watch``: adapt to a camera, and say what drifts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fozo.cli.options import STATISTICS, BatchSize, Guard, Model, load_model
from fozo.engines.load import LoadOptions
from fozo.errors import FozoError

SAVED = 60.0  # seconds after which ``--state`` is written again
REFERENCE = "What fozo calibrate --monitor wrote; made from --clean if it is not there."
CLEAN = "Clean images to make --reference from; with class folders, also for accuracy."
STATE = "File to go on from if it is there, written every minute and at the end; holds a frame."

if TYPE_CHECKING:
    from rich.table import Table

    from fozo.cli.frames import Frame
    from fozo.monitor import Event, Monitor


def watch(
    model: Model,
    source: Annotated[str, "Folder of images, video file, or number of a camera."],
    load: LoadOptions,
    stats: Annotated[Path, typer.Option(help=STATISTICS)],
    reference: Annotated[Path, REFERENCE] = Path("monitor.npz"),
    clean: Annotated[Path | None, CLEAN] = None,
    events: Annotated[Path | None, "File for events and readings, as JSON lines."] = None,
    state: Annotated[Path | None, STATE] = None,
    follow: Annotated[bool, "Wait for more images in the folder."] = False,
    false_alarms: Annotated[float, "Part of clean batches that may raise an alarm."] = 1e-4,
    shadow: Annotated[float, "Part of the images that the plain model predicts too."] = 0.02,
    guard: Guard = False,
    thumbnails: Annotated[bool, "Keep a small picture with each event in --events: they may show people."] = False,
    batch_size: BatchSize = 8,
) -> None:
    """Adapt to a camera; report what drifted, since when, and the expected accuracy."""
    from rich.console import Console
    from rich.live import Live

    from fozo.cli.folder import make_reference
    from fozo.cli.frames import frames
    from fozo.data.inputs import sized_pixels
    from fozo.io import check_output, disk_errors, open_output
    from fozo.monitor import Guarded, Monitor, MonitorReference
    from fozo.public import adapter as make_adapter

    if batch_size < 1:
        raise FozoError(f"batch_size is {batch_size}; give a whole number from 1 up")
    if thumbnails and events is None:
        raise FozoError("thumbnails are written to the events file; give its name as --events")
    # The adapter's state is written last: where it exists, the monitor's does too.
    states = [] if state is None else [state.with_name(f"{state.name}.monitor"), state]
    for path in filter(None, (events, *states)):
        check_output(path)
    pictures = frames(source, follow=follow)
    adapter = make_adapter(load_model(model, load), stats)
    if not reference.exists():
        if clean is None:
            raise FozoError(
                f"there is no monitor reference {reference}; give a folder of clean images as --clean to make it, or "
                f"make it with fozo calibrate --monitor"
            )
        make_reference(adapter, clean, reference)
    now = [0.0]
    raised: list[Event] = []
    monitor = Monitor(
        MonitorReference.load(reference), false_alarms=false_alarms, shadow=shadow, thumbnails=thumbnails,
        on_event=raised.append, clock=lambda: now[0],
    ).watch(adapter)  # fmt: skip
    predictor = Guarded(adapter, monitor) if guard else adapter
    if state is not None and state.exists():
        for each, path in zip((monitor, adapter), states, strict=True):
            each.restore(path)

    def save() -> float:
        for each, path in zip((monitor, adapter), states, strict=False):
            each.save(path)
        return time.monotonic()

    saved, spec = time.monotonic(), adapter.engine.spec
    console = Console()
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    with open_output(events) if events is not None else nullcontext() as file, live or nullcontext():
        try:
            for batch in batches(pictures, batch_size):
                now[0] = batch[-1].time
                # Cropped to the model's size, unless they have it already; in gray for one channel.
                predictor(spec.normalise(sized_pixels([frame.pixels for frame in batch], spec)))
                lines = [{"type": "event", **asdict(event)} for event in raised]
                for event in raised if live is None else ():
                    print(f"image {event.image:,}: {event.name}: {event.text}", flush=True)
                raised.clear()
                if file is not None:
                    lines.append(reading(monitor))
                    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
                    with disk_errors(Path(str(events))):
                        file.write(text.encode())
                if live is not None:
                    live.update(view(monitor, source), refresh=True)
                if time.monotonic() - saved > SAVED:
                    saved = save()
        finally:
            save()
    print(f"{monitor.status.images:,} images, {len(monitor.events)} events; at the end: {monitor.sentence}")


def batches(pictures: Iterator[Frame | None], size: int) -> Iterator[list[Frame]]:
    """Batches of frames; where none is ready, what there is."""
    batch: list[Frame] = []
    for frame in pictures:
        if frame is not None:
            batch.append(frame)
        if batch and (frame is None or len(batch) == size):
            yield batch
            batch = []
    if batch:
        yield batch


def reading(monitor: Monitor) -> dict[str, object]:
    """The status after a batch, for the events file."""
    status, now = monitor.status, monitor.clock()
    line = {"type": "reading", "image": status.images, "time": now, "sentence": status.sentence}
    return {**line, "quality": status.quality, **status.metrics()}


def view(monitor: Monitor, source: str) -> Table:
    """Table for the terminal: drift, image quality, accuracy, events."""
    from rich.markup import escape
    from rich.table import Table

    status = monitor.status
    table = Table(title=f"{escape(source)}: {status.images:,} images", show_header=False, min_width=60)
    drift = status.drift
    word = "[red]drift" if drift.drift_detected else "[yellow]warning" if drift.warning_detected else "[green]none"
    table.add_row("drift", f"{word}[/] {drift.ratio:.2f} of the threshold")
    table.add_row("quality", ", ".join(status.changes) or "as calibrated")
    if status.guess is not None:
        table.add_row("guess", str(status.guess))
    for expected in (status.accuracy, status.relative_accuracy):
        if expected is not None:
            table.add_row("predictions", str(expected))
    if status.shadow is not None and status.shadow.gain is not None:
        table.add_row("adaptation", f"expected gain {100 * status.shadow.gain:+.1f} points")
    for name in status.faults:
        table.add_row("[red]camera[/]", name)
    for event in list(monitor.events)[-5:]:
        table.add_row(f"image {event.image:,}", f"{event.name}: {event.text}")
    return table
