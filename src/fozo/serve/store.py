"""Where cameras are kept while nobody sends for them, and when the server is down.

    STATE/fashion-1f0c.../cam-3-9a2b.../camera.json        which generation counts, and of whom it is
                                       /adapter-7.npz       what was adapted
                                       /monitor-7.npz       what the monitor remembers
                                       /answers-7.npz       the latest answers, by the ids of their requests

The files of a generation are written first, and ``camera.json`` is replaced last, which is one step: however a process
ends, adapter, monitor and answers are of one moment. Names of cameras come from outside, so folders are called by a
hash of them. A camera in memory has its folder locked, and the server all of its state: nobody else writes there.
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
REFUSED = ".refused"
"""What is added to the name of a folder whose camera cannot be gone on with."""


class CameraInUse(FozoError):
    """A camera that another server has in memory just now."""


def folder_name(name: str) -> str:
    """A folder's name for any text: what of it is harmless, for people, and a hash, to tell it from all others."""
    harmless = re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:40]
    return f"{harmless}-{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}"


class CameraFolder:
    """One camera's folder, kept to this process until it is closed."""

    def __init__(self, path: Path, camera: str) -> None:
        self.path, self.camera = path, camera
        self._lock = ExitStack()
        try:
            self._lock.enter_context(locked(path))
        except FozoError as error:
            raise CameraInUse(f"the camera {camera!r} is with another server that uses {path.parent}") from error
        self.generation = 0

    def facts(self) -> dict[str, Any] | None:
        """What is written of the camera, or ``None`` if it is new."""
        if not (self.path / HEADER_FILE).exists():
            return None
        facts = read_json(self.path / HEADER_FILE, "remove its folder, and the camera begins anew")
        generation = facts.get("generation")
        if facts.get("kind") != KIND or facts.get("version") != VERSION or type(generation) is not int:
            raise FozoError(f"{self.path / HEADER_FILE} is no camera of this version of fozo; remove its folder")
        if facts.get("id") != self.camera:
            raise FozoError(f"{self.path} is of the camera {facts.get('id')!r}; remove the folder")
        self.generation = generation
        return facts

    def file(self, name: str) -> Path:
        """The file called ``name`` of the generation in force."""
        return self.path / f"{name}-{self.generation}.npz"

    def save(self, facts: dict[str, object], files: dict[str, Callable[[Path], None]]) -> None:
        """Write a new generation: what writes each file, by name; then the ones before are removed."""
        self.generation += 1
        with disk_errors(self.path):
            for name, write in files.items():
                write(self.file(name))
        header = {"kind": KIND, "version": VERSION, "id": self.camera, "generation": self.generation}
        write_json(self.path / HEADER_FILE, {**facts, **header})
        kept = {self.file(name).name for name in files}
        for path in self.path.glob("*-*.npz"):
            if path.name not in kept:
                with suppress(OSError):
                    path.unlink()

    def refuse(self, why: Exception) -> None:
        """Set aside what cannot be gone on with: the camera begins anew, and a person may look at it."""
        LOG.warning("the camera %r begins anew: %s", self.camera, why)
        aside = self.path.with_name(self.path.name + REFUSED)
        shutil.rmtree(aside, ignore_errors=True)
        with disk_errors(aside):
            aside.mkdir()
            for path in self.path.glob("[!.]*"):
                path.replace(aside / path.name)
        self.generation = 0

    def close(self) -> None:
        """Let go of it."""
        self._lock.close()


class StateFolder:
    """The folder of one model's cameras."""

    def __init__(self, state: Path, model: str) -> None:
        self.path = state / folder_name(model)
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self.count = sum(1 for each in self.path.iterdir() if each.is_dir() and not each.name.endswith(REFUSED))
        """Cameras known; counted once, for servers that share it count each their own new ones."""

    def known(self, camera: str) -> bool:
        """Whether it has a folder."""
        return (self.path / folder_name(camera)).is_dir()

    def open(self, camera: str) -> CameraFolder:
        """Open a camera's folder, made if need be."""
        new = not self.known(camera)
        folder = CameraFolder(self.path / folder_name(camera), camera)
        self.count += new
        with suppress(OSError):
            remove_temporary_files(folder.path)
        return folder


def claim(state: Path) -> ExitStack:
    """Keep a state folder to this process until what is returned is closed."""
    held = ExitStack()
    try:
        held.enter_context(locked(state))
    except FozoError as error:
        if not state.is_dir():
            raise
        raise FozoError(f"another server keeps its cameras in {state}; stop it, or give another --state") from error
    return held
