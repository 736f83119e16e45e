"""The report of ``fozo bench``: one page, and the same tables as Markdown, CSV and LaTeX.

It shows images only where the reader names a folder of them.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from markupsafe import Markup
from PIL import Image

from fozo.bench.gains import BASE, Gained, over_base
from fozo.bench.plan import AVERAGE
from fozo.bench.report.figures import charts, conclusions
from fozo.bench.report.render import assign_colours, render, write_page
from fozo.bench.report.tables import Cell, Table, comma_separated, full_name, number, table_of
from fozo.bench.store import Group, collect, stores
from fozo.data.corruptions import EXTRA_KINDS, KINDS, corrupt
from fozo.data.images import Pixels
from fozo.data.sets import open_images
from fozo.data.sources import prepare
from fozo.errors import FozoError
from fozo.io import check_output

SIDE = 224  # pixels at which an image is corrupted: what ImageNet's models read
THUMBNAIL = 128  # pixels of a picture on the page
COSTS = ("ECE", "Passes", "Time (s)", "Memory (MiB)", "#Params")


def write_report(root: Path, out: Path, images: Path | None = None) -> tuple[list[Path], list[str]]:
    """Write the page to ``out`` and the tables beside it; return these files, and the stale runs below ``root``.

    With clean ``images`` the page shows one of them under each corruption.
    """
    check_output(out)
    groups = collect(root)
    made = chapters({f"{group.recipe.name}-{number}": group for number, group in enumerate(groups)})
    tables = [chapter.table for chapter in made]
    stale = [str(path.relative_to(root)) for store in stores(root) for path in store.stale()]
    pictures, severity = ([], None) if images is None else corrupted_pictures(images, groups)
    values = {"chapters": made, "stale": stale, "pictures": pictures, "severity": severity}
    texts = {
        out: render("report.html", title="fozo: results", **values),
        out.with_suffix(".md"): render("tables.md", tables=tables),
        out.with_suffix(".csv"): comma_separated(tables),
        out.with_suffix(".tex"): render("tables.tex", tables=tables),
    }
    for path, text in texts.items():
        write_page(path, text)
    return list(texts), stale


def chapters(groups: Mapping[str, Group]) -> list[Chapter]:
    """Compare the rows of groups by id; a method has the same colour in all of them."""
    places = assign_colours(label for group in groups.values() for label in group.labels)
    gained = {id: over_base(group) for id, group in groups.items()}
    return [Chapter(id, each, gained[id], table_of(each, gained[id]), places) for id, each in groups.items()]


@dataclass(frozen=True)
class Chapter:
    """A group of runs with what the page shows of it."""

    id: str
    group: Group
    gained: Gained
    table: Table
    colours: Mapping[str, int]
    base: ClassVar[str] = BASE
    PAPERS_MODEL: ClassVar[str] = "vit_base_patch16_224"  # numbers of others are not compared with the paper's

    @property
    def parts(self) -> list[tuple[str, str, Sequence[Markup]]]:
        """Heading, conclusion and charts of each column."""
        drawn = charts(self.group, self.table, self.gained, self.colours)
        said = conclusions(self.group, self.gained)
        return [
            ("" if side == AVERAGE else side[:1].upper() + side[1:], said.get(side, ""), drawn.get(side, ()))
            for side in dict.fromkeys([*said, *drawn])
        ]

    @property
    def best(self) -> list[str | None]:
        """The highest number of each column as written, where it is an accuracy and there are several rows."""
        found: list[str | None] = []
        for index, name in enumerate(self.table.columns):
            column = [cell for _, cells in self.table.rows if (cell := cells[index]) is not None]
            top = max(column, key=lambda cell: cell.ours, default=None)
            compared = top is not None and name not in COSTS and len(self.table.rows) > 1
            found.append(number(top.ours, top.digits) if compared and top is not None else None)
        return found

    @property
    def cells(self) -> list[Cell]:
        return [cell for _, cells in self.table.rows for cell in cells if cell is not None]

    @property
    def papers_model(self) -> bool:
        return self.PAPERS_MODEL in self.group.setting

    @property
    def conditions(self) -> dict[str, list[str]]:
        """What the numbers were measured on, and with which commands: each value once."""
        found: dict[str, list[str]] = {}
        for run in self.group.runs:
            had, machine = run.conditions, run.conditions.environment
            packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
            for name, value in (
                ("Processor", f"{machine.processor}, {machine.cores} cores, {machine.threads} threads"),
                ("Device", machine.device),
                ("Software", f"Python {machine.python} on {machine.system}; {packages}"),
                ("Weights", had.weights),
                ("Stream", had.stream_fingerprint),
                ("Calibrated on", had.calibrated_on),
                ("Seeds", str(run.experiment.seed)),
                ("Command", had.command),
            ):
                if value and value not in found.setdefault(name, []):
                    found[name].append(value)
        return found


def picture(pixels: Pixels, words: str, *, exact: bool = False) -> Markup:
    """Make an ``img`` of ``uint8 [height, width, channels]``; ``exact`` keeps every pixel, for small ones."""
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    stream = io.BytesIO()
    if exact:
        image.save(stream, "PNG", optimize=True)
    else:
        image.thumbnail((THUMBNAIL, THUMBNAIL))
        image.save(stream, "JPEG", quality=80)
    data = base64.b64encode(stream.getvalue()).decode()
    kind, style = ("png", "exact") if exact else ("jpeg", "")
    return Markup('<img class="{}" alt="{}" src="data:image/{};base64,{}">').format(style, words, kind, data)


def corrupted_pictures(images: Path, groups: Sequence[Group]) -> tuple[list[tuple[str, Markup]], int | None]:
    """Show the first of some clean images under each corruption of the runs; also their severity, where it is one."""
    found = open_images(images)
    if found.corrupted:
        raise FozoError(f"{images} holds corrupted images; give clean ones, which the page then shows corrupted")
    domains = list(dict.fromkeys(name for group in groups for run in group.runs for name in run.measures.domains))
    pairs = [(name, *name.partition("/")[::2]) for name in domains]
    known = [(name, kind, int(level)) for name, kind, level in pairs if kind in (*KINDS, *EXTRA_KINDS) and level]
    levels = {level for _, _, level in known}
    usual = min(levels) if len(levels) == 1 else None
    clean = prepare(found, found.read(0), (SIDE, SIDE), 3)
    made = [("Clean", picture(clean, "Clean"))]
    for name, kind, level in sorted(known, key=lambda one: (one[2], domains.index(one[0]))):
        pixels = corrupt(np.ascontiguousarray(clean), kind, level, 0, image_id=found.samples[0].path)
        made.append((full_name(name, usual), picture(pixels, full_name(name, usual))))
    return made, usual
