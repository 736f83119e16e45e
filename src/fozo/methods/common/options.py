"""Options of a method: fields of its config by name, those of nested configs with a dot."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, cast

from fozo.errors import RENAMED, FozoError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from fozo.types import Value


@dataclass(frozen=True)
class NoOptions:
    """The config of a method without options."""


def with_options(method: str, prefix: str, config: DataclassInstance, options: Mapping[str, object]) -> object:
    """Apply options to a config, dotted ones to the configs inside it."""
    inner: dict[str, dict[str, object]] = {}
    flat: dict[str, object] = {}
    known = {field.name: field for field in fields(config)}
    for key, value in options.items():
        name, dot, rest = key.partition(".")
        if name not in known or (dot and not is_dataclass(getattr(config, name))):
            hint = f"it is called {RENAMED[key]} now" if key in RENAMED else f"its options are {', '.join(known)}"
            raise FozoError(f"{method} has no option {prefix + key!r}; {hint}")
        if dot:
            inner.setdefault(name, {})[rest] = value
            continue
        usual = getattr(config, name)
        # A field that takes several types says so itself and checks them itself.
        if "|" not in str(known[name].type) and not _like(value, usual):
            raise FozoError(f"{method}: {prefix}{name} is {value!r}; give a value like {usual!r}")
        flat[name] = value
    for name, values in inner.items():
        flat[name] = with_options(method, f"{prefix}{name}.", getattr(config, name), values)
    return replace(config, **flat)


def _like(value: object, usual: object) -> bool:
    if isinstance(usual, bool) or isinstance(value, bool):
        return isinstance(usual, bool) and isinstance(value, bool)
    if isinstance(usual, float):
        return isinstance(value, (int, float)) and not math.isnan(value)
    return isinstance(value, type(usual))


def plain(config: DataclassInstance) -> dict[str, object]:
    """Give a config as plain values; JSON has no infinity."""
    return {
        name: plain(cast("DataclassInstance", getattr(config, name)))
        if isinstance(value, dict)
        else (None if value == math.inf else value)
        for name, value in asdict(config).items()
    }


def sweep(option: str, *values: float) -> dict[str, dict[str, Value]]:
    """Name each value of an option, for ``@register(..., tuning=...)``: ``rate 0.001``."""
    return {f"{option} {value:g}": {option: value} for value in values}


def positive(method: str, **values: float) -> None:
    _check(method, values, "be above 0", lambda value: value > 0)


def share(method: str, **values: float) -> None:
    _check(method, values, "lie in (0, 1]", lambda value: 0 < value <= 1)


def below_one(method: str, **values: float) -> None:
    _check(method, values, "lie in [0, 1)", lambda value: 0 <= value < 1)


def _check(method: str, values: Mapping[str, float], words: str, holds: Callable[[float], bool]) -> None:
    for name, value in values.items():
        if not holds(value):
            raise FozoError(f"{method}: {name} must {words}, not {value}")


def one_of(method: str, choices: tuple[str, ...], **values: str) -> None:
    for name, value in values.items():
        if value not in choices:
            raise FozoError(f"{method}: {name} is {value!r}; choose from {', '.join(choices)}")
