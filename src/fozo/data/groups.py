"""Named groups of ImageNet's classes, for streams of narrow content: a camera sees dogs or kitchens, seldom everything.

Classes are given by their index in ImageNet-1k, which is the order of the sorted WordNet ids and of the usual models'
outputs. No class is in two groups; a quarter of ImageNet's classes is in none. The parts of Align that separate content
from drift were tuned on the groups of :data:`TUNING`; docs/ablation.md says what was known of the others when.
"""

from collections.abc import Mapping
from importlib.resources import files

from fozo.errors import FozoError

CLASSES = 1000  # ImageNet-1k has as many
TUNING = ("birds", "fish", "insects", "primates", "vehicles", "clothing")  # strengths and thresholds are from these


def parse(text: str) -> tuple[int, ...]:
    """Read single numbers and ranges with both ends, such as ``7-24, 80``."""
    ranges = ([int(end) for end in span.split("-")] for span in text.split(","))
    return tuple(number for ends in ranges for number in range(ends[0], ends[-1] + 1))


_paragraphs = files("fozo.data").joinpath("groups.txt").read_text(encoding="utf-8").split("\n\n")[1:]
_named = {name: parse(text) for name, _, text in (paragraph.partition(":") for paragraph in _paragraphs)}
HELD_OUT = tuple(name for name in _named if name not in TUNING)  # Align was not tuned on these: results are of them
_held_out = {number for name in HELD_OUT for number in _named[name]}
GROUPS: Mapping[str, tuple[int, ...]] = {
    **_named,
    "held_out": tuple(sorted(_held_out)),
    "tuning": tuple(number for number in range(CLASSES) if number not in _held_out),
}
"""The classes of every group; ``held_out`` has those of all groups in :data:`HELD_OUT`, ``tuning`` all the others."""


def class_indices(name: str) -> tuple[int, ...]:
    if name not in GROUPS:
        raise FozoError(f"there is no group of classes {name!r}; choose from {', '.join(GROUPS)}")
    return GROUPS[name]
