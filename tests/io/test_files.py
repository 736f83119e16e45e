"""Files as an operator's disk has them: FIFOs and folders for files, links, kills, names in no encoding."""

import os
import socket
import stat
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from fozo.errors import FozoError
from fozo.io import (
    Log,
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
from tests.refusals import refuses


@pytest.fixture(params=["fifo", "folder", "socket", "device"])
def special(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Something that is not a regular file, under the name of one."""
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
    sentence = r"^cannot read \S*: (it is a .*; give a regular file|No such device or address; check the path)$"
    refuses(sentence, open_regular, special)  # a socket cannot even be opened
    refuses("^cannot read", read_json, special)


@pytest.mark.parametrize("use", [open_regular, open_output, Log])
def test_a_file_swapped_while_it_is_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[Path], object]
) -> None:
    """A check of the name says nothing about the file that is then opened."""
    path, really_open, readers = tmp_path / "a", os.open, list[int]()
    path.touch()

    def swap(name: Path, flags: int, mode: int = 0o777) -> int:
        path.unlink()
        os.mkfifo(path)
        readers.append(really_open(path, os.O_RDONLY | os.O_NONBLOCK))
        return really_open(name, flags, mode)

    monkeypatch.setattr(os, "open", swap)
    refuses(r"^cannot \w+ \S*: it is a FIFO; give a regular file$", use, path)
    os.close(*readers)


def test_only_regular_files_are_replaced(special: Path) -> None:
    before = special.lstat()
    for write in (open_output, check_output):
        refuses(r"cannot write .*: it is a .*; give a regular file", write, special)
    link = special.with_name("link")
    link.symlink_to(special)
    with pytest.raises(FozoError, match="it is a"), atomic_write(link):
        pass
    after = special.lstat()
    assert (before.st_ino, before.st_mode) == (after.st_ino, after.st_mode)
    assert sorted(special.parent.iterdir()) == sorted([special, link])


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    refuses(r"there is no folder .*nowhere; choose a folder that exists", check_output, tmp_path / "nowhere" / "a.csv")
    refuses("there is no file", open_regular, tmp_path / "nothing")


def test_space_is_only_asked_for_where_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(FozoError, match="free some space"), disk_errors(tmp_path):
        raise OSError(28, "No space left on device")
    with pytest.raises(FozoError, match="check the path"), disk_errors(tmp_path):
        raise PermissionError(13, "Permission denied")


def test_long_files_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / "long").open("wb") as file:
        file.truncate(1 << 40)  # a hole: takes no disk
    refuses("longer than 1 MiB", read_bytes, tmp_path / "long", 1 << 20)
    refuses("longer than 16 MiB", read_json, tmp_path / "long")
    (tmp_path / "short").write_bytes(bytes(1000))
    tracemalloc.start()
    assert read_bytes(tmp_path / "short", 1 << 30) == bytes(1000)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20  # no memory for what the file may have and has not
    tracemalloc.stop()
    (tmp_path / "latin").write_bytes("Müll".encode("latin-1"))
    refuses("not text in UTF-8", read_text, tmp_path / "latin")


@pytest.mark.parametrize("write", [atomic_write, temporary_folder])
def test_litter_is_swept_by_age_and_under_a_lock_at_once(
    write: Callable[[Path], AbstractContextManager[object]], tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    old, young, link, foreign = (
        tmp_path / name for name in (".a.1.fozo.part", ".b.2.fozo.part", ".c.3.fozo.part", ".d.part")
    )
    old.mkdir()
    (old / "content").touch()
    young.touch()
    link.symlink_to(victim)
    foreign.touch()
    for path in (old, foreign):
        os.utime(path, (0, 0))
    with write(tmp_path / "a"):
        assert not old.exists() and len(list(tmp_path.iterdir())) == 5  # our own is the fifth
    assert young.exists() and link.is_symlink()
    remove_temporary_files(tmp_path, ".c")
    assert young.exists() and not link.is_symlink() and victim.is_dir()
    remove_temporary_files(tmp_path)
    assert not young.exists() and foreign.exists()


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as stream:
        stream.write(b"new")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_the_folder_is_synced_after_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut may take the new name, and with it the only version of a new file."""
    synced: list[tuple[bool, bool]] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), (tmp_path / "a").exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    with atomic_write(tmp_path / "a") as stream:
        stream.write(b"new")
    assert synced == [(False, False), (True, True)]


def test_files_have_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "a"):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640
