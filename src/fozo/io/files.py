"""Opening and writing files: regular ones only, whole or not at all.

A reader of a file written here sees the old version or the new one, never half of one. What is being written lies
beside its target as ``.NAME.RANDOM.fozo.part``; what a killed writer left there is removed when it is an hour old.

Devices, FIFOs, sockets and folders are refused by name, for reading as for writing: a FIFO would wait for ever, and a
device node would be replaced by a file.
"""

import errno
import io
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import IO, cast

from fozo.errors import FozoError

try:
    import fcntl

    LOCKS = True
except ImportError:  # Windows
    LOCKS = False

LOCK = ".lock"
PART = ".fozo.part"
LITTER_SECONDS = 3600.0  # age from which a temporary file belongs to a killed process: none takes that long to write
LOCK_SECONDS = 2.0  # for which processes of a killed command may still be dying, and hold its locks
MAX_TEXT = 64 << 20  # bytes of a text file (labels, lists, recipes) that are read
MAX_READ = 1 << 20  # bytes that are read at a time
_BINARY = getattr(os, "O_BINARY", 0)
_CAREFUL = _BINARY | getattr(os, "O_NONBLOCK", 0)  # special files are opened, then refused
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}


class FolderInUse(FozoError):
    """Another process holds the lock of a folder."""


def _refuse_special(mode: int, doing: str, path: object) -> None:
    if not stat.S_ISREG(mode):
        raise FozoError(
            f"cannot {doing} {path}: it is {_KINDS.get(stat.S_IFMT(mode), 'a device')}; give a regular file"
        )


class Bounded(io.FileIO):
    """A file for parsers of containers: a single read longer than ``MAX_READ`` is an error.

    A zip's headers say how long the next header is. A parser that believed a forged length would allocate it.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(MAX_READ + 1 if size is None or size < 0 else min(size, MAX_READ + 1)) or b""
        if len(data) > MAX_READ:
            raise ValueError(f"a header asks for more than {MAX_READ} bytes")
        return data


def open_descriptor(path: str | os.PathLike[str], flags: int, doing: str) -> int:
    """Open a regular file; a FIFO, a device or a folder is refused, without waiting for it.

    The open file is judged and not its name, which another file may get between a check and the opening.
    """
    descriptor = os.open(path, flags | _CAREFUL, 0o666)
    try:
        _refuse_special(os.fstat(descriptor).st_mode, doing, os.fspath(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_regular(path: str | os.PathLike[str], *, bounded: bool = False) -> IO[bytes]:
    try:
        descriptor = open_descriptor(path, os.O_RDONLY, "read")
    except FozoError:
        raise
    except FileNotFoundError as error:
        raise FozoError(f"there is no file {os.fspath(path)}; check the path") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise FozoError(f"cannot read {os.fspath(path)}: {_reason(error)}; check the path") from error
    return cast("IO[bytes]", Bounded(descriptor)) if bounded else os.fdopen(descriptor, "rb")


def read_bytes(path: str | os.PathLike[str], limit: int) -> bytes:
    """Read a file of at most ``limit`` bytes, in blocks: a large limit takes no memory."""
    blocks: list[bytes] = []
    room = limit
    with open_regular(path) as file:
        try:
            while room >= 0 and (block := file.read(MAX_READ)):
                blocks.append(block)
                room -= len(block)
        except OSError as error:
            raise FozoError(f"cannot read {os.fspath(path)}: {_reason(error)}; check the disk") from error
    if room < 0:
        raise FozoError(
            f"{os.fspath(path)} is longer than {limit >> 20} MiB, the most that such a file has; give the right one"
        )
    return b"".join(blocks)


def read_text(path: str | os.PathLike[str]) -> str:
    with unreadable(f"{os.fspath(path)} is not text in UTF-8", "save it as UTF-8"):
        return read_bytes(path, MAX_TEXT).decode("utf-8")


@contextmanager
def unreadable(what: str, advice: str) -> Iterator[None]:
    """Turn whatever a parser raises on a damaged file, nearly anything, into one sentence."""
    try:
        yield
    except FozoError:
        raise
    except Exception as error:
        why = repr(error) if isinstance(error, KeyError) else str(error)  # a KeyError's text is the key alone
        raise FozoError(f"{what} ({why[:200]}); {advice}") from error


def check_output(path: str | os.PathLike[str]) -> Path:
    """Refuse, before any work is done for it, a path that could not be written; return where the file really lies.

    Symbolic links are followed: the file that they lead to is replaced, and they stay.
    """
    try:
        target = Path(os.path.realpath(path))
        mode = os.stat(path).st_mode  # noqa: PTH116 - path may be a str
    except FileNotFoundError:
        if target.parent.is_dir():
            return target
        nowhere = f"there is no folder {target.parent}; choose a folder that exists"
        raise FozoError(f"cannot write {os.fspath(path)}: {nowhere}") from None
    except (OSError, ValueError) as error:
        raise FozoError(f"cannot write {os.fspath(path)}: {_reason(error)}; choose another path") from error
    _refuse_special(mode, "write", os.fspath(path))
    return target


def open_output(path: str | os.PathLike[str], keep: int = 0) -> io.FileIO:
    """Open a regular file to append to, cut to its first ``keep`` bytes."""
    target = check_output(path)
    with disk_errors(target):
        file = io.FileIO(open_descriptor(target, os.O_WRONLY | os.O_CREAT, "write"), "w")
        os.ftruncate(file.fileno(), keep)
        file.seek(keep)
    return file


def append_whole(file: io.FileIO, path: Path, end: int, data: bytes) -> int:
    """Append bytes to a file of the length ``end``, all or, where the disk is full, none; return its new length."""
    with disk_errors(path):
        try:
            if file.write(data) != len(data):
                raise OSError(0, "no space left on the disk")
        except BaseException:
            os.ftruncate(file.fileno(), end)
            raise
    return end + len(data)


@contextmanager
def atomic_write(path: str | os.PathLike[str], mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Open a temporary file beside ``path`` and rename it onto ``path`` once it is complete and on disk."""
    target = check_output(path)
    _sweep_once(target.parent)
    temporary = target.with_name(_temporary_prefix(target) + token_hex(4) + PART)
    stream: IO[bytes] | None = None
    try:  # from before the file exists: Ctrl-C may come as soon as it does
        try:
            stream = os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, mode), "wb")
        except OSError as error:
            choose = "choose a folder that you may write to"
            raise FozoError(f"cannot write {target}: {error.strerror}; {choose}") from error
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
        stream.close()
        temporary.replace(target)
        _sync_folder(target.parent)
    except BaseException:
        with suppress(OSError):  # a full disk can refuse the last bytes again: the first error is the one to report
            if stream is not None:
                stream.close()
        with suppress(OSError):
            temporary.unlink()
        raise


def _sync_folder(folder: Path) -> None:
    """Let a rename survive a power cut, where the system can."""
    with suppress(OSError):  # Windows opens no folder, and some file systems sync none
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def temporary_folder(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Make a folder beside ``target`` for intermediate files, and remove it afterwards."""
    parent = Path(target).parent
    prefix = _temporary_prefix(Path(target))
    with disk_errors(target):
        _sweep_once(parent)
        folder = TemporaryDirectory(suffix=PART, prefix=prefix, dir=parent, ignore_cleanup_errors=True)
    with folder as name:
        yield Path(name)


def _temporary_prefix(target: Path) -> str:
    return f".{os.fsdecode(os.fsencode(target.name)[-200:])}."  # a file's name has at most 255 bytes


@cache
def _sweep_once(folder: Path) -> None:
    """Sweep a folder when this process first writes to it: listing it for every file would take too long."""
    with suppress(OSError):
        remove_temporary_files(folder, age=LITTER_SECONDS)


def remove_temporary_files(folder: Path, prefix: str = ".", age: float = 0) -> None:
    """Remove files and folders that killed processes left half-written, at least ``age`` seconds ago.

    Without ``age`` the caller holds a lock, so that no other process writes files whose names begin with ``prefix``.
    """
    for path in list(folder.iterdir()):
        with suppress(OSError):  # another user's, or removed by another process
            if path.name.startswith(prefix) and path.name.endswith(PART) and time.time() - path.lstat().st_mtime >= age:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


@contextmanager
def disk_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn a full disk, or any other refusal of the system to write, into one sentence."""
    try:
        yield
    except OSError as error:
        full = error.errno in (0, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, None)
        advice = "free some space" if full else "check the path and who may write there"
        raise FozoError(
            f"cannot write {os.fspath(path)}: {_reason(error)}; what was written before is whole, so {advice} and give "
            f"the same command again"
        ) from error


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def lock_file(descriptor: int, path: Path) -> None:
    """Lock an open file until it is closed or its process dies; file systems without locks are used as they are."""
    try:
        if LOCKS:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FozoError(f"another writer has {path} open; wait until it is done, or choose another file") from error
    except OSError:
        return


def _flock(descriptor: int, wait: bool) -> None:
    last = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            if time.monotonic() > last:
                raise
        time.sleep(0.02)


@contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[None]:
    """Lock a folder; the system drops the lock when the process dies.

    Where another process holds it, ``wait`` for it, or raise after a moment: it may be one of a killed command's.
    """
    if not LOCKS:
        raise FozoError("this needs the file locks of Linux or macOS; run it there")
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | _BINARY | getattr(os, "O_NOFOLLOW", 0), 0o666)
    with os.fdopen(descriptor):
        with disk_errors(folder):
            try:
                _flock(descriptor, wait)
                if not os.path.samestat(os.fstat(descriptor), (folder / LOCK).stat()):
                    raise FileNotFoundError(errno.ENOENT, "its lock was removed")  # and others may lock a new one
            except (BlockingIOError, FileNotFoundError) as error:
                busy = f"another process is working in {folder}; wait for it, or choose another folder for results"
                raise FolderInUse(busy) from error
        yield
