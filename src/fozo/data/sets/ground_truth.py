"""Labels of the flat ImageNet validation files, from any of the files people have them in."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path

from fozo.data.images import unreadable
from fozo.errors import FozoError
from fozo.io import read_bytes, read_text

_FILE = r"(?P<file>ILSVRC2012_val_\d{8})(?:\.JPEG)?"
_NAMED_WNID = re.compile(_FILE + r"[\s,]+(?P<wnid>n\d{8})\b.*")  # Kaggle's LOC_val_solution.csv, or "file wnid"
_NAMED_INDEX = re.compile(_FILE + r"[\s,]+(?P<number>\d{1,3})")  # Caffe's val.txt: position in sorted order
_WNID = re.compile(r"(?P<wnid>n\d{8})")  # one a line, in the order of the file numbers
_DEVKIT = re.compile(r"(?P<number>\d{1,4})")  # one a line, in the devkit's own numbering 1 ... 1000
MAX_META = 4 << 20
"""Bytes of meta.mat, which has 60,000."""
_FORMATS = (_NAMED_WNID, _NAMED_INDEX, _WNID, _DEVKIT)


def read_ground_truth(file: Path, wnids: Sequence[str]) -> dict[str, str]:
    """Map ``ILSVRC2012_val_XXXXXXXX.JPEG`` to its wnid.

    Four formats, recognised by the first line: ``file wnid ...`` (Kaggle's LOC_val_solution.csv),
    ``file index`` (Caffe's val.txt), one wnid a line, and one devkit id a line
    (ILSVRC2012_validation_ground_truth.txt, which needs the devkit's meta.mat or map_clsloc.txt beside it,
    because the devkit numbers the classes in its own order).
    """
    lines = [line.strip() for line in read_text(file).splitlines()]
    lines = [line for line in lines if line and not line.startswith("ImageId")]
    pattern = next((pattern for pattern in _FORMATS if lines and pattern.fullmatch(lines[0])), None)
    if pattern is None:
        raise FozoError(
            f"{file} is not a list of validation labels: its first line is {(lines or [''])[0][:60]!r}; "
            f"give ILSVRC2012_validation_ground_truth.txt, a val.txt of 'file index', or LOC_val_solution.csv"
        )
    numbered = _devkit(file.parent) if pattern is _DEVKIT else dict(enumerate(wnids))
    truth = {}
    for number, line in enumerate(lines, start=1):
        match = pattern.fullmatch(line)
        if match is None:
            raise FozoError(f"line {number} of {file} is {line[:60]!r}, unlike the lines before; repair the file")
        parts = match.groupdict()
        name = parts.get("file") or f"ILSVRC2012_val_{number:08d}"
        wnid = parts["wnid"] if "wnid" in parts else numbered.get(int(parts["number"]), "")
        if wnid not in wnids:
            raise FozoError(f"line {number} of {file} is {line[:60]!r}, which is not a class of ImageNet-1k; repair it")
        truth[f"{name}.JPEG"] = wnid
    return truth


def _devkit(folder: Path) -> dict[int, str]:
    """Read the devkit's own numbering of the classes."""
    listing = folder / "map_clsloc.txt"
    if listing.is_file():
        rows = (line.split() for line in read_text(listing).splitlines())
        return {int(row[1]): row[0] for row in rows if len(row) >= 2 and re.fullmatch("[0-9]{1,4}", row[1])}
    matrix = folder / "meta.mat"
    if not matrix.is_file():
        raise FozoError(
            f"the devkit numbers classes in its own order, and neither meta.mat nor map_clsloc.txt is in "
            f"{folder} to translate it; keep the ground truth in the devkit's data folder"
        )
    from scipy.io import loadmat  # imported here: it takes as long as the rest of fozo, and few sets need it

    with unreadable(f"{matrix} is not the devkit's meta.mat", "download it again"):
        synsets = loadmat(io.BytesIO(read_bytes(matrix, MAX_META)), squeeze_me=True)["synsets"]
        # Inner nodes of the hierarchy are listed too, with numbers above 1000.
        return {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in synsets}
