"""Corrupting a whole folder of images into a tree shaped like ImageNet-C.

``IMAGES/class/file`` becomes ``OUT/kind/severity/class/file.JPEG`` (quality 85, as ImageNet-C), together with
``OUT/corruptions.json``, which records how the tree was made. A file appears under its name only when it is
complete, and a file that is there is not made again: an interrupted run continues where it stopped.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fozo import cluster
from fozo.data.corruptions import (
    ALL_KINDS,
    EXTRA_KINDS,
    KINDS,
    SMALLEST_SIDE,
    UNSEEN_KINDS,
    check_kind,
    check_severity,
    corrupt,
    frost_source,
)
from fozo.data.images import MAX_PIXELS, RESIZE_RATIO, covered
from fozo.data.sets.base import CLEAN, Domain, ImageSet, with_size
from fozo.data.sets.folder import RECORD, Tree, read_record, unlabelled
from fozo.data.streams import Corrupting, corrupted_name, describe_preparation
from fozo.errors import FozoError, check_counts
from fozo.io import atomic_write, disk_errors, write_json
from fozo.io.system import installed_version, usable_cpus

QUALITY = 85


@dataclass(frozen=True)
class Outcome:
    """The result for one image, or the sum over all of them."""

    written: int = 0
    skipped: int = 0
    unreadable: tuple[str, ...] = ()
    """One sentence for each image that could not be read, naming it."""

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(self.written + other.written, self.skipped + other.skipped, self.unreadable + other.unreadable)


def parse_kinds(text: str) -> tuple[str, ...]:
    """Read ``all``, ``all+extra``, ``unseen`` or a comma-separated list of corruptions."""
    named = {"all": KINDS, "all+extra": KINDS + EXTRA_KINDS, "unseen": UNSEEN_KINDS}
    kinds = named.get(text.strip()) or tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for kind in kinds:
        check_kind(kind)
    return kinds


def parse_severities(text: str) -> tuple[int, ...]:
    """Read ``5``, ``1-5`` or ``1,3,5``."""
    severities: set[int] = set()
    for words in text.split(","):
        match = re.fullmatch(r"\s*([1-5])\s*(?:-\s*([1-5])\s*)?", words)
        levels = range(int(match[1]), int(match[2] or match[1]) + 1) if match else ()
        if not levels:
            raise FozoError(f"cannot read the severity {words.strip()!r}; write 5, or 1-5, or 1,3,5")
        severities.update(levels)
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
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Outcome:
    """Corrupt every image of a folder of class folders, to files of ``size`` px.

    The pixels are those of :class:`~fozo.data.streams.Corrupting`. Random draws are keyed by
    ``class/file.JPEG``, so they do not depend on ``workers`` or on other images.

    Args:
        out: folder for the result, made if needed. More kinds and severities may be added to it later, but
            not with another size or seed.
        workers: processes; by default one for each processor that this one may use.
        progress: called with the number of images done and their total.
    """
    for kind in kinds:  # an unknown kind or a missing library is one error now and not one for each image
        corrupt(np.zeros((SMALLEST_SIDE, SMALLEST_SIDE, 3), np.uint8), kind, 1, 0)
    for severity in severities:
        check_severity(severity)
    if size < SMALLEST_SIDE:
        raise FozoError(f"the size is {size} px; a corruption needs at least {SMALLEST_SIDE}")
    if covered(size) ** 2 > MAX_PIXELS:
        raise FozoError(f"the size is {size} px; images of at most {int(MAX_PIXELS**0.5 / RESIZE_RATIO)} px are made")
    workers = usable_cpus() if workers is None else workers
    check_counts(workers=workers)
    if out.resolve().is_relative_to(images.resolve()):
        raise FozoError(f"{out} lies inside {images}, so its files would be taken for images; choose another folder")
    clean = with_size(find_images(images))
    domains = tuple(dict.fromkeys(Domain(kind, severity) for kind in kinds for severity in severities))
    record = _open_record(out, domains, Corrupting(clean, size, seed))
    # A source goes to a worker for each image, so it has that image alone.
    sources = (Corrupting(replace(clean, samples=(sample,)), size, seed) for sample in clean.samples)
    work = partial(_corrupt_image, out, domains)
    total = Outcome()
    processes = min(workers, len(clean)) if workers > 1 else None
    for done, (_, outcome) in enumerate(cluster.run(work, sources, workers=processes), start=1):
        if isinstance(outcome, Exception):
            raise outcome
        total += outcome
        progress(done, len(clean))
    write_json(out / RECORD, {**record, "unreadable": len(total.unreadable)})
    return replace(total, unreadable=tuple(sorted(total.unreadable)))


def find_images(root: Path) -> ImageSet:
    if not root.is_dir():
        raise FozoError(f"there is no folder {root}; give a folder that holds a folder for each class")
    paths = list(chain.from_iterable(Tree(root).classes().values()))
    if not paths:
        raise FozoError(f"there are no images in folders below {root}; expected {root}/CLASS/FILE.jpg")
    names: dict[str, str] = {}
    for path in paths:
        first = names.setdefault(corrupted_name(path), path)
        if first != path:
            raise FozoError(f"{first} and {path} would both become {corrupted_name(path)}; rename one of them")
    return unlabelled("folder", root, paths)


def _corrupt_image(out: Path, domains: Sequence[Domain], source: Corrupting) -> Outcome:
    """Write the one image of ``source`` under every domain that does not have it yet."""
    name = corrupted_name(source.images.samples[0].path)
    missing = [domain for domain in domains if not (out / domain.name / name).exists()]
    skipped = len(domains) - len(missing)
    if not missing:
        return Outcome(skipped=skipped)
    try:
        clean = source.load(CLEAN, 0)
    except FozoError as error:
        return Outcome(skipped=skipped, unreadable=(str(error),))
    for domain in missing:
        # Encoded in memory first, so that a full disk is the only thing that can go wrong while writing.
        stream = io.BytesIO()
        Image.fromarray(source.corrupt(clean, domain, 0)).save(stream, "JPEG", quality=QUALITY, optimize=True)
        target = out / domain.name / name
        with disk_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(target) as file:
                file.write(stream.getbuffer())
    return Outcome(written=len(missing), skipped=skipped)


def _open_record(out: Path, domains: Sequence[Domain], source: Corrupting) -> dict[str, Any]:
    """Check that a tree begun earlier was made in the same way, and record what it will hold."""
    old = read_record(out) or {}

    def joined(key: str, order: Iterable[object], new: Collection[object]) -> list[object]:
        before = old.get(key)
        return [value for value in order if value in new or (isinstance(before, list) and value in before)]

    kinds = {domain.kind for domain in domains}
    record: dict[str, Any] = {
        "kinds": joined("kinds", ALL_KINDS, kinds),
        "severities": joined("severities", range(1, 6), {domain.severity for domain in domains}),
        "size": source.size,
        "preparation": describe_preparation(source.images, source.size),
        "seed": source.seed,
        "quality": QUALITY,
        "frost": frost_source() if "frost" in kinds else None,
        "images": len(source.images),
        "fozo": installed_version(),
    }
    for key in ("size", "preparation", "seed", "frost"):
        # A tree without frost may yet get it, from either source.
        if old.get(key) is not None and record[key] is not None and old[key] != record[key]:
            raise FozoError(
                f"{out} was made with {key} {old[key]}, not {record[key]}; choose another folder, or the same {key}"
            )
    record["frost"] = record["frost"] or old.get("frost")
    for kind in () if old else record["kinds"]:
        if (out / kind).exists():
            raise FozoError(f"{out} has a folder {kind} but no {RECORD}: fozo did not make it; choose another")
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    # Written first as well, so that an interrupted run is not continued with another seed.
    write_json(out / RECORD, record)
    return record
