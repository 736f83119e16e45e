"""Corrupting a whole folder of images into a tree shaped like ImageNet-C.

``IMAGES/class/file`` becomes ``OUT/kind/severity/class/file.JPEG`` (quality 85, as ImageNet-C), together with
``OUT/corruptions.json``, which says how the tree was made. A file appears under its name only when it is
complete, and a file that is there is not made again: an interrupted run continues where it stopped.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import re
import signal
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np
from PIL import Image

from fozo.core.files import atomic_write
from fozo.data.corruptions import (
    EXTRA_KINDS,
    KINDS,
    SMALLEST_SIDE,
    check_kind,
    check_severity,
    corrupt,
    frost_source,
)
from fozo.data.images import EXTENSIONS, Pixels, fit, read_image
from fozo.errors import FozoError

METADATA = "corruptions.json"
QUALITY = 85


@dataclass(frozen=True)
class Job:
    """What is the same for every image of a run."""

    out: Path
    kinds: tuple[str, ...]
    severities: tuple[int, ...]
    size: int
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What became of one image, or of all of them together."""

    written: int = 0
    skipped: int = 0
    unreadable: tuple[str, ...] = ()
    """One sentence for each image that could not be read, naming it."""

    def __add__(self, other: Outcome) -> Outcome:
        """Add the counts and join the lists."""
        return Outcome(self.written + other.written, self.skipped + other.skipped, self.unreadable + other.unreadable)


def parse_kinds(text: str) -> tuple[str, ...]:
    """Read ``all``, ``all+extra`` or a comma-separated list of corruptions."""
    named = {"all": KINDS, "all+extra": KINDS + EXTRA_KINDS}
    kinds = named.get(text.strip()) or tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for kind in kinds:
        check_kind(kind)
    return kinds


def parse_severities(text: str) -> tuple[int, ...]:
    """Read ``5``, ``1-5`` or ``1,3,5``."""
    severities: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None:
            raise FozoError(f"cannot read the severity {text!r}; write 5, or 1-5, or 1,3,5")
        low, high = int(match[1]), int(match[2] or match[1])
        check_severity(low)
        check_severity(high)
        if low > high:
            raise FozoError(f"the severities {part.strip()!r} run backwards; write {high}-{low}")
        severities.update(range(low, high + 1))
    return tuple(sorted(severities))


def corrupt_tree(
    images: Path,
    out: Path,
    *,
    kinds: Sequence[str] = KINDS,
    severities: Sequence[int] = (5,),
    size: int = 224,
    seed: int = 0,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Corrupt every image of a class-folder tree.

    An image of ``size`` x ``size`` is taken as it is; any other is resized and cropped as for ImageNet's
    evaluation. Its random draws are keyed by ``class/file.JPEG``, so they do not depend on ``workers`` or on
    other images.

    Args:
        images: folder that holds a folder for each class.
        out: folder for the result, made if needed. More kinds and severities may be added to it later, but
            not with another size or seed.
        kinds: names of corruptions.
        severities: from 1 to 5.
        size: side of the images that are written.
        seed: changes every random draw.
        workers: processes; by default one for each core. More than one needs an importable main module, as
            always with ``multiprocessing``.
        progress: called with the number of images done and their total.
    """
    for kind in kinds:
        check_kind(kind)
    for severity in severities:
        check_severity(severity)
    if size < SMALLEST_SIDE:
        raise FozoError(f"the size is {size} px; a corruption needs at least {SMALLEST_SIDE}")
    if workers is not None and workers < 1:
        raise FozoError(f"the number of workers is {workers}; give 1 or more")
    files = find_images(images, out)
    # A missing library should be one error now and not one for each image.
    for kind in kinds:
        corrupt(np.zeros((SMALLEST_SIDE, SMALLEST_SIDE, 3), np.uint8), kind, 1, seed)
    job = Job(out, tuple(kinds), tuple(severities), size, seed)
    record = _open_record(job, len(files))
    total = Outcome()
    try:
        with closing(_run(job, files, workers or _cores())) as outcomes:
            for done, outcome in enumerate(outcomes, start=1):
                total += outcome
                if progress is not None:
                    progress(done, len(files))
    except BrokenProcessPool as error:
        raise FozoError(
            "a worker process died, perhaps for lack of memory; run again with fewer workers: finished files are kept"
        ) from error
    _write_record(out, {**record, "unreadable": len(total.unreadable)})
    return total


def find_images(images: Path, out: Path) -> list[tuple[Path, str]]:
    """List the images of a class-folder tree with the names they will have, ``class/file.JPEG``, sorted."""
    if not images.is_dir():
        raise FozoError(f"there is no folder {images}; give a folder that holds a folder for each class")
    if out.resolve().is_relative_to(images.resolve()):
        raise FozoError(f"{out} lies inside {images}, so its files would be taken for images; choose another place")
    found: dict[str, Path] = {}
    for folder in sorted(path for path in images.iterdir() if path.is_dir() and not path.name.startswith(".")):
        for path in sorted(folder.rglob("*")):
            if path.suffix.lower() not in EXTENSIONS or path.name.startswith(".") or not path.is_file():
                continue
            name = path.relative_to(images).with_suffix(".JPEG").as_posix()
            if name in found:
                raise FozoError(f"{found[name]} and {path} would both become {name}; rename one of them")
            found[name] = path
    if not found:
        raise FozoError(f"there are no images in folders below {images}; expected {images}/CLASS/FILE.jpg")
    return [(path, name) for name, path in found.items()]


def _cores() -> int:
    """Count the cores that this process may use, which in a container are fewer than the machine's."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _run(job: Job, files: Sequence[tuple[Path, str]], workers: int) -> Generator[Outcome, None, None]:
    """Corrupt each image, in this process or in several."""
    work = partial(_corrupt_file, job)
    if workers == 1:
        yield from map(work, files)
        return
    # Spawned, not forked: OpenCV and BLAS threads do not survive a fork.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_start_worker)
    try:
        yield from pool.map(work, files)
    finally:
        # After Ctrl-C or an error, let each worker finish the image in its hands and drop the rest.
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    """Leave Ctrl-C to the parent, and use one core."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(ImportError):
        import cv2

        cv2.setNumThreads(1)


def _corrupt_file(job: Job, file: tuple[Path, str]) -> Outcome:
    """Write every corruption of one image that is not there yet."""
    path, name = file
    targets = {
        (kind, severity): job.out / kind / str(severity) / name for kind in job.kinds for severity in job.severities
    }
    missing = {key: target for key, target in targets.items() if not target.exists()}
    if not missing:
        return Outcome(skipped=len(targets))
    try:
        image = read_image(path)
    except FozoError as error:
        return Outcome(skipped=len(targets) - len(missing), unreadable=(str(error),))
    image = fit(image, job.size)
    for (kind, severity), target in missing.items():
        _write_jpeg(target, corrupt(image, kind, severity, job.seed, image_id=name))
    return Outcome(written=len(missing), skipped=len(targets) - len(missing))


def _write_jpeg(target: Path, image: Pixels) -> None:
    # Encoded in memory first, so that a full disk is the only thing that can go wrong while writing.
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=QUALITY, optimize=True)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(target) as file:
            file.write(stream.getbuffer())
    except OSError as error:
        raise FozoError(
            f"cannot write {target}: {error.strerror}; mend that and run again: finished files are kept"
        ) from error


def _open_record(job: Job, count: int) -> dict[str, object]:
    """Check that a tree begun earlier was made in the same way, and write down what it will hold."""
    path = job.out / METADATA
    old = read_record(path) or {}
    record: dict[str, object] = {
        "kinds": _joined(KINDS + EXTRA_KINDS, old.get("kinds"), job.kinds),
        "severities": _joined(range(1, 6), old.get("severities"), job.severities),
        "size": job.size,
        "seed": job.seed,
        "quality": QUALITY,
        "frost": frost_source() if "frost" in job.kinds else None,
        "images": count,
        "fozo": _version(),
    }
    for key in ("size", "seed", "frost"):
        # A tree without frost may yet get it, from either source.
        if old.get(key) is not None and record[key] is not None and old[key] != record[key]:
            raise FozoError(
                f"{job.out} was made with {key} {old[key]}, not {record[key]}; choose another folder, or the same {key}"
            )
    record["frost"] = record["frost"] or old.get("frost")
    strangers = [kind for kind in job.kinds if (job.out / kind).exists()]
    if strangers and not old:
        raise FozoError(
            f"{job.out} has a folder {strangers[0]} but no {METADATA}, so fozo did not make it; choose another folder"
        )
    try:
        job.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FozoError(f"cannot make the folder {job.out}: {error.strerror}; choose another place") from error
    # Written first as well, so that an interrupted run is not continued with another seed.
    _write_record(job.out, record)
    return record


def _joined(order: Iterable[object], old: object, new: Sequence[object]) -> list[object]:
    """Join what a tree held with what it is getting, in the usual order."""
    held = old if isinstance(old, list) else []
    return [value for value in order if value in held or value in new]


def read_record(path: Path) -> dict[str, object] | None:
    """Read how a tree was made; ``None`` for a tree that fozo did not make."""
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FozoError(f"{path} is not readable JSON ({error}); choose another folder") from error
    if not isinstance(record, dict):
        raise FozoError(f"{path} does not hold a JSON object; choose another folder")
    return record


def _write_record(out: Path, record: dict[str, object]) -> None:
    with atomic_write(out / METADATA) as file:
        file.write(json.dumps(record, indent=2).encode() + b"\n")


def _version() -> str:
    try:
        return metadata.version("fozo")
    except metadata.PackageNotFoundError:
        return "not installed"
