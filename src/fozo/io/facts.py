"""Plain values of a file as the dataclass that they should be: every field checked against its type."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Hashable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

from fozo.errors import FozoError

D = TypeVar("D")
LARGEST = 2**63 - 1
"""Whole numbers beyond it are nobody's counts, and not every library takes them."""


def as_dataclass(kind: type[D], facts: object, what: str) -> D:
    """Make a dataclass of what JSON held, nested ones and tuples included.

    Args:
        kind: the dataclass; its fields say what is taken. Numbers have to be finite.
        facts: a JSON object: a value for each field, but for those that have a default.
        what: what to call it in an error, such as ``the measures of runs/a``.
    """
    if not isinstance(facts, Mapping):
        raise FozoError(f"{what} should be a table of values, not {_shown(facts)}; write it again")
    hints = _hints(typing.cast("Hashable", kind))  # every class is; mypy does not see it
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = [name for name in facts if name not in fields]
    if unknown:
        raise FozoError(f"{what} has no {unknown[0]!r} in this version of fozo; write it again")
    values = {}
    for name, field in fields.items():
        if name in facts:
            values[name] = _value(hints[name], facts[name], f"{name} of {what}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise FozoError(f"{what} lacks {name!r}; write it again")
    return kind(**values)


@lru_cache(maxsize=64)
def _hints(kind: Hashable) -> dict[str, Any]:
    """Types of a class's fields: found once, because evaluating them takes longer than checking a line of a log."""
    return typing.get_type_hints(kind)


def _value(hint: Any, value: Any, what: str) -> Any:  # noqa: ANN401 - values of any type are judged here
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in inner:
            return None
        for each in inner:
            with suppress(FozoError):
                return _value(each, value, what)
    if dataclasses.is_dataclass(hint):
        return as_dataclass(typing.cast("type[Any]", hint), value, what)
    if origin is tuple and isinstance(value, (list, tuple)):
        each = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
        if len(each) == len(value):
            return tuple(_value(one, part, what) for one, part in zip(each, value, strict=True))
    if origin in (dict, Mapping) and isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: _value(inner[1], part, f"{name} in {what}") for name, part in value.items()}
    if hint is float and type(value) is float and math.isfinite(value):
        return value
    if hint in (int, float) and type(value) is int and abs(value) <= LARGEST:
        return value
    if hint in (str, bool) and type(value) is hint:
        return value
    raise FozoError(f"{what} is {_shown(value)}, where {_name(hint)} is needed; write it again")


def _name(hint: Any) -> str:  # noqa: ANN401
    return getattr(hint, "__name__", str(hint)) if typing.get_origin(hint) is None else str(hint)


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) <= LARGEST else "a very large number"
    return text if len(text) <= 60 else f"{text[:60]}..."
