"""Damaged and forged files for every reader: each gives a valid object or a FozoError, in bounded memory, and in time.

    python -m tests.fuzz --inputs 10000                  # of each reader, which has a process of its own
    python -m tests.fuzz --inputs 500 --reader image state

A whole file is the beginning. Hypothesis chooses what is done to it: bits flipped, pieces cut out, doubled and
overwritten, numbers replaced by enormous ones, values of JSON by others. That is done either to the file, or to a part
of it (an array of an archive, a chunk of a PNG), whose lengths and checksums are then made right
again, so that the damage gets past them to the code behind. What a reader accepts is used once, as its owner would.

It prints a line a reader; a file that breaks a promise is saved, and hypothesis shows the smallest such damage.
"""

# ruff: noqa: E402 - numeric libraries read the number of threads when they are imported

import argparse
import faulthandler
import json
import multiprocessing
import os
import re
import resource
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path

for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fozo.errors import FozoError

Parts = list[bytes]
Edit = tuple[str, int, int]
SECONDS = 60  # after which an input counts as a hang, on a busy machine too
SPARE = 4 << 30  # address space beyond what is used at the beginning: a runaway reader fails instead of the machine
ODD_BYTES = (
    b"\0" * 8, b"\xff" * 8, b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\0\0\0\0\1\0\0\0", b"\x80" * 9 + b"\1", b"\n",
)  # fmt: skip
ODD_NUMBERS = (b"0", b"-1", b"99999999", b"9" * 19, b"9" * 40, b"1e999", b"-0.0", b"NaN", b"1e300", b"2147483648")
ODD_VALUES: tuple[object, ...] = (
    None, True, 0, -1, 10**9, 10**18, 10**40, 0.5, 1e300, -1e300, 1e-320, "", "x", "\udce9", "../x", [], [0], [[]],
    ["a", 1], {}, {"a": {}}, [10**9, 10**9], [-1, -1],
)  # fmt: skip


@dataclass
class Reader:
    """A reader, whole files of the kind that it reads as parts, and how parts become a file again."""

    read: Callable[[Path], None]  # reads a file and uses what was in it
    whole: Sequence[Parts]
    build: Callable[[Parts], bytes]
    name: str  # of the file: readers go by endings
    memory: int = 256 << 20  # bytes that reading may take


@dataclass
class Outcome:
    """What became of a reader's inputs."""

    accepted: int = 0
    refused: int = 0
    memory: int = 0
    slowest: float = 0.0
    sentences: set[str] = field(default_factory=set)


def damage(data: bytes, edit: Edit) -> bytes:
    """Change some bytes; ``edit`` says how and where."""
    kind, a, b = edit
    if kind == "json":
        start = max(0, data.find(b'{"'))
        with suppress(ValueError, RecursionError):
            return data[:start] + forge(data[start:], a, b)
    if kind == "number":
        found = [match.span() for match in re.finditer(rb"-?\d+(\.\d+)?(e[+-]?\d+)?", data)]
        if found:
            start, end = found[a % len(found)]
            return data[:start] + ODD_NUMBERS[b % len(ODD_NUMBERS)] + data[end:]
    place = a % (len(data) + 1)
    if kind == "flip" and place < len(data):
        return data[:place] + bytes([data[place] ^ (1 << b % 8)]) + data[place + 1 :]
    if kind == "cut":
        return data[:place]
    if kind == "remove":
        return data[:place] + data[place + 1 + b % 64 :]
    if kind == "double":
        return data[:place] + data[place : place + 1 + b % 4096] * 2 + data[place + 1 + b % 4096 :]
    odd = ODD_BYTES[b % len(ODD_BYTES)]
    return data[:place] + odd + data[place + len(odd) :]


def forge(data: bytes, a: int, b: int) -> bytes:
    """Put another value at some place of a JSON text."""
    payload = json.loads(data)
    places: list[tuple[dict[str, object] | list[object], str | int]] = []

    def walk(value: object) -> None:
        if isinstance(value, dict):
            places.extend((value, key) for key in value)
            list(map(walk, value.values()))
        elif isinstance(value, list):
            places.extend((value, index) for index in range(min(3, len(value))))
            list(map(walk, value[:3]))

    walk(payload)
    if not places:
        return data
    inside, key = places[a % len(places)]
    if b % 5 == 0:
        del inside[key]  # type: ignore[arg-type]
    else:
        inside[key] = ODD_VALUES[b % len(ODD_VALUES)]  # type: ignore[index]
    return json.dumps(payload).encode()


KINDS = ("flip", "cut", "remove", "double", "odd", "number", "json")
EDITS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1)), min_size=1, max_size=3
)


def kibibytes(what: str) -> int:
    found = re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) if found else 0


def fuzz(reader: Reader, inputs: int, folder: Path, number: int = 0) -> Outcome:
    """Try a reader on n inputs; raises what it should not have raised."""
    outcome, path = Outcome(), folder / reader.name
    for parts in reader.whole:  # as they are, they are read, and what is only done once is done
        path.write_bytes(reader.build(parts))
        reader.read(path)

    @seed(number)
    @settings(
        max_examples=inputs, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink), print_blob=False, report_multiple_bugs=False,
    )  # fmt: skip
    @given(st.integers(0, 2**16), st.integers(0, 2**16), EDITS)
    def attempt(which: int, place: int, edits: list[Edit]) -> None:
        parts = list(reader.whole[which % len(reader.whole)])
        place %= len(parts) + 2
        if place < len(parts):
            parts[place] = reduce(damage, edits, parts[place])
        data = reader.build(parts)
        path.write_bytes(data if place < len(parts) else reduce(damage, edits, data))
        one_input(reader, path, outcome)

    attempt()
    return outcome


def one_input(reader: Reader, path: Path, outcome: Outcome) -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    before, start = kibibytes("VmRSS"), time.monotonic()
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(path)
        outcome.accepted += 1
    except FozoError as error:
        outcome.refused += 1
        outcome.sentences.add(re.sub(r"\d+|'[^']*'", "#", str(error).replace(str(path.parent), ""))[:80])
    finally:
        faulthandler.cancel_dump_traceback_later()
    outcome.slowest = max(outcome.slowest, time.monotonic() - start)
    taken = (kibibytes("VmHWM") - before) << 10
    outcome.memory = max(outcome.memory, taken)
    assert taken <= reader.memory, f"{taken >> 20} MiB for a file of {path.stat().st_size} bytes"


def run(name: str, inputs: int, number: int, folder: Path) -> None:
    from tests.fuzz_images import READERS

    reader = READERS[name](folder)
    limit = (kibibytes("VmSize") << 10) + SPARE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    start = time.monotonic()
    try:
        outcome = fuzz(reader, inputs, folder, number)
    except BaseException:
        print(f"{name}: the file is {folder / reader.name}", file=sys.stderr)
        raise
    print(
        f"{name}: {inputs} inputs, {outcome.refused} refused in {len(outcome.sentences)} ways, {outcome.accepted} "
        f"accepted, at most {outcome.memory >> 20} MiB and {outcome.slowest:.2f} s, {time.monotonic() - start:.0f} s",
        flush=True,
    )


def main() -> None:
    from tests.fuzz_images import READERS
    from tests.methods.test_every_method import source

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1000, help="of each reader")
    parser.add_argument("--reader", nargs="*", default=list(READERS), choices=list(READERS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    failed = []
    source()  # once for all: torch imports a good deal when it is first used
    for name in options.reader:
        folder = Path(tempfile.mkdtemp(prefix=f"fozo-fuzz-{name}-"))
        # Forked, so that libraries are imported once; threads are started in the child only.
        arguments = (name, options.inputs, options.seed, folder)
        child = multiprocessing.get_context("fork").Process(target=run, args=arguments)
        child.start()
        child.join()
        if child.exitcode:
            failed.append(f"{name} (exit code {child.exitcode}, {folder})")
        else:
            shutil.rmtree(folder)
    if failed:
        sys.exit(f"broken promises: {', '.join(failed)}")


if __name__ == "__main__":
    main()
