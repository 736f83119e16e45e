"""``fozo report``: what ``fozo bench`` measured, as a page and as tables; or how ``fozo watch`` went."""

import sys
from pathlib import Path
from typing import Annotated

from fozo.errors import FozoError


def report(
    runs: Annotated[Path, "Folder of fozo bench, or .jsonl of fozo watch --events."],
    out: Annotated[Path, "The page; tables are written beside it."] = Path("report.html"),
) -> None:
    """Write the results as one HTML page, and those of fozo bench as Markdown, CSV and LaTeX tables beside it."""
    from fozo.bench.report.page import write_report
    from fozo.bench.report.timeline import write_timeline

    if not out.name or out.is_dir():
        raise FozoError(f"{out} is a folder; give the name of a page to write, such as report.html")
    if runs.is_file():
        print(write_timeline(runs, out))
        return
    if not runs.is_dir():
        raise FozoError(f"{runs} is not a folder; give fozo bench's --out, or what fozo watch --events wrote")
    written, stale = write_report(runs, out)
    for path in stale:
        print(f"fozo: {path} is left out: its recipe has no such row or options any more", file=sys.stderr)
    print(", ".join(map(str, written)))
