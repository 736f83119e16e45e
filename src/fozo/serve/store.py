"""Where cameras are kept while they are idle, and when the server is down.

    STATE/fashion-1f0c.../cam-3-9a2b.../camera.state

It holds the method's state, what its monitor remembers and the latest responses, of one moment: it is replaced whole,
however a process ends. Clients choose the names of cameras, so folders are named by a hash. A camera in memory has its
folder locked; a server that does not share its state folder locks all of it. A file that the system cannot read now (no
descriptor left, a failing disk, permissions) is not damaged: the request is refused, and nothing is touched. A state
that cannot be restored is moved to a folder of its own beside the camera's, ``cam-3-9a2b....2026-11-19.1.refused``, and
never removed but by age, on request.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from contextlib import ExitStack, suppress
from errno import EINVAL, EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, ENXIO, EOPNOTSUPP, EOVERFLOW
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fozo.errors import FozoError
from fozo.io import disk_errors, locked, remove_temporary_files
from fozo.io.files import LOCK
from fozo.state import Leaf, State, read_state, save
from fozo.types import LOG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

KIND = "camera"
STATE_FILE = "camera.state"
OLD_FILE = "camera.json"  # of fozo 0.2
REFUSED = ".refused"  # suffix of the folder of a camera whose state could not be restored
PRIVATE = 0o600  # mode of a lock
RECOUNT = 1.0  # seconds between two counts of the cameras of a full folder
DAY = 86_400.0  # seconds
LOOKED_AT = 16  # cameras, those that were saved last, that a server tries to restore before it starts
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


def folder_name(name: str) -> str:
    """A folder's name for any text: its harmless characters, for people, and a hash that makes it unique."""
    harmless = re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:40]
    return f"{harmless}-{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}"


def hold(path: Path, error: FozoError) -> ExitStack:
    """Lock a folder, made if need be, until the result is closed; raise ``error`` if another process holds it."""
    with ExitStack() as stack:
        try:
            with disk_errors(path):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            stack.enter_context(locked(path))
            with suppress(OSError):
                (path / LOCK).chmod(PRIVATE)  # another user could hold the lock of a file that he may read
        except FozoError as cause:
            held = isinstance(cause.__cause__, (BlockingIOError, FileNotFoundError))  # the latter: being removed
            raise (error if held else cause) from cause.__cause__
        return stack.pop_all()


class CameraFolder:
    """One camera's folder, locked by this process until it is closed.

    Args:
        path: the folder, made if need be.
        camera: its name; none for whichever camera the folder is of.
        on_set_aside: called when a state of the camera was moved aside.
    """

    def __init__(self, path: Path, camera: str | None, on_set_aside: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self.file = path / STATE_FILE
        self.camera = camera
        self.new = False  # whether nothing of the camera is in it
        self._on_set_aside = on_set_aside
        if path.is_symlink():
            raise FozoError(f"{path} is a link, and would have the camera's files lie elsewhere; remove it")
        sentence = f"another server that uses {path.parent} has the camera {camera!r}; try again in a while"
        self.lock = hold(path, CameraInUse(sentence))

    def read(self) -> tuple[dict[str, Any], dict[str, Leaf]] | None:
        """Read the owner and the leaves of the camera's state; nothing of a new camera."""
        try:
            owner, values = read_state(self.file, kind=KIND, advice="restore it from a backup, or remove its folder")
        except FozoError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            if (self.path / OLD_FILE).exists():
                raise FozoError(f"{self.path} is of fozo 0.2, which this version does not read") from None
            self.new = True
            return None
        camera = owner.get("camera")
        if self.camera is None:
            self.camera = camera
        if camera != self.camera:
            raise FozoError(f"{self.path} is of the camera {camera!r}; remove the folder")
        return owner, values

    def save(self, state: State, owner: Mapping[str, object]) -> None:
        with disk_errors(self.path):
            save(self.file, state, {"camera": self.camera, **owner}, kind=KIND)
        self.new = False

    def set_aside(self, why: object) -> None:
        """Move a state that cannot be restored to another folder, for people to look at; the camera starts again."""
        LOG.warning("the camera %r starts again: %s", self.camera, why)
        with disk_errors(self.path):
            files = [path for path in self.path.iterdir() if not path.name.startswith(".")]  # glob may swallow errors
            aside = self._place_aside()
            for path in files:
                path.replace(aside / path.name)
        self.new = True
        self._on_set_aside()

    def _place_aside(self) -> Path:
        date = time.strftime("%Y-%m-%d")
        for number in count(1):
            aside = self.path.with_name(f"{self.path.name}.{date}.{number}{REFUSED}")
            with suppress(FileExistsError):
                aside.mkdir(mode=0o700)
                return aside
        raise AssertionError

    def close(self) -> None:
        self.lock.close()


class StateFolder:
    """The folder of one model's cameras.

    Args:
        state: folder of all models.
        model: its name.
        forget_after: days after which a camera that nobody has saved is removed, with what was set aside of it.
    """

    def __init__(self, state: Path, model: str, forget_after: float | None = None) -> None:
        self.path = state / folder_name(model)
        self.aside = 0  # states that were set aside and that nobody has removed
        self._forget_after = forget_after
        with disk_errors(self.path):
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)
        self._count()

    def _count(self) -> None:
        """List the cameras that have a folder: one that has learnt nothing loses it when it leaves the memory."""
        with disk_errors(self.path):
            names = {path.name for path in self.path.iterdir()}
        self._known = {name for name in names if not name.endswith(REFUSED)}
        self.aside = len(names) - len(self._known)
        self._counted = time.monotonic()

    def _note_aside(self) -> None:
        self.aside += 1

    def saved(self) -> Iterator[CameraFolder]:
        """Open the folders of all cameras that have a state and that no server has in memory, the latest first."""
        files = [path / STATE_FILE for path in self.path.iterdir() if not path.name.endswith(REFUSED)]
        times = {path: path.stat().st_mtime for path in files if path.is_file()}
        for path in sorted(times, key=lambda path: -times[path]):
            with suppress(CameraInUse):
                folder = CameraFolder(path.parent, None, self._note_aside)
                with folder.lock:
                    yield folder

    def open(self, camera: str, most: int) -> CameraFolder:
        """Open a camera's folder, made if need be; a new camera is refused where ``most`` are known."""
        name = folder_name(camera)
        if len(self._known) >= most and time.monotonic() >= self._counted + RECOUNT:
            self._count()  # somebody may have removed folders
        if len(self._known) >= most and name not in self._known:
            known = f"the server knows {len(self._known)} cameras already"
            advice = f"remove folders of old ones from {self.path}, give --forget-after, or raise max_known"
            raise TooManyCameras(f"{known}; {advice}")
        folder = CameraFolder(self.path / name, camera, self._note_aside)
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

    def forget(self) -> int:
        """Remove what is too old, where an age was given; return how many cameras were."""
        if self._forget_after is None:
            return 0
        oldest = time.time() - self._forget_after * DAY
        forgotten = 0
        for path in list(self.path.iterdir()):
            if not self._is_older(path, oldest):
                continue
            with suppress(CameraInUse), hold(path, CameraInUse("it has come back")):
                if self._is_older(path, oldest):
                    shutil.rmtree(path, ignore_errors=True)
                    forgotten += 1
        if forgotten:
            LOG.warning(
                "%d cameras of %s were not seen for %g days: forgotten", forgotten, self.path, self._forget_after
            )
            self._count()
        return forgotten

    def _is_older(self, path: Path, time: float) -> bool:
        file = path / STATE_FILE
        return file.is_file() and file.stat().st_mtime < time
