"""Cells of the long comparison: one model on one kind of stream, with what every method made of every image.

The runs of ``fozo bench evidence`` tell it. The images of a cell are the same in every corruption and for every method,
so an image's mean difference over the corruptions is one observation, not fifteen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import t as student

from fozo.bench.gains import BASE, signed
from fozo.bench.measures import BINS
from fozo.bench.plan import TUNED, published
from fozo.bench.store import Group, Run
from fozo.errors import FozoError
from fozo.types import Array

CLEAN = "clean"
RECIPE = "evidence"
USUAL = 5
"""The severity that a cell's title does not name."""
SEVERAL = 2
"""From this number of seeds on, their variance is part of an interval."""
TOKENS = {"vit_tiny": "ViT-Tiny", "deit_tiny": "DeiT-Tiny"}
BACKWARD = {"tent": 2, "eata": 2, "deyo": 2, "sar": 4}
"""Backward passes of these methods, each counted as two forward ones."""


def by_method(values: Mapping[str, float]) -> list[str]:
    """Order rows by their values: the best method first, its tuned row right behind the published one."""
    best: dict[str, float] = {}
    for label, value in values.items():
        best[published(label)] = max(value, best.get(published(label), value))
    return sorted(values, key=lambda label: (-best[published(label)], published(label), label.endswith(TUNED)))


@dataclass(frozen=True)
class Gain:
    """A difference in points, and the ends of its 95 % interval: unlike a report's, it always has one."""

    value: float
    low: float
    high: float

    @classmethod
    def around(cls, value: float, half: float) -> Gain:
        return cls(value, value - half, value + half)

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    @property
    def side(self) -> int:
        """1 significantly above zero, -1 below, 0 where the interval includes zero."""
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    def __str__(self) -> str:
        return f"{signed(self.value)} ± {self.half:.1f}"


@dataclass
class Row:
    """What a method made of a cell's images."""

    passes: float
    """For each image; a backward pass counts as two."""
    seeds: dict[int, dict[str, Array]] = field(default_factory=dict)
    """By seed and domain: 1 for every image of the set that was recognised, 0 for the others."""
    correct: dict[int, dict[str, list[tuple[int, int]]]] = field(default_factory=dict)
    """By seed and domain, for every batch: right predictions and images."""
    bins: Array = field(default_factory=lambda: np.zeros((BINS, 3)))
    """Images, confidence and right predictions by confidence, on the corruptions."""
    processor: str = ""
    """What it was run on, where the records say so."""
    method: str = ""
    constants: Mapping[str, object] = field(default_factory=dict)
    """Preset, constants and whose they are."""

    def hits(self, domains: Sequence[str]) -> Array:
        """Recognised images: ``[seeds, domains, images]``."""
        return np.array([[found[name] for name in domains] for found in self.seeds.values()])

    @property
    def error(self) -> float:
        return float(100 * np.abs(self.bins[:, 1] - self.bins[:, 2]).sum() / self.bins[:, 0].sum())


@dataclass
class Cell:
    """Rows that saw the same images."""

    model: str
    scenario: str
    severity: int
    images: int
    domains: tuple[str, ...]
    """The corruptions."""
    clean: bool
    """Whether the stream ends with clean images."""
    rows: dict[str, Row] = field(default_factory=dict)

    @property
    def stream(self) -> tuple[str, str, int, frozenset[str]]:
        """What it is a measurement of: model, scenario, severity and corruptions."""
        return self.model, self.scenario, self.severity, frozenset(name.split("/")[0] for name in self.domains)

    @property
    def size(self) -> int:
        """Images of a corruption over all rows: the cell with most of them leads the page."""
        return self.images * len(self.rows)

    def supersedes(self, other: Cell) -> bool:
        """Whether it tells all that another cell tells: the same stream and rows, as many images, more of either."""
        covers = self.rows.keys() >= other.rows.keys() and self.images >= other.images
        return self.stream == other.stream and covers and self.size > other.size

    @property
    def title(self) -> str:
        """Its name on the page, which says that severities are 5 where none is named."""
        severity = "" if self.severity == USUAL else f", severity {self.severity}"
        subset = "" if len(self.domains) > 4 else f", {len(self.domains)} corruptions"
        return f"{self.model}, {self.scenario}{severity}{subset}, {self.images} images"

    def top(self, label: str) -> float:
        return float(100 * self.rows[label].hits(self.domains).mean())

    def gain(self, label: str, base: str = BASE, domains: Sequence[str] | None = None) -> Gain:
        """A row's difference to another, paired by image, over some domains.

        Variance is that of the images (mean over domains and seeds), and of either row's seeds where there are several.
        Two or three seeds say little of their own variance, so the interval is Student's, with the degrees of freedom
        of the sum (Satterthwaite).
        """
        names = self.domains if domains is None else domains
        own, other = (self.rows[each].hits(names).mean(axis=1) for each in (label, base))  # [seeds, images]
        images = own.mean(axis=0) - other.mean(axis=0)
        parts = [images, *(each.mean(axis=1) for each in (own, other) if len(each) >= SEVERAL)]
        variances = [part.var(ddof=1) / len(part) for part in parts]
        variance = sum(variances)
        uncertainty = sum(each**2 / (len(part) - 1) for each, part in zip(variances, parts, strict=True))
        times = student.ppf(0.975, variance**2 / uncertainty) if uncertainty else 0.0
        return Gain.around(float(100 * images.mean()), float(100 * times * np.sqrt(variance)))

    def learning(self, label: str) -> Array:
        """Difference to NoAdapt in every batch of a corruption, mean over the corruptions: how fast a method learns."""
        both = [self._by_batch(name) for name in (label, BASE)]
        return 100 * (both[0] - both[1])

    def _by_batch(self, label: str) -> Array:
        row = self.rows[label]
        shares = [
            [right / images for right, images in found[name]] for found in row.correct.values() for name in self.domains
        ]
        means: Array = np.mean(shares, axis=0)
        return means

    def with_clean(self, label: str) -> Gain | None:
        """The difference to NoAdapt on the clean images at the end of the stream."""
        return self.gain(label, domains=(CLEAN,)) if self.clean else None


def name_of(model: str) -> str:
    return next((name for start, name in TOKENS.items() if model.startswith(start)), model.split(".")[0])


def standing(cells: Iterable[Cell]) -> list[Cell]:
    """Leave out cells that another supersedes; those of which most was measured come first."""
    found = list(cells)
    left = (cell for cell in found if not any(other.supersedes(cell) for other in found))
    return sorted(left, key=lambda cell: -cell.size)


def read_evidence(groups: Iterable[Group]) -> list[Cell]:
    """Cells of finished runs of the recipe ``evidence``; those without a NoAdapt are left out.

    A run that is found twice, packed and in the folder it was made in, counts once: where it was found last.
    """
    found: dict[tuple[str, str, int | None], dict[tuple[str, int], Run]] = {}
    for group in groups:
        for run in group.runs if group.recipe.name == RECIPE else ():
            key = (run.experiment.model, run.experiment.column, run.experiment.stream.images)
            found.setdefault(key, {})[run.experiment.label, run.experiment.seed] = run
    cells = []
    for runs in found.values():
        first = next(iter(runs.values())).experiment
        plan, kinds = first.stream, [segment.name for segment in first.stream.order.segments()]
        cell = Cell(
            name_of(first.model), {"episodic": "reset"}.get(plan.scenario, plan.scenario), plan.severity,
            plan.images or 0, tuple(kind for kind in kinds if kind != CLEAN), CLEAN in kinds,
        )  # fmt: skip
        for run in runs.values():
            _add_run(cell, run)
        cells.append(cell)
    return [cell for cell in cells if BASE in cell.rows]


def _add_run(cell: Cell, run: Run) -> None:
    passes = run.measures.passes_per_image + BACKWARD.get(run.experiment.method, 0)
    made = Row(
        passes, processor=run.conditions.environment.processor, method=run.experiment.method,
        constants=run.experiment.constants(),
    )  # fmt: skip
    row = cell.rows.setdefault(run.experiment.label, made)
    hits = row.seeds.setdefault(run.experiment.seed, {})
    batches = row.correct.setdefault(run.experiment.seed, {})
    for record in run.records():
        if record.correct != len(record.right):
            raise FozoError(f"{run.folder} does not say which images were recognised; run it again with this version")
        own = hits.setdefault(record.domain, np.zeros(cell.images))
        own[list(record.right)] = 1
        batches.setdefault(record.domain, []).append((record.correct, record.images))
        if record.domain != CLEAN:
            row.bins = row.bins + np.array([record.bin_images, record.bin_confidence, record.bin_correct]).T
