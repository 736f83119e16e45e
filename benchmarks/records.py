"""gains.csv and domains.csv of ``results/``, from finished runs of ``fozo bench evidence``.

gains.csv
    Every row of every stream, with its constants: top-1 and the gain over NoAdapt.
domains.csv
    The gain by corruption, and how far Align is ahead of each row (``lead``).

The images are the same in every corruption and for every method, so an image's mean difference over corruptions and
seeds is one observation. The interval is Student's, with the variance of images, and of seeds where there are several
(Satterthwaite's degrees of freedom).
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
RECOVERED_POINTS = 2.0
FINAL_BATCHES = 2
COLLAPSE_BATCHES = 4


class Cell(NamedTuple):
    """Rows of one stream, which saw the same images; a row has a run for each seed."""

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
        """1 where an image was recognised: ``[seeds, domains, images]``."""
        runs = self.rows[label]
        hits = np.zeros((len(runs), len(domains), self.images))
        for seed, run in enumerate(runs):
            for record in run.records():
                if record.domain in domains:
                    hits[seed, domains.index(record.domain), list(record.right)] = 1
        return hits

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

    def recovers(self, label: str) -> int | str:
        """Images after which the gain stays within two points of its final value; empty where batches are too few."""
        sizes = [record.images for record in self.rows[label][0].records() if record.domain == self.domains[0]]
        own, base = (
            np.reshape([record.correct / record.images for record in self.corrupted(name)], (-1, len(sizes)))
            for name in (label, BASE)
        )
        gains = 100 * (own.mean(axis=0) - base.mean(axis=0))
        if len(gains) < 2 * FINAL_BATCHES:
            return ""
        low = np.flatnonzero(gains < gains[-FINAL_BATCHES:].mean() - RECOVERED_POINTS)
        return sum(sizes[: low[-1] + 1]) if len(low) else 0

    def collapses(self, label: str) -> int | str:
        """Images after which a row is below half of NoAdapt's accuracy until the end; empty where it is not."""
        own, base = (self.rows[name][0].records() for name in (label, BASE))
        window = np.ones(COLLAPSE_BATCHES)
        right, plain = (np.convolve([record.correct for record in run], window, "valid") for run in (own, base))
        fine = np.flatnonzero(right >= plain / 2)
        first = fine[-1] + 1 if len(fine) else 0
        return "" if first >= len(right) else sum(record.images for record in own[:first])

    def error(self, label: str) -> float:
        """Expected calibration error in percent, on the corruptions."""
        records = self.corrupted(label)
        confidence, correct, images = (
            sum(np.array(counts) for counts in column)
            for column in zip(*((r.bin_confidence, r.bin_correct, r.bin_images) for r in records), strict=True)
        )
        return float(100 * np.abs(confidence - correct).sum() / np.sum(images))


def read_cells(groups: Iterable[Group]) -> list[Cell]:
    """Streams with NoAdapt, Align and a rival, that with most images and rows first."""
    streams: dict[tuple[object, ...], dict[str, dict[int, Run]]] = {}
    for run in (run for group in groups if group.recipe.name == "evidence" for run in group.runs):
        experiment = run.experiment
        rows = streams.setdefault((experiment.model, experiment.column, experiment.stream.images), {})
        rows.setdefault(experiment.title, {})[experiment.seed] = run
    cells = []
    for (model, _, images), rows in streams.items():
        if rows.keys() > {BASE, OURS}:
            plan = next(iter(rows[BASE].values())).experiment.stream
            names = [segment.name for segment in plan.order.segments()]
            domains = tuple(name for name in names if name != CLEAN)
            runs = {label: list(seeds.values()) for label, seeds in rows.items()}
            name = next((name for start, name in MODELS.items() if str(model).startswith(start)), str(model))
            scenario = plan.scenario.replace("episodic", "reset")
            clean = (CLEAN,) if CLEAN in names else ()
            cells.append(Cell(name, scenario, plan.severity, int(str(images)), domains, clean, runs))
    return sorted(cells, key=lambda cell: -cell.images * len(cell.rows))


def numbers(*values: float) -> list[str]:
    return [f"{value:.3f}" for value in values]


def gain_lines(cells: Iterable[Cell], operations: dict[str, str]) -> Iterator[list[object]]:
    yield ["model", "stream", "severity", "corruptions", "images", "row", "source", "preset", "constants", "passes",
           "gflop_per_image", "processor", "seeds", "top1", "gain", "gain_low", "gain_high", "clean_gain", "clean_low",
           "clean_high", "ece", "recovers_after_images", "collapses_after_images"]  # fmt: skip
    for cell in cells:
        for label, runs in cell.rows.items():
            method = runs[0].experiment.method
            chosen = {"constants": "", "preset": "", "config": {}, **runs[0].experiment.configuration()}
            ends: list[str] = []
            for domains in (cell.domains, cell.clean):
                gain, half = cell.gain(label, BASE, domains) if domains else (0.0, 0.0)
                known = label != BASE and bool(domains)
                ends += numbers(gain, gain - half, gain + half) if known else ["", "", ""]
            passes = runs[0].measures.passes_per_image + BACKWARD.get(method, 0)
            count = numbers(float(operations[method]) / 1e9)[0] if method in operations else ""
            top = numbers(100 * cell.hits(label, cell.domains).mean())
            yield [
                *cell[:3], len(cell.domains), cell.images, label, chosen["constants"] or "", chosen["preset"],
                json.dumps(chosen["config"], sort_keys=True), f"{passes:g}", count,
                runs[0].conditions.environment.processor, len(runs), *top, *ends, *numbers(cell.error(label)),
                cell.recovers(label), cell.collapses(label),
            ]  # fmt: skip


def domain_lines(cells: Iterable[Cell]) -> Iterator[list[object]]:
    yield ["model", "stream", "severity", "images", "row", "domain", "gain", "half", "lead", "lead_half"]
    for cell in cells:
        for label in (label for label in cell.rows if label != BASE):
            for domains in (cell.domains, *((name,) for name in cell.domains + cell.clean)):
                name = "all" if domains == cell.domains else domains[0].partition("/")[0]
                lead = numbers(*cell.gain(OURS, label, domains)) if label != OURS else ["", ""]
                yield [*cell[:4], label, name, *numbers(*cell.gain(label, BASE, domains)), *lead]


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
