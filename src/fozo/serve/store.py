"""Where cameras are kept while they are idle, and when the server is down.

    STATE/fashion-1f0c.../cam-3-9a2b.../camera.json        which generation is in force, and of which camera
                                       /adapter-7.npz       the method's state, and what its monitor remembers
                                       /answers-7.npz       the latest responses, by the ids of their requests

The files of a generation are written first, and ``camera.json`` is replaced last, atomically: however a process ends,
adapter, monitor and responses are of one moment; it has their digests. Clients choose the names of cameras, so folders
are named by a hash. A camera in memory has its folder locked; a server that does not share its state folder locks all
of it. A file that the system cannot read now (no descriptor left, a failing disk, permissions) is not damaged: the
request is refused, and nothing is touched.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from contextlib import ExitStack, suppress
from errno import EINVAL, EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, ENXIO, EOPNOTSUPP, EOVERFLOW
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fozo.errors import FozoError
from fozo.io import disk_errors, locked, read_bytes, read_json, remove_temporary_files, write_json
from fozo.io.files import LOCK
from fozo.types import LOG

if TYPE_CHECKING:
    from collections.abc import Callable

KIND, VERSION = "camera", 3
HEADER_FILE = "camera.json"
REFUSED = ".refused"  # suffix of the folder of a camera whose state could not be restored
PRIVATE = 0o600  # mode of its files: the method's holds a frame
RECOUNT = 1.0  # seconds between two counts of the cameras of a full folder
MAX_FILE = 1 << 30  # bytes of a file of a camera
OF_THE_FILE = None, ENOENT, EISDIR, ENOTDIR, ELOOP, ENXIO, EOPNOTSUPP, EINVAL, EOVERFLOW, ENAMETOOLONG  # they stay


class CameraInUse(FozoError):
    """Another server has the camera in memory."""


class TooManyCameras(FozoError):
    """There is no place for a new camera until an operator makes one."""


def is_damage(error: BaseException | None) -> bool:
    """Whether a file could be read and is wrong, rather than refused by the system for now."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno not in OF_THE_FILE):
            return False
        error = error.__cause__ or error.__context__
    return True


def file_digest(path: Path) -> str:
    return hashlib.blake2b(read_bytes(path, MAX_FILE), digest_size=16).hexdigest()


def folder_name(name: str) -> str:
    """A folder's name for any text: its harmless characters, for people, and a hash that makes it unique."""
    harmless = re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:40]
    return f"{harmless}-{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}"


def hold(path: Path, error: FozoError) -> ExitStack:
    """Lock a folder, made if need be, until the result is closed; raise ``error`` if another process holds it."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(path))
        except FozoError as cause:
            held = isinstance(cause.__cause__, (BlockingIOError, FileNotFoundError))  # the latter: being removed
            raise (error if held else cause) from cause.__cause__
        return stack.pop_all()


class CameraFolder:
    """One camera's folder, locked by this process until it is closed."""

    def __init__(self, path: Path, camera: str) -> None:
        self.path, self.camera, self.generation = path, camera, 0
        self.new = False  # whether nothing of the camera is in it
        self.files: dict[str, str] = {}  # digests of the files of the generation in force
        sentence = f"another server that uses {path.parent} has the camera {camera!r}; try again in a while"
        self.lock = hold(path, CameraInUse(sentence))

    def header(self) -> dict[str, Any] | None:
        """What ``camera.json`` says, or ``None`` for a new camera."""
        path = self.path / HEADER_FILE
        try:
            header = read_json(path, "remove its folder to reset the camera")
        except FozoError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            self.new = True
            return None
        generation, files = header.get("generation"), header.get("files")
        known = header.get("kind") == KIND and header.get("version") == VERSION and isinstance(files, dict)
        if not known or type(generation) is not int:
            raise FozoError(f"{path} is not a camera of this version of fozo; remove its folder")
        if header.get("id") != self.camera:
            raise FozoError(f"{self.path} is of the camera {header.get('id')!r}; remove the folder")
        self.generation, self.files = generation, files or {}
        return header

    def file(self, name: str) -> Path:
        return self.path / f"{name}-{self.generation}.npz"

    def checked(self, name: str) -> Path:
        """The same file, if it is the one that was saved with the others."""
        path = self.file(name)
        if file_digest(path) != self.files.get(name):
            raise FozoError(f"{path} is not the file that {HEADER_FILE} names; restore the folder from a backup")
        return path

    def save(self, header: dict[str, object], files: dict[str, Callable[[Path], None]]) -> None:
        """Write a new generation: a writer for each file, by name; then remove the earlier ones."""
        self.generation += 1
        self.new = False
        with disk_errors(self.path):
            for name, write in files.items():
                write(self.file(name))
        digests = {name: file_digest(self.file(name)) for name in files}
        own = {"kind": KIND, "version": VERSION, "id": self.camera, "generation": self.generation, "files": digests}
        write_json(self.path / HEADER_FILE, {**header, **own}, mode=PRIVATE)
        current = {self.file(name).name for name in files}
        with suppress(OSError):
            for path in list(self.path.iterdir()):
                if path.suffix == ".npz" and path.name not in current:
                    path.unlink()

    def set_aside(self, why: Exception) -> None:
        """Move a state that cannot be restored to another folder, for people to look at; the camera starts again."""
        LOG.warning("the camera %r starts again: %s", self.camera, why)
        aside = self.path.with_name(self.path.name + REFUSED)
        with disk_errors(aside):
            files = [path for path in self.path.iterdir() if not path.name.startswith(".")]  # glob may swallow errors
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(mode=0o700)
            for path in files:
                path.replace(aside / path.name)
        self.generation, self.new = 0, True

    def close(self) -> None:
        self.lock.close()


class StateFolder:
    """The folder of one model's cameras."""

    def __init__(self, state: Path, model: str) -> None:
        self.path = state / folder_name(model)
        with disk_errors(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._count()

    def _count(self) -> None:
        """List the cameras that have a folder: one that has learnt nothing loses it when it leaves the memory."""
        with disk_errors(self.path):
            self._known = {each.name for each in self.path.iterdir() if not each.name.endswith(REFUSED)}
        self._counted = time.monotonic()

    def open(self, camera: str, most: int) -> CameraFolder:
        """Open a camera's folder, made if need be; a new camera is refused where ``most`` are known."""
        name = folder_name(camera)
        if len(self._known) >= most and time.monotonic() >= self._counted + RECOUNT:
            self._count()  # somebody may have removed folders
        if len(self._known) >= most and name not in self._known:
            known = f"the server knows {len(self._known)} cameras already"
            raise TooManyCameras(f"{known}; remove folders of old ones from {self.path}, or raise max_known")
        folder = CameraFolder(self.path / name, camera)
        self._known.add(name)
        folder.lock.callback(self._closed, folder)  # before it is unlocked
        with suppress(OSError):
            remove_temporary_files(folder.path)
        return folder

    def _closed(self, folder: CameraFolder) -> None:
        if folder.new:  # nothing was saved: it takes no place
            self._known.discard(folder.path.name)
            with suppress(OSError):
                (folder.path / LOCK).unlink()
                folder.path.rmdir()
