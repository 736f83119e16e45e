"""Per-batch records: append-only files of checksummed lines that survive a kill at any moment.

A line is the CRC-32 of its text in hexadecimal, a space, and the text, which is JSON. Each line is handed to the
operating system in one write, so SIGKILL cannot lose it; ``sync`` makes all lines safe from a power cut too. A torn
last line is cut off when the file is opened; damage before that is an error.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fozo.bench.folder import disk_errors
from fozo.core.objective import entropies
from fozo.errors import FozoError

BINS = 15
"""Confidence bins of the expected calibration error, as in Guo et al. (2017)."""

USUAL = ("loss", "epsilon", "rate")
"""What a method may tell that every line has a place for, filled or null."""


@dataclass(frozen=True)
class BatchRecord:
    """What one batch gave. Everything here is a function of model, stream and seed: no times."""

    index: int
    domain: str
    images: int
    correct: int
    correct5: int
    entropy: float
    """Mean entropy of the predictions, in nats."""
    passes: float
    """Forward passes that the method made for each image, on average; whole numbers are written as such."""
    bin_images: tuple[int, ...]
    bin_correct: tuple[int, ...]
    bin_confidence: tuple[float, ...]
    """Images, right predictions and sum of confidences in each bin of confidence."""
    told: Mapping[str, float] = field(default_factory=dict)
    """What the method told of itself (:meth:`fozo.methods.base.Method.telling`): its loss, mostly."""


def score(logits: npt.NDArray[np.floating], labels: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Compare predictions ``[B, classes]`` with the labels: the fields of a record that follow from them."""
    x = logits.astype(np.float64)
    x = np.exp(x - x.max(axis=1, keepdims=True))
    confidence = (x / x.sum(axis=1, keepdims=True)).max(axis=1)
    right = logits.argmax(axis=1) == labels
    own = np.take_along_axis(logits, labels[:, None], axis=1)
    # Rank of the true class; ties count against it, so that a constant output scores nothing.
    rank = (logits >= own).sum(axis=1)
    which = np.minimum((confidence * BINS).astype(int), BINS - 1)
    return {
        "images": len(labels),
        "correct": int(right.sum()),
        "correct5": int((rank <= 5).sum()),
        "entropy": float(entropies(logits).mean()),
        "bin_images": tuple(np.bincount(which, minlength=BINS).tolist()),
        "bin_correct": tuple(np.bincount(which[right], minlength=BINS).tolist()),
        "bin_confidence": tuple(np.bincount(which, weights=confidence, minlength=BINS).tolist()),
    }


@dataclass(frozen=True)
class Cost:
    """What one batch cost on this machine."""

    index: int
    seconds: float
    """Time inside the method: adapting and predicting, without reading images."""
    memory: int
    """Peak so far in bytes: resident size of the process on CPU, the allocator's peak on CUDA."""


class Log:
    """An append-only file of checksummed lines."""

    def __init__(self, path: Path) -> None:
        """Open or create it, cutting off a torn last line."""
        self.path = path
        with disk_errors(path):
            self._file = path.open("ab", buffering=0)
        self._ends = [0]
        data = path.read_bytes()
        for line in data.splitlines(keepends=True):
            if decode(line) is None:
                if self._ends[-1] + len(line) < len(data):
                    raise FozoError(f"{path} is damaged in line {len(self._ends)}; remove its folder and run it again")
                break
            self._ends.append(self._ends[-1] + len(line))
        self.truncate(len(self))

    def __len__(self) -> int:
        """Count the lines."""
        return len(self._ends) - 1

    def truncate(self, lines: int) -> None:
        """Keep the first ``lines`` lines."""
        del self._ends[lines + 1 :]
        with disk_errors(self.path):
            os.ftruncate(self._file.fileno(), self._ends[-1])

    def append(self, facts: Mapping[str, object]) -> None:
        """Write one line, or, where the disk is full, none."""
        line = encode(facts)
        with disk_errors(self.path):
            try:
                if self._file.write(line) != len(line):
                    raise OSError(0, "no space left on the disk")
            except OSError:
                os.ftruncate(self._file.fileno(), self._ends[-1])
                raise
        self._ends.append(self._ends[-1] + len(line))

    def sync(self) -> None:
        """Make what was written survive a power cut."""
        with disk_errors(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def encode(facts: Mapping[str, object]) -> bytes:
    """Make a line."""
    text = json.dumps(facts, separators=(",", ":"), allow_nan=False).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def decode(line: bytes) -> dict[str, Any] | None:
    """Read a line; ``None`` if it is torn or damaged."""
    check, _, text = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or b"%08x" % zlib.crc32(text) != check:
        return None
    facts: dict[str, Any] = json.loads(text)
    return facts


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FozoError(f"cannot read {path}: {error.strerror}; run the experiment again") from error
    found = [decode(line) for line in data.splitlines(keepends=True)]
    if None in found:
        raise FozoError(f"{path} is damaged in line {found.index(None) + 1}; remove its folder and run it again")
    return [facts for facts in found if facts is not None]


def read_records(path: Path) -> list[BatchRecord]:
    """Read a finished run's records."""
    return [_record(facts) for facts in _lines(path)]


def _record(facts: dict[str, Any]) -> BatchRecord:
    own = {name: facts.pop(name) for name in BatchRecord.__dataclass_fields__ if name in facts}
    for name in ("bin_images", "bin_correct", "bin_confidence"):
        own[name] = tuple(own[name])
    return BatchRecord(**own, told={name: value for name, value in facts.items() if value is not None})


def read_costs(path: Path) -> list[Cost]:
    """Read a finished run's costs."""
    return [Cost(**facts) for facts in _lines(path)]


def to_line(record: BatchRecord | Cost) -> dict[str, Any]:
    """Give a record's fields as plain values; what the method told stands beside the others, flat."""
    facts = asdict(record)
    if isinstance(record, Cost):
        return facts
    told = facts.pop("told")
    taken = next((name for name in told if name in BatchRecord.__dataclass_fields__), None)
    if taken is not None:
        raise FozoError(f"a method tells of {taken!r}, which every record has already; let it use another name")
    return {**facts, "passes": plain(record.passes), **dict.fromkeys(USUAL), **told}


def plain(value: float) -> float:
    """Make a whole number an int, so that it is written without a point."""
    return int(value) if value == int(value) else value
