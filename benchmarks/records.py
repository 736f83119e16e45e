"""gains.csv and domains.csv of ``results/``, from finished runs of ``fozo bench``.

gains.csv
    Every row of every stream of every recipe, with its constants: top-1 and the gain over NoAdapt. One interval is over
    images, the other over kinds of corruption.
domains.csv
    For streams of many corruptions: the gain by corruption, and how far Align is ahead of each row (``lead``).

The images are the same in every corruption and for every method, so an image's mean difference over corruptions and
seeds is one observation. The interval is Student's, with the variance of images, and of seeds where there are several
(Satterthwaite's degrees of freedom). Over kinds, a kind's mean difference is one observation.
"""

import csv
import json
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

from fozo.bench.gains import BASE
from fozo.bench.measures import BatchRecord
from fozo.bench.store import Group, Run, collect
from fozo.types import Array

CLEAN = "clean"
OURS = "Align"
MODELS = {"vit_tiny": "ViT-Tiny", "deit_tiny": "DeiT-Tiny"}
BACKWARD = {"tent": 2, "eata": 2, "deyo": 2, "sar": 4}
"""Backward passes of these methods, each counted as two forward ones."""
RECORDED = ("evidence", "unseen", "held_out", "narrow", "streams")  # recipes that are tables of README or docs
BY_DOMAIN = ("evidence", "unseen", "held_out")  # recipes whose gains are recorded by corruption too


class Cell(NamedTuple):
    """Rows of one stream, which saw the same images; a row has a run for each seed."""

    recipe: str
    model: str
    stream: str
    severity: int
    images: int
    domains: tuple[str, ...]
    """The corruptions."""
    clean: tuple[str, ...]
    """The clean images at the end of the stream, if there are any."""
    rows: dict[str, list[Run]]

    def hits(self, label: str, domains: Sequence[str]) -> Array:
        """How often an image was recognised, from 0 to 1: ``[seeds, domains, images]``."""
        runs = self.rows[label]
        hits = np.zeros((len(runs), len(domains), self.images))
        sizes = np.zeros((len(runs), len(domains), 1))
        for seed, run in enumerate(runs):
            for record in run.records():
                if record.domain in domains:
                    domain = domains.index(record.domain)
                    np.add.at(hits[seed, domain], list(record.right), 1)
                    sizes[seed, domain] += record.images
        return hits * self.images / sizes  # images may come several times

    def gain(self, label: str, base: str, domains: Sequence[str]) -> tuple[float, float]:
        """A row's difference to another in points, paired by image, and half of its interval."""
        own, other = (self.hits(name, domains).mean(axis=1) for name in (label, base))  # [seeds, images]
        images = own.mean(axis=0) - other.mean(axis=0)
        samples = [images, *(row.mean(axis=1) for row in (own, other) if len(row) > 1)]
        variances = [sample.var(ddof=1) / len(sample) for sample in samples]
        variance = sum(variances)
        uncertainty = sum(v**2 / (len(sample) - 1) for v, sample in zip(variances, samples, strict=True))
        times = student.ppf(0.975, variance**2 / uncertainty) if uncertainty else 0.0
        return float(100 * images.mean()), float(100 * times * np.sqrt(variance))

    def corrupted(self, label: str) -> list[BatchRecord]:
        """Batches of all seeds, without the clean ones."""
        return [record for run in self.rows[label] for record in run.records() if record.domain != CLEAN]

    def over_kinds(self, label: str) -> float:
        """Half of the interval of a gain, if the kinds of corruption were drawn again and not the images."""
        kinds = self.hits(label, self.domains) - self.hits(BASE, self.domains).mean(axis=0)
        means = kinds.mean(axis=(0, 2))
        if len(means) < 2:
            return 0.0
        return float(100 * student.ppf(0.975, len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means)))

    def error(self, label: str) -> float:
        """Expected calibration error in percent, on the corruptions."""
        records = self.corrupted(label)
        confidence, correct, images = (
            sum(np.array(counts) for counts in column)
            for column in zip(*((r.bin_confidence, r.bin_correct, r.bin_images) for r in records), strict=True)
        )
        return float(100 * np.abs(confidence - correct).sum() / np.sum(images))


def read_cells(groups: Iterable[Group]) -> list[Cell]:
    """Streams with NoAdapt, Align and a rival, recipe by recipe, those with most images and rows first.

    A run takes the place of an earlier one of its row and seed. Records that do not name their images are left out.
    """
    streams: dict[tuple[object, ...], dict[str, dict[int, Run]]] = {}
    for group in groups:
        for run in group.runs if group.recipe.name in RECORDED else ():
            if any(len(record.right) != record.correct for record in run.records()):
                continue
            experiment = run.experiment
            plan = experiment.stream
            key = (group.recipe.name, experiment.model, experiment.column, plan.severity, plan.images)
            streams.setdefault(key, {}).setdefault(experiment.title, {})[experiment.seed] = run
    cells = []
    for (recipe, model, column, severity, _), rows in streams.items():
        if not rows.keys() >= {BASE, OURS} or len(rows) < (2 if recipe == "held_out" else 3):
            continue
        base = next(iter(rows[BASE].values()))
        plan = base.experiment.stream
        names = dict.fromkeys(segment.name for segment in plan.order.segments())
        domains = tuple(name for name in names if name != CLEAN)
        first = next(iter(names))
        size = sum(record.images for record in base.records() if record.domain == first)
        stream = str(column)
        if recipe in BY_DOMAIN:
            stream = plan.scenario.replace("episodic", "reset")
        cells.append(
            Cell(
                recipe=str(recipe),
                model=next((name for start, name in MODELS.items() if str(model).startswith(start)), str(model)),
                stream=stream,
                severity=int(str(severity)),
                images=min(size, plan.images or size),
                domains=domains,
                clean=(CLEAN,) if CLEAN in names else (),
                rows={label: list(seeds.values()) for label, seeds in rows.items()},
            )
        )
    return sorted(cells, key=lambda cell: (cell.recipe, -cell.images * len(cell.rows)))


def numbers(*values: float) -> list[str]:
    return [f"{value:.3f}" for value in values]


def gain_lines(cells: Iterable[Cell], operations: dict[str, str]) -> Iterator[list[object]]:
    yield ["recipe", "model", "stream", "severity", "corruptions", "images", "row", "source", "preset", "constants",
           "passes", "gflop_per_image", "processor", "seeds", "top1", "gain", "gain_low", "gain_high", "kinds_low",
           "kinds_high", "clean_gain", "clean_low", "clean_high", "ece"]  # fmt: skip
    for cell in cells:
        for label, runs in cell.rows.items():
            method = runs[0].experiment.method
            chosen = {"constants": "", "preset": "", "config": {}, **runs[0].experiment.configuration()}
            ends = [""] * 8
            if label != BASE:
                gain, half = cell.gain(label, BASE, cell.domains)
                over_kinds = cell.over_kinds(label)
                ends[:5] = numbers(gain, gain - half, gain + half, gain - over_kinds, gain + over_kinds)
            if label != BASE and cell.clean:
                gain, half = cell.gain(label, BASE, cell.clean)
                ends[5:] = numbers(gain, gain - half, gain + half)
            passes = runs[0].measures.passes_per_image + BACKWARD.get(method, 0)
            count = numbers(float(operations[method]) / 1e9)[0] if method in operations else ""
            top = numbers(100 * cell.hits(label, cell.domains).mean())
            yield [
                *cell[:4], len(cell.domains), cell.images, label, chosen["constants"] or "", chosen["preset"],
                json.dumps(chosen["config"], sort_keys=True), f"{passes:g}", count,
                runs[0].conditions.environment.processor, len(runs), *top, *ends, *numbers(cell.error(label)),
            ]  # fmt: skip


def domain_lines(cells: Iterable[Cell]) -> Iterator[list[object]]:
    yield ["recipe", "model", "stream", "severity", "images", "row", "domain", "gain", "half", "lead", "lead_half"]
    for cell in (cell for cell in cells if cell.recipe in BY_DOMAIN):
        for label in (label for label in cell.rows if label != BASE):
            for domains in (cell.domains, *((name,) for name in cell.domains + cell.clean)):
                name = "all" if domains == cell.domains else domains[0].partition("/")[0]
                compared = label != OURS and OURS in cell.rows
                lead = numbers(*cell.gain(OURS, label, domains)) if compared else ["", ""]
                yield [*cell[:5], label, name, *numbers(*cell.gain(label, BASE, domains)), *lead]


def write(folders: Sequence[Path], out: Path) -> None:
    """Write the records that the runs in some folders and their archives give."""
    with TemporaryDirectory() as scratch:
        roots = list(folders)
        for archive in (archive for folder in folders for archive in sorted(folder.glob("*.tar.xz"))):
            roots.append(Path(scratch) / archive.name)
            with tarfile.open(archive) as file:
                file.extractall(roots[-1], filter="data")
        cells = read_cells(group for root in roots if any(root.glob("**/recipe.json")) for group in collect(root))
        with (Path(__file__).parent.parent / "results" / "operations.csv").open(newline="") as file:
            operations = {row["method"]: row["operations_per_image"] for row in csv.DictReader(file)}
        for name, lines in {"gains": gain_lines(cells, operations), "domains": domain_lines(cells)}.items():
            with (out / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(lines)
