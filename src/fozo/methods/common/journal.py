"""Journals: append-only files from which an adaptation can be rebuilt, audited and undone.

A journal is a :class:`fozo.io.Log`: a header that says which method and model it is of, then an entry for each batch
with what it changed. A ``rewind`` line says that the run went back to an earlier batch (a reset is a rewind to 0): what
that undid stays in the file. One process writes it at a time; others may read it meanwhile.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from fozo.errors import FozoError
from fozo.io import MAX_LINE, Log, decode, open_regular, read_log

KIND = "fozo journal"
VERSION = 2
FIRST_BYTES = b'{"kind":"fozo journal"'


@dataclass(frozen=True)
class JournalFile:
    """A journal that was read: its header, and which of its lines are in force."""

    path: Path
    header: Mapping[str, Any]
    kept: list[int]

    def replay(self, follow: Callable[[Mapping[str, Any]], None], batches: int | None = None) -> int:
        """Call ``follow`` with the entries in force, of the first ``batches`` batches or of all; return how many."""
        if batches is not None and not 0 <= batches <= len(self.kept):
            raise FozoError(f"the journal {self.path} holds {len(self.kept)} batches, not {batches}; ask for fewer")
        wanted = set(self.kept[:batches])
        lines = islice(read_log(self.path), max(wanted, default=0) + 1)
        for entry in (line for number, line in enumerate(lines) if number in wanted):
            what = f"batch {entry['index']} of the journal {self.path} cannot be followed"
            try:
                follow(entry)
            except FozoError as error:
                raise FozoError(f"{what}: {error}") from error
            except Exception as error:  # a line with the right checksum that no run has written
                raise FozoError(f"{what} ({type(error).__name__}: {error}); restore it from a backup") from error
        return len(wanted)

    def check(self, header: Mapping[str, object]) -> None:
        differing = [key for key in header if self.header.get(key) != header[key]]
        if differing:
            what = f"the journal {self.path} is of {self.header.get('model')} and differs in {', '.join(differing)}"
            raise FozoError(f"{what}; use this run's own journal, or another file")


def read_journal(path: str | os.PathLike[str]) -> JournalFile:
    """Read a journal's header, and find its lines in force. A torn last line is left out; other damage is an error."""
    file = Path(path)
    kept = list[int]()
    with open_regular(file) as stream:
        header = decode(stream.readline(MAX_LINE))
    if header is None or header.get("kind") != KIND:
        raise FozoError(f"{file} is not a fozo journal, or its header is damaged; give the file that journal= wrote")
    if header.get("version") != VERSION:
        raise FozoError(f"the journal {file} is of fozo 0.2, which this version does not read; begin another file")
    for number, line in enumerate(read_log(file)):
        if number == 0:
            continue
        index = line.get("rewind", line.get("index"))
        if type(index) is not int or not 0 <= index <= len(kept):
            raise FozoError(f"the journal {file} jumps from batch {len(kept)} to {index!r:.20}; it is damaged")
        del kept[index:]
        if "rewind" not in line:
            kept.append(number)
    return JournalFile(file, header, kept)


class Journal:
    """An open journal. Each line is handed to the operating system before the batch's prediction is returned."""

    def __init__(self, path: str | os.PathLike[str], header: Mapping[str, object]) -> None:
        """Create the file, or continue it if its header is the same; a torn last line is cut off."""
        self.path = Path(path)
        if self.path.exists():  # a file that is not a journal is refused before anything is cut off it
            with open_regular(self.path) as stream:
                first = stream.readline(MAX_LINE)
            torn = not first.endswith(b"\n") and FIRST_BYTES.startswith(first[: len(FIRST_BYTES)])
            if not torn:
                read_journal(self.path)
        self._log = Log(self.path)
        try:
            if not len(self._log):
                self._log.append({"kind": KIND, "version": VERSION, **header})
            records = read_journal(self.path)
            records.check(header)
        except BaseException:
            self._log.close()
            raise
        self.batches = len(records.kept)
        self._process = os.getpid()

    def append(self, index: int, entry: Mapping[str, object]) -> None:
        if self._process != os.getpid():  # a lock is inherited: both would write
            raise FozoError(f"the journal {self.path} is the parent process's; give the adapters of a child their own")
        if index > self.batches:
            what = f"the journal {self.path} ends at batch {self.batches}, but the run is at {index}"
            raise FozoError(f"{what}; restore an earlier state or use a new journal")
        self.rewind(index)
        self._log.append({**entry, "index": index})
        self.batches += 1

    def rewind(self, index: int) -> None:
        """Record that the run went back to the state before batch ``index``, if it did."""
        if index < self.batches:
            self._log.append({"rewind": index})
            self.batches = index

    def close(self) -> None:
        self._log.sync()
        self._log.close()
