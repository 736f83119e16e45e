"""Files as an operator's disk has them: FIFOs and folders for files, links, kills, names in no encoding."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from fozo.errors import FozoError
from fozo.io import (
    atomic_write,
    check_output,
    disk_errors,
    open_output,
    open_regular,
    read_bytes,
    read_json,
    read_text,
    remove_temporary_files,
    temporary_folder,
)

WRITER = """
import sys, time
from fozo.io import atomic_write, temporary_folder
target, kind = sys.argv[1:]
with (atomic_write if kind == "file" else temporary_folder)(target):
    print("writing", flush=True)
    time.sleep(600)
"""


@pytest.fixture(params=["fifo", "folder", "socket", "device"])
def special(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Something that is no regular file, under a name like one's."""
    path = tmp_path / f"{request.param}.jpg"
    if request.param == "fifo":
        os.mkfifo(path)
    elif request.param == "folder":
        path.mkdir()
    elif request.param == "socket":
        server = socket.socket(socket.AF_UNIX)
        here = Path.cwd()
        os.chdir(tmp_path)  # a socket's address has to be short
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)
        request.addfinalizer(server.close)
    else:
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 7))  # a /dev/full of our own
        except PermissionError:
            pytest.skip("only root makes device nodes")
    return path


def test_only_regular_files_are_read(special: Path) -> None:
    with pytest.raises(FozoError, match=r"cannot read .*: it is a .*; give a regular file"):
        open_regular(special)
    with pytest.raises(FozoError, match="it is a"):
        read_json(special)


def test_only_regular_files_are_replaced(special: Path) -> None:
    before = special.lstat()
    for write in (open_output, check_output):
        with pytest.raises(FozoError, match=r"cannot write .*: it is a .*; give a regular file"):
            write(special)
    link = special.with_name("link")
    link.symlink_to(special)
    with pytest.raises(FozoError, match="it is a"), atomic_write(link):
        pass
    after = special.lstat()
    assert (before.st_ino, before.st_mode) == (after.st_ino, after.st_mode)
    assert sorted(special.parent.iterdir()) == sorted([special, link])


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    for name in ("old", "new"):
        (tmp_path / name).symlink_to(Path("real") / name)
    (tmp_path / "real" / "old").write_bytes(b"old")
    for name in ("old", "new"):
        with atomic_write(tmp_path / name) as stream:
            stream.write(b"content")
        assert (tmp_path / name).is_symlink() and (tmp_path / "real" / name).read_bytes() == b"content"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(FozoError, match="cannot write"), atomic_write(tmp_path / "loop"):
        pass


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FozoError, match=r"there is no folder .*nowhere; choose a folder that exists"):
        check_output(tmp_path / "nowhere" / "a.csv")
    with pytest.raises(FozoError, match="there is no file"):
        open_regular(tmp_path / "nothing")


def test_space_is_only_asked_for_where_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(FozoError, match="free some space"), disk_errors(tmp_path):
        raise OSError(28, "No space left on device")
    with pytest.raises(FozoError, match="check the path"), disk_errors(tmp_path):
        raise PermissionError(13, "Permission denied")


def test_long_files_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / "long").open("wb") as file:
        file.truncate(1 << 40)  # a hole: takes no disk
    with pytest.raises(FozoError, match="longer than 1 MiB"):
        read_bytes(tmp_path / "long", 1 << 20)
    with pytest.raises(FozoError, match="longer than 16 MiB"):
        read_json(tmp_path / "long")
    (tmp_path / "latin").write_bytes("Müll".encode("latin-1"))
    with pytest.raises(FozoError, match="no text in UTF-8"):
        read_text(tmp_path / "latin")


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_litter_of_the_dead_is_swept_and_that_of_the_living_is_not(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "out.bin"
    command = [sys.executable, "-c", WRITER, str(target), kind]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    try:
        for writer in writers:
            assert writer.stdout is not None and writer.stdout.readline() == "writing\n"
        assert len(list(tmp_path.iterdir())) == 3
        for writer in writers[:2]:
            writer.kill()
            writer.wait()
        with (atomic_write if kind == "file" else temporary_folder)(target):
            assert len(list(tmp_path.iterdir())) == 2  # ours, and that of the one that lives
        remove_temporary_files(tmp_path)
        left = [path for path in tmp_path.iterdir() if path != target]
        assert len(left) == 1 and writers[2].poll() is None
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    with (atomic_write if kind == "file" else temporary_folder)(target):
        pass
    assert [path.name for path in tmp_path.iterdir()] == (["out.bin"] if kind == "file" else [])


def test_too_many_writers_are_one_sentence(tmp_path: Path) -> None:
    with ExitStack() as writers:
        for _ in range(8):
            writers.enter_context(atomic_write(tmp_path / "a"))
        with pytest.raises(FozoError, match="8 other processes are writing it"), atomic_write(tmp_path / "a"):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_link_planted_in_the_way_is_left_alone(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".a.0.part").symlink_to(victim)
    with atomic_write(tmp_path / "a") as stream:
        stream.write(b"a")
    assert victim.read_text() == "precious" and (tmp_path / "a").read_bytes() == b"a"
    assert (tmp_path / ".a.0.part").is_symlink()


def test_any_name_can_be_written(tmp_path: Path) -> None:
    for name in (b"caf\xe9", b"\xff" * 255, b"a" * 255):
        path = tmp_path / os.fsdecode(name)
        with atomic_write(path) as stream:
            stream.write(name)
        assert path.read_bytes() == name
    assert len(list(tmp_path.iterdir())) == 3


RACER = """
import sys
from fozo.io import atomic_write, temporary_folder
target, kind = sys.argv[1:]
for _ in range(300):
    with (atomic_write if kind == "file" else temporary_folder)(target) as made:
        if kind == "file":
            made.write(b"whole")
        else:
            (made / "a").write_bytes(b"whole")
            assert (made / "a").read_bytes() == b"whole"
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_writers_that_race_for_one_name_all_get_through(tmp_path: Path, kind: str) -> None:
    """Each makes, locks, sweeps and removes as fast as it can; none may wait for ever or lose what it has."""
    command = [sys.executable, "-c", RACER, str(tmp_path / "out"), kind]
    racers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    try:
        for racer in racers:
            _, errors = racer.communicate(timeout=200)
            assert racer.returncode == 0, errors
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()
    assert [path.name for path in tmp_path.iterdir()] == (["out"] if kind == "file" else [])
