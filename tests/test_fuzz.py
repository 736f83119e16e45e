"""Every reader on a few damaged files, each time the same; ``python -m tests.fuzz --inputs 10000`` tries more."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import Reader, fuzz
from tests.fuzz_images import READERS
from tests.helpers import REPO


def test_every_reader_gives_a_valid_object_or_a_sentence() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--inputs", "12"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if "12 inputs" in line]
    assert len(lines) == len(READERS)


def test_the_watch_sees_what_it_is_for(tmp_path: Path) -> None:
    """A reader that takes much memory, or raises something else than a FozoError, has to be caught at it."""
    whole = b"not damaged"

    def hungry(path: Path) -> None:
        if path.read_bytes() != whole:
            assert len(b"x" * (300 << 20))

    def clumsy(path: Path) -> None:
        if path.read_bytes() != whole:
            raise KeyError(path.name)

    with pytest.raises(AssertionError, match="MiB for a file of"):
        fuzz(Reader(hungry, [[whole]], b"".join, "a"), 20, tmp_path)
    with pytest.raises(KeyError):
        fuzz(Reader(clumsy, [[whole]], b"".join, "a"), 20, tmp_path)
