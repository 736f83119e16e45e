"""The film of ``fozo demo`` on a terminal: live on a screen, plain lines into a pipe."""

from __future__ import annotations

import time
from types import TracebackType

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fozo.bench.report.tables import full_name
from fozo.cli.demo_camera import SCRIPT, SEVERITY, Film, Frame, summary, untimed
from fozo.cli.demo_page import CELLS, scene_cells
from fozo.data.images import Pixels

PACE = 0.22
"""Seconds that a frame stays on a screen, at least: a film of half a minute, that can be read. Pipes do not wait."""
WIDTH = 26
"""Characters of a bar."""
LEAST = 30
"""Lines that a screen has to have for empty lines and events."""


class Screen:
    """Shows the film: a callable for :func:`fozo.cli.demo_camera.shoot`."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        drawn = console.is_terminal and console.encoding.startswith("utf")  # blocks are no letters of other encodings
        self._live = Live(console=console, auto_refresh=False, transient=True) if drawn else None
        self._last = time.monotonic()

    def __enter__(self) -> Screen:
        """Begin."""
        if self._live is not None and not self.quiet:
            self._live.start()
        else:
            self._line(f"A camera goes bad, {' -> '.join(full_name(k).lower() for k in SCRIPT)}:")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the screen as it was."""
        self.close()

    def end(self, film: Film) -> None:
        """Show what came of it."""
        self.close()
        print_film(film, self.console)

    def close(self) -> None:
        """Take the picture off the screen."""
        if self._live is not None and self._live.is_started:
            self._live.stop()

    def _line(self, text: str) -> None:
        if not self.quiet:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def __call__(self, film: Film) -> None:
        """Show the last frame."""
        frame = film.frames[-1]
        if self._live is not None and self._live.is_started:
            self._live.update(view(film, self.console.height), refresh=True)
            time.sleep(max(0.0, self._last + PACE - time.monotonic()))
            self._last = time.monotonic()
            return
        for event in frame.events:
            self._line(f"  image {frame.images:,}, the monitor: {event.name}: {event.text}")


def view(film: Film, height: int) -> RenderableType:
    """The screen: scenes, two pictures, live accuracies, the monitor's words, and events as far as there is room."""
    frame = film.frames[-1]
    styles = ["" if place < frame.scene else "dim" for place in range(len(SCRIPT))]
    styles[frame.scene] = "bold reverse"
    names = (Text(full_name(kind).lower(), style) for kind, style in zip(SCRIPT, styles, strict=True))
    pictures = Table.grid(padding=(0, 3))
    pictures.add_row(Text("the camera sees", "dim"), Text("the model reads", "dim"))
    pictures.add_row(blocks(frame.picture.camera), blocks(frame.picture.read))
    told = [(each.images, event) for each in film.frames for event in each.events]
    gap = [Text()] if height >= LEAST else []
    last = told[len(told) - min(len(told), max(0, height - LEAST) // 2) :]
    events = [Text(f"image {seen:,}: {event.name}: {event.text}", "dim") for seen, event in last]
    shown: list[RenderableType] = [Text(" > ").join(names), *gap, pictures, *gap, _bars(film), *gap, _words(frame)]
    return Panel(Group(*shown, *gap, *events), title=f"image {frame.images:,}", title_align="left")


def _bars(film: Film) -> Table:
    """Accuracies of the latest images: of the plain model, of the adapted one, and the one that is expected of it."""
    bars, expected = Table.grid(padding=(0, 1)), film.frames[-1].status.accuracy
    rows = [("plain model", film.live("plain"), "bright_black", ""), ("adapted", film.live("adapted"), "blue", "")]
    if expected is not None:
        note = f"({100 * expected.low:.0f} to {100 * expected.high:.0f}, without labels)"
        rows.append(("expected", 100 * expected.value, "cyan", note))
    for name, value, style, note in rows:
        full = round(WIDTH * value / 100)
        bar = Text("█" * full, style) + Text("░" * (WIDTH - full), "dim")
        bars.add_row(name, bar, f"{value:5.1f} %", Text(note, "dim"))
    return bars


def _words(frame: Frame) -> Text:
    style = "bold red" if frame.status.drift.drift_detected else "green"
    return Text("monitor: ", "bold") + Text(untimed(frame.status.sentence), style)


def blocks(pixels: Pixels) -> Text:
    """Draw a small gray picture, two rows of pixels in a line of characters."""
    gray = pixels[..., 0]
    if len(gray) % 2:
        gray = np.concatenate([gray, gray[-1:]])
    text = Text(no_wrap=True)
    for upper, lower in zip(gray[::2].tolist(), gray[1::2].tolist(), strict=True):
        for a, b in zip(upper, lower, strict=True):
            text.append("▀", style=f"rgb({a},{a},{a}) on rgb({b},{b},{b})")
        text.append("\n")
    text.rstrip()
    return text


def print_film(film: Film, console: Console) -> None:
    """Print what came of each scene, expected accuracies beside true ones, and the conclusion."""
    table = Table(title=f"Scene by scene, accuracy (%), corruptions of severity {SEVERITY}", title_justify="left")
    table.add_column("scene", no_wrap=True)
    for column in CELLS:
        table.add_column(column, justify="right", no_wrap=True)
    if not console.is_terminal:
        console, table.box = Console(width=200, file=console.file), None
    for scene in film.scenes:
        table.add_row(full_name(scene.domain), *scene_cells(scene))
    console.print(table)
    console.print(summary(film), highlight=False, soft_wrap=not console.is_terminal)
