"""The journal: an append-only file from which an adaptation can be rebuilt, audited and undone.

A step of FOZO is its seed and a few numbers, so a batch costs some hundred bytes whatever the model's size. The file is
a :class:`fozo.io.Log`: a header, then a line for each step with its projected gradients, eps, rate and loss, and the
CRC-32 of the point that the step led to. A ``rewind`` line says that the run went back to an earlier step (a reset is a
rewind to 0): what it undid stays in the file.
"""

from __future__ import annotations

import base64
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fozo.core.noise import Noise, PhiloxNoise
from fozo.core.spsa import Step, advance
from fozo.errors import FozoError
from fozo.io import MAX_LINE, Log, as_dataclass, atomic_write, decode, encode, open_regular, read_log
from fozo.types import Array

KIND = "fozo journal"
MAX_DRAWS = 1 << 24
"""Numbers drawn for one step, at most: a few thousand are usual, and a forged line could ask for anything."""


@dataclass(frozen=True)
class JournalFile:
    """What a journal holds: its header, and the steps still in force with the checksums of where they led."""

    header: Mapping[str, object]
    steps: list[tuple[Step, int]]

    @property
    def start(self) -> Array:
        """The point before the first step."""
        shape = self.header.get("shape")
        try:
            values = np.frombuffer(base64.b64decode(str(self.header["start"]), validate=True), dtype="<f8")
            if not isinstance(shape, list) or not all(type(side) is int and side >= 0 for side in shape):
                raise ValueError(f"its shape is {shape!r}")
            if not np.isfinite(values).all():
                raise ValueError("it is not finite")
            point: Array = values.reshape(shape).copy()
        except (KeyError, TypeError, ValueError) as error:
            raise FozoError(f"the journal's first point cannot be read ({error}); use a copy from before") from error
        return point


def checksum(point: Array) -> int:
    """CRC-32 of a point's bytes: equal only for bit-equal points, but for one chance in four billion."""
    return zlib.crc32(np.ascontiguousarray(point, dtype="<f8").tobytes())


def make_header(
    fingerprint: str, model: str, seed: int | None, start: Array, identity: Mapping[str, object]
) -> dict[str, object]:
    """Say what a journal is of. The starting point is stored, not its seed: it is small and may have been given."""
    text = base64.b64encode(np.ascontiguousarray(start, dtype="<f8").tobytes()).decode()
    facts = {"fingerprint": fingerprint, "model": model, "seed": seed, "shape": list(start.shape), "start": text}
    return {**identity, "kind": KIND, **facts}


def read_journal(path: str | os.PathLike[str]) -> JournalFile:
    """Read a journal. A torn last line (power cut) is left out; damage before the end is an error."""
    file = Path(path)
    lines = read_log(file)
    with open_regular(file) as stream:
        header = decode(stream.readline(MAX_LINE))
    if header is None or header.get("kind") != KIND:
        raise FozoError(f"{file} is not a fozo journal, or its header is damaged; give the file that journal= wrote")
    found = JournalFile(next(lines), [])
    steps, most = found.steps, MAX_DRAWS // max(1, found.start.size)
    for line in lines:
        what = f"batch {len(steps)} of the journal {file}"
        rewind, led_to = line.pop("rewind", None), line.pop("led_to", None)
        step = as_dataclass(Step, line, what) if rewind is None else None
        index = rewind if step is None else step.index
        if type(index) is not int or not 0 <= index <= len(steps):
            raise FozoError(f"the journal {file} jumps from batch {len(steps)} to {index!r:.20}; it is damaged")
        del steps[index:]
        if step is not None:
            if type(led_to) is not int or not 1 <= len(step.gradients) <= most:
                raise FozoError(f"{what} has no checksum, or gradients that no step has; use a copy from before")
            steps.append((step, led_to))
    return found


class Journal:
    """An open journal. Each line is handed to the operating system before the batch's prediction is returned."""

    def __init__(self, path: str | os.PathLike[str], header: Mapping[str, object]) -> None:
        """Create the file, or continue it if its header is the same; a torn last line is cut off."""
        self.path = Path(path)
        self.steps = 0
        if not self.path.exists():
            with atomic_write(self.path) as stream:
                stream.write(encode(header))
        else:
            found = read_journal(self.path)
            differing = [key for key in header if found.header.get(key) != header[key]]
            if differing:
                raise FozoError(
                    f"the journal {self.path} is of {found.header.get('model')} and differs in {', '.join(differing)}; "
                    f"use another file for this run"
                )
            self.steps = len(found.steps)
        self._log = Log(self.path)

    def append(self, step: Step, point: Array) -> None:
        """Record a step and the point it led to."""
        if step.index > self.steps:
            raise FozoError(
                f"the journal {self.path} ends at batch {self.steps}, but the run is at {step.index}; "
                f"restore an earlier state or use a new journal"
            )
        self.rewind(step.index)
        self._log.append({**asdict(step), "led_to": checksum(point)})
        self.steps += 1

    def rewind(self, index: int) -> None:
        """Record that the run went back to the state before step ``index``, if it did."""
        if index < self.steps:
            self._log.append({"rewind": index})
            self.steps = index

    def close(self) -> None:
        """Make what was written durable and close the file."""
        self._log.sync()
        self._log.close()


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
    name, header = os.fspath(journal), found.header
    if fingerprint is not None and header.get("fingerprint") != fingerprint:
        raise FozoError(
            f"the journal {name} is of {header.get('model')} ({str(header.get('fingerprint'))[:12]}), not of the "
            f"model given ({fingerprint[:12]}); use that model's own journal"
        )
    if batches is not None and not 0 <= batches <= len(found.steps):
        raise FozoError(f"the journal {name} holds {len(found.steps)} batches, not {batches}; ask for fewer")
    seed = header.get("seed")
    if noise is None:
        if type(seed) is not int:
            raise FozoError(f"the run of {name} was given its own noise; pass the same noise= to replay it")
        noise = PhiloxNoise(seed)
    point = found.start
    for step, led_to in found.steps[:batches]:
        with np.errstate(over="ignore", invalid="ignore"):  # of forged numbers; the checksum tells
            point = advance(point, step, noise)
        if checksum(point) != led_to:
            raise FozoError(
                f"replaying {name} gives other prompts from batch {step.index} on; use the noise and the NumPy "
                f"version of the original run"
            )
    return point
