"""``fozo watch``: adapt to a camera, and say what drifts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fozo.cli.options import STATISTICS, BatchSize, Guard, Model, Mqtt, SecretFile, Webhook, load_model
from fozo.engines.load import LoadOptions
from fozo.errors import FozoError, check_counts

SAVE_SECONDS = 60.0  # seconds after which ``--state`` is written again
REFERENCE = "What fozo calibrate --reference wrote; made from --clean if it is not there."
CLEAN = "Clean images, or a video, to make --statistics and --reference from; with class folders, also for accuracy."
FIRST = "Of a video as --clean, the part that is clean: 60s, 5min; all by default."
STATE = "File to go on from if it is there, written every minute and at the end; holds a frame."

if TYPE_CHECKING:
    from rich.table import Table

    from fozo.cli.folder import Frame
    from fozo.methods.method import Method
    from fozo.monitor import Event, Monitor, Status


def watch(
    model: Model,
    source: Annotated[str, "Folder of images, video file, rtsp:// or http:// address, or number of a camera."],
    load: LoadOptions,
    statistics: Annotated[Path, STATISTICS + " Made from --clean if it is not there."] = Path("statistics.safetensors"),
    reference: Annotated[Path, REFERENCE] = Path("reference.safetensors"),
    clean: Annotated[Path | None, CLEAN] = None,
    first: Annotated[str | None, FIRST] = None,
    events: Annotated[Path | None, "File for events and readings, as JSON lines."] = None,
    state: Annotated[Path | None, STATE] = None,
    follow: Annotated[bool, "Wait for more images in the folder."] = False,
    false_alarms: Annotated[float, "Part of clean batches that may raise an alarm."] = 1e-4,
    shadow: Annotated[float, "Part of the images that the plain model predicts too."] = 0.02,
    learn: Annotated[float, "Seconds from the first image that are known to be clean."] = 0.0,
    guard: Guard = False,
    thumbnails: Annotated[bool, "Keep a small picture with each event in --events: they may show people."] = False,
    webhook: Webhook = None,
    mqtt: Mqtt = None,
    secret_file: SecretFile = None,
    batch_size: BatchSize = 8,
) -> None:
    """Adapt to a camera; report what drifted, since when, and the expected accuracy."""
    import numpy as np
    from rich.console import Console
    from rich.live import Live

    from fozo.cli.folder import clean_frames, frames, make_reference
    from fozo.cli.models import calibrate
    from fozo.data.inputs import sized_pixels
    from fozo.data.videos import shown
    from fozo.io import check_output, disk_errors, open_output, read_text
    from fozo.io.notices import Notices
    from fozo.monitor import Guarded, Monitor, Reference
    from fozo.public import adapter as make_adapter

    check_counts(batch_size=batch_size)
    if thumbnails and events is None:
        raise FozoError("thumbnails are written to the events file; give its name as --events")
    for path in filter(None, (events, state)):
        check_output(path)
    secret = b"" if secret_file is None else read_text(secret_file).strip().encode()
    notices = Notices.open(webhook or (), mqtt, secret)
    pictures = frames(source, follow=follow)
    missing = [path for path in (statistics, reference) if not path.exists()]
    if missing and clean is None:
        what = "monitor reference" if missing[0] == reference else "file of statistics"
        raise FozoError(
            f"there is no {what} {missing[0]}; give clean images or a video as --clean to make it, or make it with "
            f"fozo calibrate --reference"
        )
    if statistics in missing and clean is not None:
        calibrate(
            model, clean, load, out=statistics, reference=reference if reference in missing else None, first=first
        )
    engine = load_model(model, load)
    adapter = make_adapter(engine, statistics)
    if missing == [reference] and clean is not None:
        make_reference(adapter, clean_frames(clean, first, engine.spec) if clean.is_file() else clean, reference)
    now = np.zeros(1)  # times of the images of a batch
    raised: list[Event] = []
    monitor = Monitor(
        Reference.load(reference), false_alarms=false_alarms, shadow=shadow, thumbnails=thumbnails,
        on_event=raised.append, clock=lambda: now, learn=learn,
    )  # fmt: skip
    predictor: Method[Any, Any] = Guarded(adapter, monitor) if guard else adapter
    if not guard:
        monitor.watch(adapter)
    if state is not None and state.exists():
        predictor.restore(state)

    def save() -> float:
        if state is not None:
            predictor.save(state)
        return time.monotonic()

    saved = time.monotonic()
    console = Console()
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    with closing(notices), open_output(events) if events is not None else nullcontext() as file, live or nullcontext():
        try:
            for batch in batches(pictures, batch_size):
                now = np.array([frame.time for frame in batch])
                # Cropped to the model's size, unless they have it already; in gray for one channel.
                pixels = sized_pixels([frame.pixels for frame in batch], engine.spec)
                predictor(engine.spec.normalise(pixels))
                lines = [{"type": "event", **asdict(event)} for event in raised]
                for event in raised if live is None else ():
                    print(f"image {event.image:,}: {event.name}: {event.text}", flush=True)
                for event in raised:
                    notices.send(Path(model).stem, shown(source), event.as_dict())
                raised.clear()
                if file is not None:
                    lines.append(reading(monitor.status, batch[-1].time))
                    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
                    with disk_errors(Path(str(events))):
                        file.write(text.encode())
                if live is not None:
                    live.update(view(monitor, shown(source)), refresh=True)
                if time.monotonic() - saved > SAVE_SECONDS:
                    saved = save()
        finally:
            save()
    print(f"{monitor.status.images:,} images, {len(monitor.events)} events; at the end: {monitor.sentence}")


def batches(pictures: Iterator[Frame | None], size: int) -> Iterator[list[Frame]]:
    batch: list[Frame] = []
    for frame in pictures:
        if frame is not None:
            batch.append(frame)
        if batch and (frame is None or len(batch) == size):
            yield batch
            batch = []
    if batch:
        yield batch


def reading(status: Status, time: float) -> dict[str, object]:
    line = {"type": "reading", "image": status.images, "time": time, "sentence": status.sentence}
    return {**line, "quality": status.quality, **status.metrics()}


def view(monitor: Monitor, source: str) -> Table:
    from rich.markup import escape
    from rich.table import Table

    status = monitor.status
    table = Table(title=f"{escape(source)}: {status.images:,} images", show_header=False, min_width=60)
    drift = status.drift
    word = "[green]none"
    if drift.drift_detected:
        word = "[red]drift"
    elif drift.warning_detected:
        word = "[yellow]warning"
    table.add_row("drift", f"{word}[/] {drift.ratio:.2f} of the threshold")
    table.add_row("now", escape(status.sentence))
    if status.shadow is not None and status.shadow.gain is not None:
        table.add_row("adaptation", f"expected gain {100 * status.shadow.gain:+.1f} points")
    for event in monitor.events[-5:]:
        table.add_row(f"image {event.image:,}", f"{event.name}: {event.text}")
    return table
