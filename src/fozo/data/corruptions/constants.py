"""The published constants of ImageNet-C, CIFAR-C and Tiny-ImageNet-C, in ``constants.txt``.

They are those of hendrycks/robustness (Hendrycks and Dietterich, ICLR 2019). ``CONSTANTS[kind][scale][severity - 1]``
are the arguments of the kind's function; ``scale`` is the side in pixels of the images that they were chosen for.
"""

from __future__ import annotations

import re
from importlib.resources import files

Constants = tuple[float, ...]

SCALES = (32, 64, 224)


def _read(table: str) -> dict[str, dict[int, tuple[Constants, ...]]]:
    found: dict[str, dict[int, tuple[Constants, ...]]] = {}
    kind = ""
    for line in re.sub(r"\n {22}", "", table).splitlines():  # a long row goes on in the next line
        if line.startswith("#"):
            continue
        kind = line[:17].strip() or kind
        found.setdefault(kind, {})[int(line[17:21])] = tuple(
            tuple(float(number) if "." in number else int(number) for number in part.split())
            for part in line[21:].split(",")
        )
    # The published program has 244 where it means 224; that is what made ImageNet-C, so it stays.
    elastic = found["elastic_transform"]
    elastic[224] = tuple(tuple(244 / 224 * value for value in values) for values in elastic[224])
    return found


CONSTANTS = _read(files("fozo.data.corruptions").joinpath("constants.txt").read_text(encoding="utf-8"))
