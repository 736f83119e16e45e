"""One's own images through a method: predictions as a table, and a log of what each batch showed.

``fozo adapt`` writes ``predictions.csv`` and, beside it, ``predictions.csv.log``, a :class:`fozo.io.Log`: a header that
says what is run, then a line for each batch, then one that says that all is done. Each batch's predictions and its line
are on file before the next batch begins. Every few seconds the method's state is saved too
(``.predictions.csv.state-000012.npz``), after both are synced; so a run that was killed at any moment goes on from
there, and ends with the bytes of an unbroken one. ``fozo report`` makes a page of the log.
"""

from __future__ import annotations

import csv
import io
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fozo.bench.checkpoints import SAVE_SECONDS, Checkpoints
from fozo.core.objective import entropies
from fozo.data.sets.base import ImageSet
from fozo.data.streams import LabelledBatch
from fozo.errors import FozoError
from fozo.io import MAX_LINE, Log, as_dataclass, decode, disk_errors, open_output, open_regular, read_log
from fozo.io import remove_temporary_files as sweep
from fozo.methods.common.journal import TORN_HEADER
from fozo.methods.registry import AnyMethod
from fozo.types import Array, Floats, Spec

LARGEST = 1e30
"""No metric comes near it; beyond, sums of a few would not be finite."""
KIND, VERSION, LOG = "fozo adapt", 1, ".log"
TOP = 5
Z = 1.959964
"""Of the 95 % interval."""


@dataclass(frozen=True)
class BatchLine:
    """What one batch of one's own images showed. Everything is a function of model, images and seed: no times."""

    index: int
    images: int
    end: int
    """Length of the table of predictions once this batch is in it, in bytes."""
    crc: int
    """CRC-32 of the table up to there."""
    entropy: float
    """Mean entropy of the predictions, in nats."""
    confidence: float
    """Mean probability of the predicted classes."""
    passes: float
    correct: int | None = None
    """Right predictions, where the folders name the classes."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the method reports of itself: Align's shift, mostly."""

    @property
    def plausible(self) -> bool:
        """Whether a batch can have given these numbers."""
        counts = 0 < self.images < 1 << 31 and 0 <= (self.correct or 0) <= self.images and 0 < self.end < 1 << 62
        return counts and 0 <= self.confidence <= 1.000001 and all(abs(v) < LARGEST for v in self.metrics.values())


@dataclass(frozen=True)
class FolderRun:
    """A log that was read."""

    path: Path
    header: Mapping[str, Any]
    batches: Sequence[BatchLine]
    finished: bool

    @property
    def images(self) -> int:
        """Images predicted so far."""
        return sum(line.images for line in self.batches)

    @property
    def correct(self) -> int | None:
        """Right predictions so far, where the classes are known."""
        counts = [line.correct for line in self.batches if line.correct is not None]
        return sum(counts) if self.batches and len(counts) == len(self.batches) else None

    def said(self) -> str:
        """Put in words how many were right, and how far the images were from the clean ones."""
        parts = []
        if self.correct is not None:
            low, high = wilson(self.correct, self.images)
            share = 100 * self.correct / self.images
            parts.append(f"{share:.1f} % right by the folders' names (95 % interval {low:.1f} to {high:.1f})")
        shifts = [line.metrics["shift"] for line in self.batches if "shift" in line.metrics]
        if shifts:
            parts.append(f"shift {shifts[0]:.2f} in the first batch, {shifts[-1]:.2f} in the last")
        return "; ".join(parts)


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Give Wilson's 95 % interval of a share, in percent: it holds for few images and for shares near 0 and 100."""
    share, spread = hits / count, Z * Z / count
    middle = share + spread / 2
    half = Z * ((share * (1 - share) + spread / 4) / count) ** 0.5
    return 100 * (middle - half) / (1 + spread), 100 * (middle + half) / (1 + spread)


def read_folder_run(path: Path) -> FolderRun:
    """Read a log of ``fozo adapt``."""
    with open_regular(path) as stream:
        header = decode(stream.readline(MAX_LINE))
    if header is None or header.get("kind") != KIND or header.get("version") != VERSION:
        raise FozoError(f"{path} is no log of fozo adapt, or of another version; give the .log beside the predictions")
    batches: list[BatchLine] = []
    finished = False
    for number, line in enumerate(read_log(path)):
        if number == 0:
            continue
        if line.get("finished") is True and not finished:
            finished = True
            continue
        found = as_dataclass(BatchLine, line, f"line {number + 1} of {path}")
        follows = found.index == len(batches) and found.end > (batches[-1].end if batches else 0)
        if finished or not follows or not found.plausible:
            raise FozoError(f"{path} is damaged in line {number + 1}; run fozo adapt again")
        batches.append(found)
    return FolderRun(path, header, batches, finished)


def _open_log(path: Path) -> Log:
    """Open the log, unless the file is something else, which a torn header is not."""
    if path.exists():
        with open_regular(path) as stream:
            first = stream.readline(MAX_LINE)
        facts = decode(first)
        torn = not first.endswith(b"\n") and TORN_HEADER.fullmatch(first)
        if not torn and (facts is None or facts.get("kind") != KIND):
            raise FozoError(f"{path} is in the way: it is no log of fozo adapt; move it, or choose another --out")
    return Log(path)


def adapt_folder(
    method: AnyMethod,
    images: ImageSet,
    out: Path,
    batches: Callable[[int], Iterator[LabelledBatch]],
    facts: Mapping[str, object],
    *,
    labelled: bool = False,
    resume: bool = False,
    state: Path | None = None,
    save_seconds: float | None = None,
) -> FolderRun:
    """Adapt to images in order; write predictions and log as it goes.

    Args:
        method: predicts; it is new.
        images: what the batches are of.
        out: the table of predictions.
        batches: gives the batches from a number on.
        facts: what has to be the same for a run to be continued (plain values).
        labelled: whether the labels of the batches are true.
        resume: go on with what an interrupted run left; where there is nothing, begin.
        state: continue from this file where it exists, and save there once all is done.
        save_seconds: least time between two savings of the state.
    """
    spec = method.engine.spec
    header = {"kind": KIND, "version": VERSION, **facts, "labelled": labelled, "state": state and str(state)}
    head = f".{out.name}.state-"
    states = Checkpoints(out.parent, f"{head}*.npz", SAVE_SECONDS if save_seconds is None else save_seconds)
    with closing(_open_log(Path(f"{out}{LOG}"))) as log:
        sweep(out.parent, f".{head}")
        done, end, crc = 0, 0, 0
        if resume and len(log):
            run = _same(read_folder_run(log.path), header, out)
            if run.finished:
                return run
            done = states.restore(method, len(run.batches))
            if done:
                end, crc = _check_table(out, run.batches[done - 1])
        if not done:
            if state is not None and state.exists():
                method.restore(state)  # refused before anything is emptied
            log.truncate(0)  # first: whoever finds no header begins anew
            states.clear()
        with open_output(out, keep=end) as file:
            table = _Table(file, out, end, crc)
            if done:
                log.truncate(done + 1)
            else:
                log.append(header)
            for batch in batches(done):
                logits = _logits(method(batch.images), len(batch.samples), spec)
                odds = np.exp(logits - logits.max(axis=1, keepdims=True))
                probabilities = odds / odds.sum(axis=1, keepdims=True)
                paths = [images.samples[int(index)].path for index in batch.samples]
                rows = _rows(spec, paths, probabilities)
                table.add([_heads(rows[0]), *rows] if batch.index == 0 else rows)
                correct = int((logits.argmax(axis=1) == batch.labels).sum()) if labelled else None
                entropy, confidence = float(entropies(logits).mean()), float(probabilities.max(axis=1).mean())
                passes = float(method.passes_per_image)
                told = {name: float(value) for name, value in method.metrics().items() if math.isfinite(value)}
                line = BatchLine(
                    batch.index, len(paths), table.end, table.crc, entropy, confidence, passes, correct, told
                )
                log.append(asdict(line))
                if states.due():
                    table.sync()
                    log.sync()
                    states.save(method, batch.index + 1)
            table.sync()
            log.sync()
        if state is not None:
            # A state of its own first: should this be the last thing done, the run is not begun again from its end.
            states.save(method, len(log) - 1)
            with disk_errors(state):
                method.save(state)
        log.append({"finished": True})
        states.clear()
        return read_folder_run(log.path)


def _same(run: FolderRun, header: Mapping[str, object], out: Path) -> FolderRun:
    """Refuse to go on with anything but what was begun."""
    for key in {**run.header, **header}:
        theirs, now = run.header.get(key), header.get(key)
        if theirs != now:
            raise FozoError(
                f"{out} was begun with another {key} ({theirs!r:.80}, now {now!r:.80}); give the same command again, "
                f"or leave out --resume to begin anew"
            )
    return run


def _check_table(out: Path, last: BatchLine) -> tuple[int, int]:
    """Refuse a table that was changed up to a batch's end; give its length and CRC there."""
    crc, left = 0, last.end
    with open_regular(out) as file:
        while left and (block := file.read(min(left, 1 << 20))):
            crc, left = zlib.crc32(block, crc), left - len(block)
    if left or crc != last.crc:
        raise FozoError(f"{out} was changed since it was written; leave out --resume to begin anew")
    return last.end, crc


def _logits(answer: object, count: int, spec: Spec) -> Array:
    """Refuse what a model that is no classifier returns."""
    if not isinstance(answer, np.ndarray) or answer.ndim != 2 or len(answer) != count:
        raise FozoError(
            f"{spec.name} returns no logits [images, classes], which fozo adapt writes; call fozo.adapter in Python"
        )
    return answer.astype(np.float64)


def _heads(row: Sequence[object]) -> list[str]:
    places = range(1, len(row) // 2 + 1)
    return ["image", *(f"{what}{place}" for place in places for what in ("class", "probability"))]


def _rows(spec: Spec, paths: Sequence[str], probabilities: Floats) -> list[list[object]]:
    """Name each image's likeliest classes, with their probabilities."""
    best = np.argsort(-probabilities, axis=1, kind="stable")[:, :TOP]
    rows: list[list[object]] = []
    for path, classes, row in zip(paths, best, probabilities, strict=True):
        named = ((spec.labels[i] if spec.labels else int(i), f"{row[i]:.6f}") for i in classes)
        rows.append([path, *chain.from_iterable(named)])
    return rows


class _Table:
    """A CSV file that grows by whole lines.

    It is in UTF-8, but the name of an image that is not has there the bytes that it has on the disk.
    """

    def __init__(self, file: io.FileIO, path: Path, end: int, crc: int) -> None:
        self.file, self.path, self.end, self.crc = file, path, end, crc

    def add(self, rows: Sequence[Sequence[object]]) -> None:
        """Append lines, all or, where the disk is full, none."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        data = text.getvalue().encode("utf-8", "surrogateescape")
        with disk_errors(self.path):
            try:
                if self.file.write(data) != len(data):
                    raise OSError(0, "no space left on the disk")
            except BaseException:
                os.ftruncate(self.file.fileno(), self.end)
                raise
        self.end, self.crc = self.end + len(data), zlib.crc32(data, self.crc)

    def sync(self) -> None:
        """Make what was written survive a power cut."""
        with disk_errors(self.path):
            os.fsync(self.file.fileno())
