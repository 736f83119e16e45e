"""What some methods need measured on clean images, beside the source statistics: how, and how to read it again."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from fozo.methods.eata import Fisher, measure_fisher
from fozo.methods.pea import Covariances, measure_covariances
from fozo.types import Engine, Images


class Savable(Protocol):
    """Something measured that can be kept in a file."""

    def save(self, path: str | os.PathLike[str]) -> None: ...


@dataclass(frozen=True)
class Measurement:
    """How something is measured, and read from where it was saved."""

    measure: Callable[[Engine, Iterable[Images]], Savable]
    load: Callable[[str | os.PathLike[str]], Savable]


MEASURED: Mapping[str, Measurement] = {  # by the name under which a method needs it and takes it
    "fisher": Measurement(measure_fisher, Fisher.load),
    "covariances": Measurement(measure_covariances, Covariances.load),
}
