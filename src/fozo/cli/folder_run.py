"""A method on a stream of images, for ``fozo adapt``: predictions as CSV or JSON lines, and a log of every batch.

``predictions.csv.log`` is a :class:`fozo.io.Log`: a header that says what is run, a line for each batch, and a last
line once all is done. Both files have a batch before the next one begins. Every few seconds the method's state is saved
(``.predictions.csv.state-000012.safetensors``), after both are synced. A killed run continues from the latest state,
and its rows are those of an unbroken run.
"""

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from fozo.bench.run import SAVE_SECONDS, Checkpoints
from fozo.cli.folder import Recording, compare
from fozo.cli.options import Progress
from fozo.core.objective import entropies
from fozo.data.streams import LabelledBatch
from fozo.errors import FozoError
from fozo.io import MAX_LINE, Log, as_dataclass, decode, disk_errors, open_output, open_regular, read_log
from fozo.io import remove_temporary_files as sweep
from fozo.io.files import append_whole
from fozo.methods.registry import AnyMethod
from fozo.monitor import Monitor, Reference
from fozo.monitor.faults import SENTENCES
from fozo.monitor.monitor import clock
from fozo.types import Array, Floats, Spec

KIND = "fozo adapt"
VERSION = 1
LOG = ".log"
TOP = 5
JSON_LINES = ".jsonl"


@dataclass(frozen=True)
class BatchLine:
    """What one batch gave. Everything is a function of model, images and seed: no times."""

    index: int
    images: int
    end: int
    """Length of the table of predictions once this batch is in it, in bytes."""
    entropy: float
    """Mean entropy of the predictions, in nats."""
    confidence: float
    """Mean probability of the predicted classes."""
    passes: float
    """Forward passes an image."""
    correct: int | None = None
    """Right predictions, where the folders name the classes."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the method reports, such as Align's shift."""
    left_out: int = 0
    """Images that cannot be read: their rows have no classes."""

    @property
    def plausible(self) -> bool:
        some = min(self.images, self.left_out) >= 0 and self.images + self.left_out > 0
        return some and 0 <= (self.correct or 0) <= self.images and 0 < self.end < 1 << 62


@dataclass(frozen=True)
class Findings:
    """What the monitor says at the end of a stream."""

    finished: bool = True
    looks: str = ""
    """How far the images of the last batch are from clean ones, and what they look like."""
    drift: str = ""
    """What drifted, in words, if anything did."""
    since: int | None = None
    """The image with which it began."""
    since_time: str = ""
    """When that was taken."""
    faults: tuple[str, ...] = ()
    """Faults of the camera that there are now."""
    passed: tuple[str, ...] = ()
    """Drifts and faults that there were before."""

    @classmethod
    def of(cls, monitor: Monitor) -> "Findings":
        status = monitor.status
        drift = status.drift
        words = ""
        if drift.drift_detected:
            parts = [*map(str, status.changes), *([str(status.guess)] if status.guess else [])]
            words = ", ".join(parts) or "the images changed"
        names = dict.fromkeys(event.name for event in status.events if event.name in ("drift", *SENTENCES))
        present = {*status.faults, *(["drift"] if words else [])}
        return cls(
            drift=words,
            since=drift.since,
            since_time="" if drift.since_time is None else clock(drift.since_time),
            faults=status.faults,
            passed=tuple(name for name in names if name not in present),
        )


@dataclass(frozen=True)
class FolderRun:
    """A log that was read."""

    path: Path
    header: Mapping[str, Any]
    batches: Sequence[BatchLine]
    findings: Findings | None
    """Once it is finished."""

    @property
    def finished(self) -> bool:
        return self.findings is not None

    @property
    def left_out(self) -> int:
        return sum(line.left_out for line in self.batches)

    def ends(self, metric: str) -> tuple[float, float] | None:
        """The first and the last value of a metric."""
        values = [line.metrics[metric] for line in self.batches if metric in line.metrics]
        return (values[0], values[-1]) if values else None

    @property
    def images(self) -> int:
        return sum(line.images for line in self.batches)

    @property
    def correct(self) -> int | None:
        counts = [line.correct for line in self.batches if line.correct is not None]
        return sum(counts) if counts and len(counts) == len(self.batches) else None

    @property
    def summary(self) -> str:
        parts = []
        if self.left_out:
            parts.append(f"{self.left_out} image{'s' * (self.left_out > 1)} left out that cannot be read")
        if self.correct is not None and self.images:
            from scipy.stats import binomtest  # imported here: it takes as long as the rest of the command

            # Wilson's interval is valid for few images, and near 0 and 100 %.
            low, high = binomtest(self.correct, self.images).proportion_ci(method="wilson")
            share = f"{100 * self.correct / self.images:.1f} % right by the folders' names"
            parts.append(f"{share} (95 % interval {100 * low:.1f} to {100 * high:.1f})")
        if self.findings is not None and self.findings.looks:
            parts.append(self.findings.looks)
        return "; ".join(parts)


def read_folder_run(path: Path) -> FolderRun:
    header = _header(path)
    if header.get("kind") != KIND or header.get("version") != VERSION:
        raise FozoError(
            f"{path} is not a log of fozo adapt, or of another version; give the .log beside the predictions"
        )
    batches: list[BatchLine] = []
    _, *lines = read_log(path)
    findings = None
    if lines and lines[-1].get("finished") is True:
        findings = as_dataclass(Findings, lines.pop(), f"the last line of {path}")
    for number, line in enumerate(lines, 2):
        batch = as_dataclass(BatchLine, line, f"line {number} of {path}")
        follows = batch.index == len(batches) and batch.end > (batches[-1].end if batches else 0)
        if not follows or not batch.plausible:
            raise FozoError(f"{path} is damaged in line {number}; run fozo adapt again")
        batches.append(batch)
    return FolderRun(path, header, batches, findings)


def _header(path: Path) -> dict[str, Any]:
    with open_regular(path) as stream:
        return decode(stream.readline(MAX_LINE)) or {}


def adapt_folder(
    method: AnyMethod,
    recording: Recording,
    out: Path,
    identity: Mapping[str, object],
    progress: Progress,
    *,
    batch_size: int,
    resume: bool = False,
    state: Path | None = None,
    reference: Reference | None = None,
) -> FolderRun:
    """Adapt to images in order; write predictions to ``out``, and the log beside it, batch by batch.

    ``identity`` has to be the same for a run to be continued by ``resume``. ``state`` is continued from where it
    exists, and saved in the end. With a ``reference`` a monitor watches.
    """
    header = {"kind": KIND, "version": VERSION, **identity, "images": recording.fingerprint, "batch_size": batch_size}
    header |= {"labelled": recording.labelled, "state": state and os.path.relpath(state, out.parent)}
    now = np.zeros(1)  # times of the images of a batch
    monitor = None if reference is None else Monitor(reference, clock=lambda: now).watch(method)
    log_path = Path(f"{out}{LOG}")
    head = f".{out.name}.state-"
    if log_path.exists() and log_path.stat().st_size and _header(log_path).get("kind") != KIND:
        raise FozoError(f"{log_path} is in the way: it is not a log of fozo adapt; move it, or choose another --out")
    states = Checkpoints(out.parent, head, SAVE_SECONDS)
    with closing(Log(log_path)) as log:
        sweep(out.parent, f".{head}")
        done = 0
        end = 0
        if resume and len(log):
            run = read_folder_run(log.path)
            _check_same(run.header, header, out)
            if run.finished:
                states.clear()  # a kill may have left one
                return run
            if done := states.restore(method, len(run.batches)):
                end = run.batches[done - 1].end
                _check_table(out, end)
        if not done:
            if state is not None and state.exists():
                method.restore(state)  # refused before anything is emptied
            log.truncate(0)  # first: without a header the next run begins again
            states.clear()
        with open_output(out, keep=end) as file:
            if done:
                log.truncate(done + 1)
            else:
                log.append(header)
            progress("adapting", done * batch_size, len(recording))
            latest: Floats | None = (
                None  # images of the last batch, also where nothing was left to be done but to say so
            )
            if done and done * batch_size >= len(recording):
                for batch, _ in recording.batches(method.engine.spec, progress, batch_size, done - 1):
                    latest = batch.images if len(batch.samples) else None
            for batch, now in recording.batches(method.engine.spec, progress, batch_size, done):
                seen = len(batch.samples)
                spec = method.engine.spec
                logits = _logits(method(batch.images), seen, spec) if seen else np.zeros((0, spec.classes or TOP))
                probabilities = softmax(logits, axis=1)
                rows = _rows(spec, recording, batch, now, probabilities)
                if out.suffix == JSON_LINES:
                    table = _json_lines(recording.columns, rows)
                else:
                    heads = [_heads(recording.columns, rows[0])] if batch.index == 0 else []
                    table = csv_table([*heads, *rows])
                end = append_whole(file, out, end, table)
                line = BatchLine(
                    index=batch.index,
                    images=seen,
                    end=end,
                    entropy=float(entropies(logits).mean()) if seen else 0.0,
                    confidence=float(probabilities.max(axis=1).mean()) if seen else 0.0,
                    passes=float(method.passes_per_image),
                    correct=int((logits.argmax(axis=1) == batch.labels).sum()) if recording.labelled else None,
                    metrics={k: float(v) for k, v in method.metrics().items() if math.isfinite(v)} if seen else {},
                    left_out=len(batch.left_out),
                )
                log.append(asdict(line))
                if states.due():
                    _sync(file, out, log)
                    states.save(method, batch.index + 1)
                latest = batch.images if seen else None
            _sync(file, out, log)
        if state is not None:
            # A checkpoint first: if a kill follows, the run is not begun again from the state at its end.
            states.save(method, len(log) - 1)
            with disk_errors(state):
                method.save(state)
        findings = Findings() if monitor is None else Findings.of(monitor)
        known = "statistics" in method.info.needs
        looks = compare(latest, method.statistics, method.engine.spec) if latest is not None and known else ""
        log.append(asdict(replace(findings, looks=looks)))
        states.clear()
        return read_folder_run(log.path)


def _check_same(before: Mapping[str, object], now: Mapping[str, object], out: Path) -> None:
    for key in {**before, **now}:
        if before.get(key) != now.get(key):
            raise FozoError(
                f"{out} was begun with another {key} ({before.get(key)!r:.80}, now {now.get(key)!r:.80}); give the "
                f"same command again, or choose another place for the results"
            )


def _check_table(out: Path, end: int) -> None:
    """Refuse a table that has no line ending where the log says that a batch ends."""
    with open_regular(out) as file:
        file.seek(end - 1)
        if file.read(1) != b"\n":
            raise FozoError(f"{out} was changed since it was written; choose another place for the results")


def _logits(answer: object, count: int, spec: Spec) -> Array:
    if not isinstance(answer, np.ndarray) or answer.ndim != 2 or len(answer) != count:
        raise FozoError(
            f"{spec.name} does not return logits [images, classes], which fozo adapt needs; call fozo.adapter in Python"
        )
    return answer.astype(np.float64)


def _heads(columns: Sequence[str], row: Sequence[object]) -> list[str]:
    ranks = range(1, (len(row) - len(columns)) // 2 + 1)
    return [*columns, *(f"{what}{rank}" for rank in ranks for what in ("class", "probability"))]


def _rows(
    spec: Spec, recording: Recording, batch: LabelledBatch, times: Array, probabilities: Floats
) -> list[list[object]]:
    """The likeliest classes of each image in order; an image that cannot be read has none."""
    best = np.argsort(-probabilities, axis=1, kind="stable")[:, :TOP]
    rows = {index: [*recording.cells(index, 0.0), *[""] * 2 * best.shape[1]] for index in batch.left_out}
    for index, time, classes, row in zip(batch.samples.tolist(), times, best, probabilities, strict=True):
        rows[index] = recording.cells(index, time)
        for i in classes:
            rows[index] += [spec.labels[i] if spec.labels else int(i), f"{row[i]:.6f}"]
    return [rows[index] for index in sorted(rows)]


def csv_table(rows: Iterable[Sequence[object]]) -> bytes:
    """CSV in UTF-8, but a file name that is not has there the bytes that it has on the disk."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "surrogateescape")


def _json_lines(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> bytes:
    lines = []
    for row in rows:
        classes = [name for name in row[len(columns) :: 2] if name != ""]
        probabilities = [float(str(text)) for text in row[len(columns) + 1 :: 2] if text != ""]
        named = dict(zip(columns, row, strict=False))
        lines.append(json.dumps({**named, "classes": classes, "probabilities": probabilities}) + "\n")
    return "".join(lines).encode()


def _sync(file: io.FileIO, path: Path, log: Log) -> None:
    with disk_errors(path):
        os.fsync(file.fileno())
    log.sync()
