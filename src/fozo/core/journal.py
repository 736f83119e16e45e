"""The journal: an append-only file from which an adaptation can be rebuilt, audited and undone.

A step of FOZO is its seed and a few numbers, so a batch costs a few dozen bytes whatever the model's size.

Layout (little-endian): the magic ``FOZOJNL1``, the length and the JSON text of a header, its CRC-32; then records.
A record is ``kind (u8), n (u8), index (u64)`` and 16 bits to check these three, then for a step ``n`` gradients, eps,
rate and loss (f64) and the CRC-32 of the point that the step led to, then the CRC-32 of the record. A ``rewind`` record
says that the run went back to an earlier step (a reset is a rewind to 0): what it undid stays in the file.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fozo.core.files import atomic_write
from fozo.core.noise import Noise, PhiloxNoise
from fozo.core.spsa import Step, advance
from fozo.errors import FozoError

Array = npt.NDArray[np.float64]

MAGIC = b"FOZOJNL1"
HEAD = struct.Struct("<BBQ")
CHECK = struct.Struct("<H")
CRC = struct.Struct("<I")
STEP, REWIND = 1, 2


def _head(kind: int, n: int, index: int) -> bytes:
    head = HEAD.pack(kind, n, index)
    # The head tells the record's length, so it is checked by itself: a damaged length must not look like a torn end.
    return head + CHECK.pack(zlib.crc32(head) & 0xFFFF)


BODY = HEAD.size + CHECK.size


@dataclass(frozen=True)
class Entry:
    """A step and the checksum of the point it led to."""

    step: Step
    checksum: int


@dataclass(frozen=True)
class JournalFile:
    """What a journal holds: its header, the steps still in force, and the length of its undamaged part."""

    header: Mapping[str, object]
    entries: list[Entry]
    length: int

    @property
    def start(self) -> Array:
        """The point before the first step."""
        shape = [int(n) for n in self.header["shape"]]  # type: ignore[attr-defined]
        point: Array = np.frombuffer(base64.b64decode(str(self.header["start"])), dtype="<f8").reshape(shape).copy()
        return point


def checksum(point: Array) -> int:
    """CRC-32 of a point's bytes: equal only for bit-equal points, but for one chance in four billion."""
    return zlib.crc32(np.ascontiguousarray(point, dtype="<f8").tobytes())


def make_header(fingerprint: str, model: str, seed: int | None, start: Array, options: Mapping[str, object]) -> bytes:
    """Encode a header. The starting point is stored, not its seed: it is small and may have been given."""
    text = json.dumps(
        {
            "fingerprint": fingerprint,
            "model": model,
            "seed": seed,
            "shape": list(start.shape),
            "start": base64.b64encode(np.ascontiguousarray(start, dtype="<f8").tobytes()).decode(),
            "options": dict(options),
        },
        sort_keys=True,
    ).encode()
    body = MAGIC + struct.pack("<I", len(text)) + text
    return body + CRC.pack(zlib.crc32(body))


def read_journal(path: str | os.PathLike[str]) -> JournalFile:
    """Read a journal. A torn last record (power cut) is left out; damage before the end is an error."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise FozoError(f"cannot read the journal {os.fspath(path)}: {error.strerror}; check the path") from error
    header, offset = _read_header(data, os.fspath(path))
    entries: list[Entry] = []
    while offset < len(data):
        record = _read_record(data, offset)
        if record is None:
            if _looks_torn(data, offset):
                break
            raise FozoError(
                f"the journal {os.fspath(path)} is damaged at byte {offset}, before its end; use a copy from before"
            )
        kind, index, entry, offset = record
        if index > len(entries):
            raise FozoError(f"the journal {os.fspath(path)} jumps from batch {len(entries)} to {index}; it is damaged")
        if kind == REWIND:
            del entries[index:]
        elif entry is not None:
            entries.append(entry)
    return JournalFile(header, entries, offset)


def _read_header(data: bytes, name: str) -> tuple[dict[str, object], int]:
    start = len(MAGIC) + 4
    if data[: len(MAGIC)] != MAGIC or len(data) < start:
        raise FozoError(f"{name} is not a fozo journal; give the file that journal= wrote")
    end = start + int(struct.unpack_from("<I", data, len(MAGIC))[0])
    if len(data) < end + CRC.size or CRC.unpack_from(data, end)[0] != zlib.crc32(data[:end]):
        raise FozoError(f"the header of the journal {name} is damaged; use a copy from before")
    header: dict[str, object] = json.loads(data[start:end])
    return header, end + CRC.size


def _record_length(data: bytes, offset: int) -> int | None:
    """Length of the record at ``offset``, or ``None`` if its head is cut off or damaged."""
    if offset + BODY > len(data):
        return None
    kind, n, index = HEAD.unpack_from(data, offset)
    if data[offset : offset + BODY] != _head(kind, n, index) or kind not in (STEP, REWIND):
        return None
    return BODY + CRC.size + (8 * (n + 3) + CRC.size if kind == STEP else 0)


def _read_record(data: bytes, offset: int) -> tuple[int, int, Entry | None, int] | None:
    length = _record_length(data, offset)
    if length is None or offset + length > len(data):
        return None
    end = offset + length - CRC.size
    if CRC.unpack_from(data, end)[0] != zlib.crc32(data[offset:end]):
        return None
    kind, n, index = HEAD.unpack_from(data, offset)
    if kind == REWIND:
        return kind, index, None, offset + length
    numbers = struct.unpack_from(f"<{n + 3}d", data, offset + BODY)
    epsilon, rate, loss = numbers[n:]
    entry = Entry(Step(index, tuple(numbers[:n]), epsilon, rate, loss), CRC.unpack_from(data, end - CRC.size)[0])
    return kind, index, entry, offset + length


def _looks_torn(data: bytes, offset: int) -> bool:
    """Whether the bad record at ``offset`` is the file's last, as after a power cut."""
    length = _record_length(data, offset)
    if length is not None:
        return offset + length >= len(data)
    # Zeros are what some file systems leave when the new length reached the disk and the data did not.
    return len(data) - offset < BODY or not any(data[offset:])


class Journal:
    """An open journal. Each record is handed to the operating system before the batch's prediction is returned."""

    def __init__(self, path: str | os.PathLike[str], header: bytes) -> None:
        """Create the file, or continue it if its header is the same; a torn last record is cut off."""
        self.path = Path(path)
        self.steps = 0
        if not self.path.exists():
            with atomic_write(self.path) as stream:
                stream.write(header)
        else:
            self._check_header(header)
            found = read_journal(self.path)
            self.steps = len(found.entries)
            os.truncate(self.path, found.length)
        self._stream = self.path.open("ab", buffering=0)

    def _check_header(self, header: bytes) -> None:
        with self.path.open("rb") as stream:
            existing = stream.read(len(header))
        if existing == header:
            return
        theirs = _read_header(self.path.read_bytes(), str(self.path))[0]
        ours = _read_header(header, "new header")[0]
        differing = [key for key in ours if theirs.get(key) != ours[key]]
        raise FozoError(
            f"the journal {self.path} is of {theirs.get('model')} and differs in {', '.join(differing)}; "
            f"use another file for this run"
        )

    def append(self, step: Step, point: Array) -> None:
        """Record a step and the point it led to."""
        if step.index > self.steps:
            raise FozoError(
                f"the journal {self.path} ends at batch {self.steps}, but the run is at {step.index}; "
                f"restore an earlier state or use a new journal"
            )
        self.rewind(step.index)
        n = len(step.gradients)
        numbers = (*step.gradients, step.epsilon, step.rate, step.loss)
        body = _head(STEP, n, step.index) + struct.pack(f"<{n + 3}d", *numbers) + CRC.pack(checksum(point))
        self._write(body)
        self.steps += 1

    def rewind(self, index: int) -> None:
        """Record that the run went back to the state before step ``index``, if it did."""
        if index < self.steps:
            self._write(_head(REWIND, 0, index))
            self.steps = index

    def _write(self, body: bytes) -> None:
        record = body + CRC.pack(zlib.crc32(body))
        offset = self._stream.tell()
        try:
            written = self._stream.write(record)
        except OSError as error:
            written, reason = -1, error.strerror or str(error)
        else:
            reason = "disk full"
        if written != len(record):
            os.truncate(self.path, offset)
            raise FozoError(f"cannot append to the journal {self.path}: {reason}; free some space")

    def close(self) -> None:
        """Make what was written durable and close the file."""
        if not self._stream.closed:
            os.fsync(self._stream.fileno())
            self._stream.close()


def replay(
    journal: str | os.PathLike[str],
    *,
    fingerprint: str | None = None,
    batches: int | None = None,
    noise: Noise | None = None,
) -> Array:
    """Rebuild the prompts that a journal leads to, bit for bit, without the model and without any image.

    Args:
        journal: the file that ``journal=`` wrote.
        fingerprint: ``engine.spec.fingerprint`` of the model they are for; another model's journal is refused.
        batches: stop after this many batches, to see or undo the adaptation as it was then; by default all.
        noise: the directions, where the run was given its own.
    """
    found = read_journal(journal)
    name = os.fspath(journal)
    if fingerprint is not None and found.header["fingerprint"] != fingerprint:
        raise FozoError(
            f"the journal {name} is of {found.header['model']} ({str(found.header['fingerprint'])[:12]}), not of the "
            f"model given ({fingerprint[:12]}); use that model's own journal"
        )
    if batches is not None and not 0 <= batches <= len(found.entries):
        raise FozoError(f"the journal {name} holds {len(found.entries)} batches, not {batches}; ask for fewer")
    seed = found.header["seed"]
    if noise is None:
        if seed is None:
            raise FozoError(f"the run of {name} was given its own noise; pass the same noise= to replay it")
        noise = PhiloxNoise(int(seed))  # type: ignore[call-overload]
    point = found.start
    for entry in found.entries[:batches]:
        point = advance(point, entry.step, noise)
        if checksum(point) != entry.checksum:
            raise FozoError(
                f"replaying {name} gives other prompts from batch {entry.step.index} on; use the noise and the NumPy "
                f"version of the original run"
            )
    return point
