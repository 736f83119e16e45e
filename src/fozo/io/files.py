"""Opening and writing files: regular ones only, whole or not at all, and nothing left behind.

A reader of a file written here only ever sees the old version or the new one, never half of one. What is being written
lies beside its target as ``.NAME.0.part`` and is locked while its writer lives; the next writer of the same file
removes what a killed one left, which is what nobody has locked any more.

Devices, FIFOs, sockets and folders are refused by name, for reading as for writing: a FIFO would wait for ever, and a
device node would be replaced by a file.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal, overload

from fozo.errors import FozoError

try:
    import fcntl

    LOCKS = True
except ImportError:  # Windows
    LOCKS = False

LOCK = ".lock"
SLOTS = 8
"""Processes that may write one file at the same time; the last to finish wins."""
MAX_TEXT = 64 << 20
"""Bytes of a text file (labels, lists, recipes) that are read."""
MAX_READ = 1 << 20
"""Bytes that a parser of containers reads at a time."""
_BINARY = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_CAREFUL = _BINARY | getattr(os, "O_NONBLOCK", 0)
_OWN = _BINARY | getattr(os, "O_NOFOLLOW", 0)
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def _refuse_special(mode: int, doing: str, path: object) -> None:
    if not stat.S_ISREG(mode):
        raise FozoError(f"cannot {doing} {path}: it is {_KINDS.get(stat.S_IFMT(mode), 'no file')}; give a regular file")


class Bounded(io.FileIO):
    """A file as parsers of containers see it: no single read may ask for more than they have reason to.

    Zip and tar headers say how long the next header is. A parser that believed a forged length would allocate it.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        """Read what a header may well have; a longer one is an error."""
        data = super().read(MAX_READ + 1 if size is None or size < 0 else min(size, MAX_READ + 1)) or b""
        if len(data) > MAX_READ:
            raise ValueError(f"a header asks for more than {MAX_READ} bytes")
        return data


@overload
def open_regular(path: str | os.PathLike[str]) -> IO[bytes]: ...
@overload
def open_regular(path: str | os.PathLike[str], *, bounded: Literal[True]) -> Bounded: ...
def open_regular(path: str | os.PathLike[str], *, bounded: bool = False) -> IO[bytes] | Bounded:
    """Open a file to read it; anything but a regular file is refused, without waiting for it."""
    try:
        _refuse_special(os.stat(path).st_mode, "read", os.fspath(path))  # noqa: PTH116 - path may be a str
        descriptor = os.open(path, os.O_RDONLY | _CAREFUL)
    except FileNotFoundError as error:
        raise FozoError(f"there is no file {os.fspath(path)}; check the path") from error
    except FozoError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise FozoError(f"cannot read {os.fspath(path)}: {_reason(error)}; check the path") from error
    file = Bounded(descriptor) if bounded else os.fdopen(descriptor, "rb")
    try:
        _refuse_special(os.fstat(descriptor).st_mode, "read", os.fspath(path))  # it may have been replaced since
    except FozoError:
        file.close()
        raise
    return file


def read_bytes(path: str | os.PathLike[str], limit: int) -> bytes:
    """Read a whole file of at most ``limit`` bytes."""
    with open_regular(path) as file:
        try:
            data = file.read(limit + 1)
        except OSError as error:
            raise FozoError(f"cannot read {os.fspath(path)}: {_reason(error)}; check the disk") from error
    if len(data) > limit:
        raise FozoError(
            f"{os.fspath(path)} is longer than {limit >> 20} MiB, which no such file is; give the right one"
        )
    return data


def read_text(path: str | os.PathLike[str]) -> str:
    """Read a text file in UTF-8."""
    try:
        return read_bytes(path, MAX_TEXT).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FozoError(f"{os.fspath(path)} is no text in UTF-8 ({error}); save it as UTF-8") from error


def check_output(path: str | os.PathLike[str]) -> Path:
    """Refuse, before any work is done for it, a path that could not be written; return where the file really lies.

    Symbolic links are followed: the file that they lead to is replaced, and they stay.
    """
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - path may be a str
    except FileNotFoundError:
        target = Path(os.path.realpath(path))
        if not target.parent.is_dir():
            raise FozoError(
                f"cannot write {os.fspath(path)}: there is no folder {target.parent}; choose a folder that exists"
            ) from None
        return target
    except (OSError, ValueError) as error:
        raise FozoError(f"cannot write {os.fspath(path)}: {_reason(error)}; choose another place") from error
    _refuse_special(mode, "write", os.fspath(path))
    return Path(os.path.realpath(path))


def open_output(path: str | os.PathLike[str], keep: int = 0) -> io.FileIO:
    """Open a file that grows while one works on it, cut to its first ``keep`` bytes; only a regular one is taken."""
    target = check_output(path)
    with disk_errors(target):
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | _CAREFUL, 0o666)
    file = io.FileIO(descriptor, "w")
    try:
        _refuse_special(os.fstat(descriptor).st_mode, "write", target)
        with disk_errors(target):
            os.ftruncate(descriptor, keep)
            file.seek(keep)
    except FozoError:
        file.close()
        raise
    return file


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a temporary file beside ``path`` and rename it onto ``path`` once it is complete and on disk."""
    target = check_output(path)
    try:
        part, descriptor = _claim(target)
    except OSError as error:
        raise FozoError(f"cannot write {target}: {error.strerror}; choose a folder that you may write to") from error
    stream = os.fdopen(descriptor, "wb")
    try:
        try:
            yield stream
            stream.flush()
            os.fsync(descriptor)
            if not LOCKS:  # Windows, which renames no open file
                stream.close()
            part.replace(target)  # while it is open, and so locked: until then nobody else may sweep it away
        finally:
            # A full disk can refuse the last bytes here once more; the first refusal is the one to be told.
            with suppress(OSError):
                stream.close()
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


@contextmanager
def temporary_folder(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Make a folder beside ``target`` for what is needed on the way to it, and remove it after.

    One that a killed process left behind is removed by the next that works on the same target.
    """
    with disk_errors(target):
        folder, descriptor = _claim(Path(target), folder=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _claim(target: Path, folder: bool = False) -> tuple[Path, int]:
    """Create a temporary file or folder of this process, and remove those that dead ones left of the same target.

    Names are known beforehand, so that no folder has to be searched.
    """
    own: tuple[Path, int] | None = None
    # A file's name has at most 255 bytes; long ones that end alike share their slots.
    name = os.fsdecode(os.fsencode(target.name)[-200:])
    for slot in range(SLOTS):
        part = target.parent / f".{name}.{slot}.part{'s' if folder else ''}"
        if own is not None:
            _sweep(part)
            continue
        while own is None:
            descriptor = -1
            try:
                if folder:
                    part.mkdir()
                    with suppress(FileNotFoundError):  # already swept
                        descriptor = os.open(part if LOCKS else os.devnull, os.O_RDONLY | _BINARY)
                else:
                    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OWN, 0o666)
                if descriptor >= 0 and _lock(descriptor) and _is_still(part, descriptor):
                    own = part, descriptor
                elif descriptor >= 0:  # swept before it was locked; and by now it may be somebody else's
                    os.close(descriptor)
            except FileExistsError:
                if not _sweep(part):
                    break  # a living process has it
            except BaseException:  # Ctrl-C, at any moment
                if descriptor >= 0:
                    os.close(descriptor)
                _sweep(part)
                raise
    if own is None:
        raise OSError(errno.EBUSY, f"{SLOTS} other processes are writing it")
    return own


def _lock(descriptor: int) -> bool:
    """Lock without waiting. Where the file system has no locks nothing is ever swept, so nothing need be locked."""
    try:
        if LOCKS:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)


def _is_still(part: Path, descriptor: int) -> bool:
    """Whether a name still means the file that was opened under it."""
    if not LOCKS:
        return True
    try:
        return os.path.samestat(part.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _sweep(part: Path) -> bool:
    """Remove a temporary file or folder unless its writer lives; say whether it is gone."""
    if not LOCKS:
        return not part.exists()
    try:
        descriptor = os.open(part, os.O_RDONLY | _CAREFUL | _OWN)
    except FileNotFoundError:
        return True
    except OSError:  # somebody else's, or a link: not ours to remove
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # which fails while the writer lives
        mode = os.fstat(descriptor).st_mode
        if not _is_still(part, descriptor):
            return True
        if stat.S_ISDIR(mode):
            shutil.rmtree(part)
        elif stat.S_ISREG(mode):
            part.unlink()
        return not part.exists()
    except OSError:
        return False
    finally:
        os.close(descriptor)


def remove_temporary_files(folder: Path, prefix: str = ".") -> None:
    """Remove what killed processes left half-written in a folder of fozo's own; what is being written stays.

    In a folder that is not, ``prefix`` says how the names of one's own begin.
    """
    for part in list(folder.iterdir()):
        if part.name.startswith(prefix) and part.name.endswith(".part"):
            _sweep(part)


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


def keep_to_oneself(descriptor: int, path: Path) -> None:
    """Keep an open file to whoever opened it until it is closed, however that comes about."""
    if not LOCKS:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FozoError(f"another writer has {path} open; wait until it is done, or choose another file") from error
    except OSError:  # a file system without locks
        return


@contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[None]:
    """Keep a folder to this process; the system drops the lock when the process dies, however it dies.

    Where another process has it, raise, or ``wait`` for it.
    """
    if not LOCKS:
        raise FozoError("this needs the file locks of Linux or macOS; run it there")
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | _OWN, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            raise FozoError(f"another process is working in {folder}; wait for it, or choose another --out") from error
        yield
    finally:
        os.close(descriptor)
