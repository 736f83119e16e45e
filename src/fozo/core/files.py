"""Writing files so that a reader only ever sees the old version or the new one, never half of one."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from fozo.errors import FozoError

HEADER = "__header__"
Arrays = Mapping[str, npt.NDArray[np.generic]]


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a temporary file beside ``path`` and rename it onto ``path`` once it is complete and on disk."""
    target = Path(path)
    try:
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        raise FozoError(f"cannot write {target}: {error.strerror}; choose a folder that exists") from error
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes files private; give the usual permissions that open() would have given.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def save_arrays(path: str | os.PathLike[str], header: Mapping[str, object], arrays: Arrays) -> None:
    """Write named arrays and a JSON header as one ``.npz`` without pickles."""
    text = np.frombuffer(json.dumps(header, sort_keys=True).encode(), dtype=np.uint8)
    with atomic_write(path) as stream:
        np.savez(stream, **{HEADER: text}, **dict(arrays))  # type: ignore[arg-type]


def load_arrays(
    path: str | os.PathLike[str], kind: str
) -> tuple[dict[str, object], dict[str, npt.NDArray[np.generic]]]:
    """Read what :func:`save_arrays` wrote; ``kind`` is checked against the header's ``kind``."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header: dict[str, object] = json.loads(arrays.pop(HEADER).tobytes())
    except FileNotFoundError as error:
        raise FozoError(f"there is no file {os.fspath(path)}; check the path") from error
    except (OSError, EOFError, KeyError, ValueError, TypeError, zipfile.BadZipFile) as error:
        raise FozoError(
            f"{os.fspath(path)} is not a readable fozo file ({type(error).__name__}); it may be truncated: "
            f"write it again"
        ) from error
    if header.get("kind") != kind:
        raise FozoError(f"{os.fspath(path)} holds {header.get('kind')!r} where {kind!r} is needed; give the right file")
    return header, arrays
