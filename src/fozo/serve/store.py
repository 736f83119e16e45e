"""Where cameras are kept while they are idle, and when the server is down.

    STATE/fashion-1f0c.../cam-3-9a2b.../camera.json        which generation is in force, and of which camera
                                       /adapter-7.npz       the adapter's state
                                       /monitor-7.npz       the monitor's state
                                       /answers-7.npz       the latest responses, by the ids of their requests

The files of a generation are written first, and ``camera.json`` is replaced last, atomically: however a process ends,
adapter, monitor and responses are of one moment. Clients choose the names of cameras, so folders are named by a hash.
A camera in memory has its folder locked; a server that does not share its state folder locks all of it.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fozo.errors import FozoError
from fozo.io import disk_errors, locked, read_json, remove_temporary_files, write_json
from fozo.types import LOG

if TYPE_CHECKING:
    from collections.abc import Callable

KIND, VERSION = "camera", 1
HEADER_FILE = "camera.json"
REFUSED = ".refused"  # suffix of the folder of a camera whose state could not be restored


class CameraInUse(FozoError):
    """Another server has the camera in memory."""


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
            raise (error if path.is_dir() else cause) from cause.__cause__
        return stack.pop_all()


class CameraFolder:
    """One camera's folder, locked by this process until it is closed."""

    def __init__(self, path: Path, camera: str) -> None:
        self.path, self.camera, self.generation = path, camera, 0
        sentence = f"another server that uses {path.parent} has the camera {camera!r}; try again in a while"
        self._lock = hold(path, CameraInUse(sentence))

    def header(self) -> dict[str, Any] | None:
        """What ``camera.json`` says, or ``None`` for a new camera."""
        path = self.path / HEADER_FILE
        if not path.exists():
            return None
        header = read_json(path, "remove its folder to reset the camera")
        generation = header.get("generation")
        if header.get("kind") != KIND or header.get("version") != VERSION or type(generation) is not int:
            raise FozoError(f"{path} is not a camera of this version of fozo; remove its folder")
        if header.get("id") != self.camera:
            raise FozoError(f"{self.path} is of the camera {header.get('id')!r}; remove the folder")
        self.generation = generation
        return header

    def file(self, name: str) -> Path:
        """The file called ``name`` of the generation in force."""
        return self.path / f"{name}-{self.generation}.npz"

    def save(self, header: dict[str, object], files: dict[str, Callable[[Path], None]]) -> None:
        """Write a new generation: a writer for each file, by name; then remove the earlier ones."""
        self.generation += 1
        with disk_errors(self.path):
            for name, write in files.items():
                write(self.file(name))
        own = {"kind": KIND, "version": VERSION, "id": self.camera, "generation": self.generation}
        write_json(self.path / HEADER_FILE, {**header, **own})
        current = {self.file(name).name for name in files}
        for path in self.path.glob("*-*.npz"):
            if path.name not in current:
                with suppress(OSError):
                    path.unlink()

    def set_aside(self, why: Exception) -> None:
        """Move a state that cannot be restored to another folder, for people to look at; the camera starts again."""
        LOG.warning("the camera %r starts again: %s", self.camera, why)
        aside = self.path.with_name(self.path.name + REFUSED)
        shutil.rmtree(aside, ignore_errors=True)
        with disk_errors(aside):
            aside.mkdir()
            for path in self.path.glob("[!.]*"):
                path.replace(aside / path.name)
        self.generation = 0

    def close(self) -> None:
        self._lock.close()


class StateFolder:
    """The folder of one model's cameras."""

    def __init__(self, state: Path, model: str) -> None:
        self.path = state / folder_name(model)
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        # Cameras known: counted once, then each of the servers that share the folder adds its own new ones.
        self.count = sum(1 for each in self.path.iterdir() if each.is_dir() and not each.name.endswith(REFUSED))

    def has(self, camera: str) -> bool:
        return (self.path / folder_name(camera)).is_dir()

    def open(self, camera: str) -> CameraFolder:
        """Open a camera's folder, made if need be."""
        new = not self.has(camera)
        folder = CameraFolder(self.path / folder_name(camera), camera)
        self.count += new
        with suppress(OSError):
            remove_temporary_files(folder.path)
        return folder
