"""``fozo report``: what ``fozo bench`` measured, or ``fozo watch`` saw, as a page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fozo.errors import FozoError


def report(
    runs: Annotated[Path, typer.Argument(help="Folder that fozo bench wrote, or file of fozo watch --events.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page; tables are written beside it.")] = Path(
        "report.html"
    ),
) -> None:
    """Write the results as one HTML page, and as Markdown, CSV and LaTeX tables beside it; or a camera's timeline."""
    from fozo.bench.report.page import write_report
    from fozo.bench.report.timeline import write_timeline

    if not out.name or out.is_dir():
        raise FozoError(f"{out} is a folder; give the name of a page to write, such as report.html")
    if runs.is_file():
        print(write_timeline(runs, out))
        return
    if not runs.is_dir():
        raise FozoError(f"{runs} is no folder; give the folder that was fozo bench's --out")
    written, stale = write_report(runs, out)
    for path in stale:
        print(f"fozo: {path} is left out: its recipe has no such row or options any more", file=sys.stderr)
    print(", ".join(map(str, written)))
