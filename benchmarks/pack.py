"""Finished runs of ``fozo bench`` as one small archive for ``results/``, from one ``--out`` or from several.

    python -m benchmarks.pack results/evidence.tar.xz RUNS [RUNS ...]

What machines or processes ran beside each other in folders of their own is joined: the recipe is that of the last
folder, with the rows that only the others have. States, calibration and
unfinished runs stay behind, and so do the names of folders: recorded commands keep the last part of a path only. The
same runs give the same bytes. Unpacked as ``--out``, the archive is where ``fozo bench`` goes on.
"""

import argparse
import shlex
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory

from benchmarks.common import refusals
from fozo.bench.store import CONDITIONS, COSTS, EXPERIMENT, RECORDS, RESULT, Store, stores
from fozo.errors import FozoError
from fozo.io import atomic_write, read_json, write_json


def bare(command: str) -> str:
    """A command without folders: of every path its last part, also in ``--data NAME=DIR``."""
    words = []
    for word in shlex.split(command):
        name, equals, path = word.rpartition("=")
        words.append(f"{name}{equals}{PurePath(path).name}" if "/" in path else word)
    return shlex.join(words)


def gather(roots: Sequence[Path], into: Path) -> None:
    for store in (store for root in roots for store in stores(root)):
        target = into / store.folder.name
        target.mkdir(exist_ok=True)
        Store(target).write(store.recipe())
        for result in sorted(store.folder.glob(f"*/{RESULT}")):
            run = target / result.parent.name
            run.mkdir(exist_ok=True)
            for name in (EXPERIMENT, RECORDS, COSTS, RESULT):
                (run / name).write_bytes((result.parent / name).read_bytes())
            conditions = read_json(result.parent / CONDITIONS)
            write_json(run / CONDITIONS, {**conditions, "command": bare(conditions["command"])})
    for folder in sorted(into.iterdir()):
        lost = Store(folder).stale()
        if lost:
            raise FozoError(f"{lost[0].name} is no row of the recipe of {roots[-1]}; name the newest folder last")


def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A member that says nothing of who packed it, or when."""
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def pack(target: Path, roots: Sequence[Path]) -> None:
    with TemporaryDirectory() as scratch:
        gather(roots, Path(scratch))
        with atomic_write(target) as file, tarfile.open(fileobj=file, mode="w:xz") as archive:
            for folder in sorted(Path(scratch).iterdir()):
                archive.add(folder, folder.name, filter=plain)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUNS")
    given = parser.parse_args()
    with refusals("pack"):
        pack(given.target, given.runs)


if __name__ == "__main__":
    main()
