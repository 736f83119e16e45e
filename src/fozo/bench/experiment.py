"""What an experiment is: one method on one stream with one model and one seed, as a small frozen value.

An experiment says *what* is measured, never *where* things lie: folders are given to the runner. Its hash is that of
its content, so the same experiment has the same folder name on every machine, and a changed option gets a new one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import PurePath
from typing import Any

from fozo.data.corruptions import KINDS
from fozo.data.scenarios import SCENARIOS, Scenario
from fozo.data.sets.base import check_seed
from fozo.errors import FozoError
from fozo.quant.scales import BITS

Value = bool | int | float | str
"""What an option may be: what TOML and JSON both can say."""

DATA = ("imagenet-c", "imagenet", "imagenet-r", "imagenet-sketch", "imagenet-v2")
"""Image sets that a stream may be made of. ``imagenet`` under corruptions is corrupted as it is read."""

QUANTISE = ("", *(f"ptq4vit{bits}" for bits in BITS))


@dataclass(frozen=True)
class StreamPlan:
    """Which images a method sees, in which order; resolved to a :class:`fozo.data.streams.Stream` by the runner."""

    data: str = "imagenet-c"
    scenario: str = "continual"
    kinds: tuple[str, ...] = KINDS
    severity: int = 5
    images: int | None = None
    """Images of each domain, drawn at random (the same for every seed); all of them by default."""
    batch_size: int = 64

    def __post_init__(self) -> None:
        """Refuse what cannot be streamed."""
        if self.data not in DATA:
            raise FozoError(f"there is no data {self.data!r}; choose from {', '.join(DATA)}")
        if self.scenario not in SCENARIOS:
            raise FozoError(f"there is no scenario {self.scenario!r}; choose from {', '.join(SCENARIOS)}")
        if self.batch_size < 1:
            raise FozoError(f"batch_size is {self.batch_size}; give a whole number from 1 up")
        if self.images is not None and self.images < 1:
            raise FozoError(f"images is {self.images}; give a whole number from 1 up")
        if not 1 <= self.severity <= 5:
            raise FozoError(f"severity is {self.severity}; give a whole number from 1 to 5")
        self.order()

    @property
    def corrupted(self) -> bool:
        """Whether the images come under corruptions."""
        return self.kinds != ("clean",)

    def order(self) -> Scenario:
        """Make the scenario; those that go through severities themselves (gradual) have no severity to set."""
        make = SCENARIOS[self.scenario]
        level = {"severity": self.severity} if hasattr(make, "severity") else {}
        return make(kinds=self.kinds, **level)


@dataclass(frozen=True)
class Experiment:
    """One run: everything that its records depend on, except the bytes of model and images."""

    model: str
    """A weights file, or ``timm:NAME``."""
    method: str
    options: Mapping[str, Value] = field(default_factory=dict)
    stream: StreamPlan = field(default_factory=StreamPlan)
    seed: int = 0
    """Of the order of the images and of the method's own draws."""
    calibration: int = 2000
    """Clean images that source statistics and Fisher information are measured on."""
    label: str = ""
    """What the tables call it; not part of the hash."""
    quantise: str = ""
    """``ptq4vit8`` (or 6, 4) to quantise the model on clean images first; part of the hash where it is given."""

    def __post_init__(self) -> None:
        """Refuse bad seeds and sizes."""
        check_seed(self.seed)
        if self.quantise not in QUANTISE:
            raise FozoError(f"quantise is {self.quantise!r}; choose from {', '.join(filter(None, QUANTISE))}")
        if self.calibration < 2:
            raise FozoError(f"calibration is {self.calibration}; source statistics need at least 2 clean images")

    def describe(self) -> dict[str, Any]:
        """Say in plain values (JSON) what is hashed. The model is named without its folder."""
        facts = asdict(self)
        del facts["label"]
        if not self.quantise:  # so that experiments from before there was a choice keep their hash
            del facts["quantise"]
        stream = dict(facts["stream"], kinds=list(self.stream.kinds))
        return {
            **facts,
            "model": model_name(self.model),
            "options": dict(sorted(self.options.items())),
            "stream": stream,
        }

    @property
    def hash(self) -> str:
        """Ten hexadecimal digits of the SHA-256 of :meth:`describe`."""
        return hashlib.sha256(json.dumps(self.describe(), sort_keys=True).encode()).hexdigest()[:10]

    @property
    def folder(self) -> str:
        """Name of its folder: readable, and made unique by the hash."""
        readable = re.sub(r"[^a-z0-9]+", "-", (self.label or self.method).lower()).strip("-")
        return f"{readable}-s{self.seed}-{self.hash}"


def model_name(model: str) -> str:
    """Name a model reference without its folder: ``timm:NAME`` or the file's name."""
    return model if model.startswith("timm:") else PurePath(model).name


def plan_from(facts: Mapping[str, Any]) -> StreamPlan:
    """Make a plan of plain values, naming what is unknown."""
    known = StreamPlan.__dataclass_fields__
    unknown = [key for key in facts if key not in known]
    if unknown:
        raise FozoError(f"a stream has no {unknown[0]!r}; it has {', '.join(known)}")
    values = dict(facts)
    for key, value in values.items():
        wanted = {"kinds": list, "data": str, "scenario": str}.get(key, int)
        missing = key == "images" and value is None
        if not missing and (not isinstance(value, wanted) or isinstance(value, bool)):
            raise FozoError(
                f"the stream's {key} is {value!r}; give {'a list of names' if key == 'kinds' else wanted.__name__}"
            )
    if "kinds" in values:
        values["kinds"] = tuple(str(kind) for kind in values["kinds"])
    return StreamPlan(**values)
