"""The monitor's reference on the command line: made by ``fozo calibrate --monitor``, read by ``fozo watch``."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from fozo.errors import FozoError

if TYPE_CHECKING:
    from fozo.methods.registry import AnyMethod
    from fozo.monitor import MonitorReference


def read_reference(path: Path) -> MonitorReference:
    """Read it, or say how to make it."""
    from fozo.monitor import MonitorReference

    if not path.exists():
        raise FozoError(
            f"there is no monitor reference {path}; give a folder of clean images as --clean to make it, or make it "
            f"with fozo calibrate --monitor"
        )
    return MonitorReference.load(path)


def make_reference(adapter: AnyMethod, clean: Path, path: Path) -> MonitorReference:
    """Make it from a folder of clean images, whose classes are used if it has them, and write it."""
    from fozo.cli.folder import open_unlabelled
    from fozo.cli.progress import Progress
    from fozo.data.sets import open_images
    from fozo.io import check_output, disk_errors
    from fozo.monitor import MonitorReference

    check_output(path)
    try:
        images = open_images(clean)
    except FozoError:  # no set of classes: then a folder of images
        images = open_unlabelled(clean)
    with closing(Progress()) as progress:
        made = MonitorReference.collect(adapter, images, progress=progress)
    with disk_errors(path):
        made.save(path)
    print(f"fozo: {path} was made from {len(images)} clean images", file=sys.stderr)
    return made
