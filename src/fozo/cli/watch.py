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

from fozo.cli.options import Model
from fozo.engines.load import LoadOptions, load_engine
from fozo.errors import FozoError

SAVED = 60.0
"""Seconds after which ``--state`` is written again."""

if TYPE_CHECKING:
    from rich.table import Table

    from fozo.cli.frames import Frame
    from fozo.methods.registry import AnyMethod
    from fozo.monitor import Event, Monitor, Status
    from fozo.types import Floats, Spec


def watch(
    model: Model,
    source: Annotated[str, typer.Argument(help="Folder of images, video file, or number of a camera.")],
    load: LoadOptions,
    stats: Annotated[Path, typer.Option(help="What fozo calibrate wrote.")],
    reference: Annotated[
        Path, typer.Option(help="What fozo calibrate --monitor wrote; made from --clean if it is not there.")
    ] = Path("monitor.npz"),
    clean: Annotated[
        Path | None, typer.Option(help="Clean images to make --reference from; with class folders, also for accuracy.")
    ] = None,
    events: Annotated[Path | None, typer.Option(help="File for events and readings, as JSON lines.")] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="File to go on from if it is there, written every minute and at the end; holds a frame."),
    ] = None,
    follow: Annotated[bool, typer.Option(help="Wait for more images in the folder.")] = False,
    false_alarms: Annotated[float, typer.Option(help="Part of clean batches that may raise an alarm.")] = 1e-4,
    shadow: Annotated[float, typer.Option(help="Part of the images that the plain model predicts too.")] = 0.02,
    guard: Annotated[bool, typer.Option(help="Use the plain model while adaptation hurts.")] = False,
    thumbnails: Annotated[
        bool, typer.Option(help="Keep a small picture with each event in --events: they may show people.")
    ] = False,
    batch_size: Annotated[int, typer.Option(help="Images in a batch.")] = 8,
) -> None:
    """Adapt to a camera; report what drifted, since when, and the expected accuracy."""
    from rich.console import Console
    from rich.live import Live

    from fozo.cli.folder import make_reference, read_reference
    from fozo.cli.frames import frames
    from fozo.io import check_output, disk_errors, open_output
    from fozo.monitor import Guarded, Monitor
    from fozo.public import adapter as make_adapter

    if batch_size < 1:
        raise FozoError(f"batch_size is {batch_size}; give a whole number from 1 up")
    if thumbnails and events is None:
        raise FozoError("thumbnails are written to the events file; give its name as --events")
    for path in (events, *states(state)):
        if path is not None:
            check_output(path)
    pictures = frames(source, follow=follow)
    adapter = make_adapter(load_engine(model, load), stats)
    if clean is None or reference.exists():
        made = read_reference(reference)
    else:
        made = make_reference(adapter, clean, reference)
    now = [0.0]
    raised: list[Event] = []
    monitor = Monitor(
        made, false_alarms=false_alarms, shadow=shadow, thumbnails=thumbnails, on_event=raised.append,
        clock=lambda: now[0],
    ).watch(adapter)  # fmt: skip
    predictor = Guarded(adapter, monitor) if guard else adapter
    if state is not None and state.exists():
        own, beside = states(state)
        adapter.restore(own)
        monitor.restore(beside)
    saved = time.monotonic()
    console = Console()
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    with open_output(events) if events is not None else nullcontext() as file, live or nullcontext():
        try:
            for batch in batches(pictures, batch_size):
                now[0] = batch[-1].time
                predictor(prepared(batch, adapter.engine.spec))
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
                    save_states(adapter, monitor, state)
                    saved = time.monotonic()
        finally:
            save_states(adapter, monitor, state)
    print(f"{monitor.status.images:,} images, {len(monitor.events)} events; at the end: {monitor.sentence}")


def states(state: Path | None) -> list[Path]:
    """State files: the adapter's, and the monitor's beside it."""
    return [] if state is None else [state, state.with_name(f"{state.name}.monitor")]


def save_states(adapter: AnyMethod, monitor: Monitor, state: Path | None) -> None:
    """Write both states; the adapter's last, so that where it exists, the other does too."""
    if state is not None:
        own, beside = states(state)
        monitor.save(beside)
        adapter.save(own)


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


def prepared(batch: list[Frame], spec: Spec) -> Floats:
    """Frames as the model reads them: of its size (cropped, unless they have it already), in gray for one channel."""
    from fozo.data.inputs import sized_pixels

    return spec.normalise(sized_pixels([frame.pixels for frame in batch], spec))


def reading(monitor: Monitor) -> dict[str, object]:
    """The status after a batch, for the events file."""
    status, now = monitor.status, monitor.clock()
    line = {"type": "reading", "image": status.images, "time": now, "sentence": status.sentence}
    return {**line, "quality": status.quality, **status.metrics()}


def view(monitor: Monitor, source: str) -> Table:
    """Table for the terminal: drift, image quality, accuracy, events."""
    from rich.markup import escape
    from rich.table import Table

    status: Status = monitor.status
    table = Table(title=f"{escape(source)}: {status.images:,} images", show_header=False, min_width=60)
    drift = status.drift
    colour = "red" if drift.drift_detected else "yellow" if drift.warning_detected else "green"
    word = "drift" if drift.drift_detected else "warning" if drift.warning_detected else "none"
    table.add_row("drift", f"[{colour}]{word}[/] distance {drift.distance:.2f} of {drift.threshold:.2f}")
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
