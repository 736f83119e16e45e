"""What some methods need measured on clean images, beside the source statistics: how, and how to read it again.

A method, also one of another package, makes what it needs known in its own file::

    add_measurement("gram", "the Gram matrix of clean images", measure_gram, Gram.load)

Then ``fozo bench`` and ``fozo adapt`` measure it, keep it, and pass it to every method with ``needs={"gram"}`` and an
option of that name.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from fozo.methods.common.info import NEEDS
from fozo.types import Engine, Images


class Savable(Protocol):
    """Something measured that can be kept in a file."""

    def save(self, path: str | os.PathLike[str]) -> None: ...


@dataclass(frozen=True)
class Measurement:
    """How something is measured, and read from where it was saved."""

    measure: Callable[[Engine, Iterable[Images]], Savable]
    """Measures it on batches of clean images."""
    load: Callable[[str | os.PathLike[str]], Savable]
    """Reads what its ``save`` wrote."""


MEASURED: dict[str, Measurement] = {}
"""By the name under which methods need it and take it; :func:`add_measurement` fills it."""


def add_measurement(
    name: str,
    words: str,
    measure: Callable[[Engine, Iterable[Images]], Savable],
    load: Callable[[str | os.PathLike[str]], Savable],
) -> None:
    """Make something known that methods need measured; ``words`` say what it is in errors."""
    NEEDS[name] = words
    MEASURED[name] = Measurement(measure, load)
