"""Files that are whole or not there: atomic writes, arrays without pickles, JSON, locks, and logs that survive a kill.

A reader of a file written here only ever sees the old version or the new one, never half of one.
"""

from __future__ import annotations

import json
import os
import secrets
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from fozo.errors import FozoError

HEADER = "__header__"
LOCK = ".lock"
Arrays = Mapping[str, npt.NDArray[np.generic]]


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a temporary file beside ``path`` and rename it onto ``path`` once it is complete and on disk."""
    target = Path(path)
    # The name is known before the file exists, so that a Ctrl-C at any moment after finds what to remove.
    temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}.part"
    try:
        try:
            stream = temporary.open("xb")
        except OSError as error:
            raise FozoError(f"cannot write {target}: {error.strerror}; choose a folder that exists") from error
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def save_arrays(path: str | os.PathLike[str], header: Mapping[str, object], arrays: Arrays) -> None:
    """Write named arrays and a JSON header as one ``.npz`` without pickles."""
    text = np.frombuffer(json.dumps(header, sort_keys=True).encode(), dtype=np.uint8)
    with atomic_write(path) as stream:
        np.savez(stream, **{HEADER: text}, **dict(arrays))  # type: ignore[arg-type]


def load_arrays(
    path: str | os.PathLike[str], kind: str
) -> tuple[dict[str, object], dict[str, npt.NDArray[np.generic]]]:
    """Read what :func:`save_arrays` wrote; ``kind`` is checked against the header's ``kind``."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(arrays.pop(HEADER).tobytes())
    except FileNotFoundError as error:
        raise FozoError(f"there is no file {os.fspath(path)}; check the path") from error
    except (OSError, EOFError, KeyError, ValueError, TypeError, zipfile.BadZipFile) as error:
        raise FozoError(
            f"{os.fspath(path)} is not a readable fozo file ({type(error).__name__}); it may be truncated: "
            f"write it again"
        ) from error
    found = header.get("kind") if isinstance(header, dict) else None
    if found != kind:
        raise FozoError(f"{os.fspath(path)} holds {found!r} where {kind!r} is needed; give the right file")
    return header, arrays


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk, or any other refusal of the system to write, into one sentence."""
    try:
        yield
    except OSError as error:
        raise FozoError(
            f"cannot write {path}: {error.strerror or error}; what was written before is whole, so free some space and "
            f"give the same command again"
        ) from error


@contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[None]:
    """Keep a folder to this process; the system drops the lock when the process dies, however it dies.

    Where another process has it, raise, or ``wait`` for it.
    """
    try:
        import fcntl
    except ImportError as error:  # Windows
        raise FozoError("this needs the file locks of Linux or macOS; run it there") from error
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            raise FozoError(f"another process is working in {folder}; wait for it, or choose another --out") from error
        yield
    finally:
        os.close(descriptor)


def remove_temporary_files(folder: Path) -> None:
    """Remove the temporary files that a killed process left behind."""
    for part in folder.glob(".*.part"):
        part.unlink(missing_ok=True)


def write_json(path: Path, facts: Mapping[str, object]) -> None:
    """Write a JSON file atomically."""
    text = json.dumps(facts, indent=1, allow_nan=False) + "\n"  # unsorted: domains keep the order of the stream
    with disk_errors(path), atomic_write(path) as stream:
        stream.write(text.encode())


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object."""
    try:
        facts = json.loads(path.read_bytes())
    except OSError as error:
        raise FozoError(f"cannot read {path}: {error.strerror}; check the path") from error
    except ValueError as error:
        raise FozoError(f"{path} is not readable JSON ({error}); remove its folder and run it again") from error
    if not isinstance(facts, dict):
        raise FozoError(f"{path} should hold a JSON object; remove its folder and run it again")
    return facts


class Log:
    """An append-only file of checksummed lines that survives a kill at any moment.

    A line is the CRC-32 of its text in hexadecimal, a space, and the text, which is JSON. Each line is handed to the
    operating system in one write, so SIGKILL cannot lose it; ``sync`` makes all lines safe from a power cut too. A torn
    last line is cut off when the file is opened; damage before that is an error.
    """

    def __init__(self, path: Path) -> None:
        """Open or create it, cutting off a torn last line."""
        self.path = path
        with disk_errors(path):
            self._file = path.open("ab", buffering=0)
        self._ends = [0, *_lines(path)[1]]
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
    facts = json.loads(text)
    return facts if isinstance(facts, dict) else None


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read all lines, without a torn last one."""
    return _lines(path)[0]


def _lines(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """Read the whole lines of a log, and where each ends."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FozoError(f"cannot read {path}: {error.strerror}; check the path") from error
    found: list[dict[str, Any]] = []
    ends: list[int] = []
    end = 0
    for line in data.splitlines(keepends=True):
        end += len(line)
        facts = decode(line)
        if facts is None and (end < len(data) or line.endswith(b"\n")):  # a torn line lacks its end
            raise FozoError(f"{path} is damaged in line {len(found) + 1}; use a copy from before")
        if facts is not None:
            found.append(facts)
            ends.append(end)
    return found, ends
