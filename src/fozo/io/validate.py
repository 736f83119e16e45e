"""Values of a JSON or TOML file as a dataclass: every field is checked against its type."""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Hashable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

from fozo.errors import FozoError

D = TypeVar("D")
MAX_INTEGER = 2**63 - 1
WORDS = {str: "text", int: "a whole number", float: "a finite number", bool: "true or false", tuple: "a list"}


def as_dataclass(kind: type[D], payload: object, what: str, *, advice: str = "write it again", **given: Any) -> D:  # noqa: ANN401
    """Make a dataclass of plain values, nested dataclasses, tuples, mappings and unions included.

    Ranges are checked by the dataclass's ``__post_init__``.

    Args:
        kind: the dataclass; its fields say what is taken.
        payload: a table of values by field; fields with a default may be left out.
        what: what to call it in an error: file and table, such as ``the model fashion of serve.toml``.
        advice: the end of every error: what to do about it.
        given: fields that the caller sets as they are, and the file may not.
    """
    if not isinstance(payload, Mapping):
        raise FozoError(f"{what} should be a table of values, not {_brief(payload)}; {advice}")
    hints = _hints(typing.cast("Hashable", kind))  # every class is; mypy does not see it
    fields = [field for field in dataclasses.fields(kind) if field.name not in given]  # type: ignore[arg-type]
    names = [field.name for field in fields]
    for name in payload:
        if name not in names:
            close = difflib.get_close_matches(str(name), names, 1)
            hint = f"did you mean {close[0]!r}" if close else f"it has {', '.join(names)}"
            raise FozoError(f"{what} has no setting {_brief(name)}: {hint}; {advice}")
    values = {}
    for field in fields:
        if field.name in payload:
            where = f"{field.name} of {what}"
            values[field.name] = _value(hints[field.name], payload[field.name], where, advice)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise FozoError(f"{what} lacks {field.name!r}; {advice}")
    return kind(**values, **given)


@lru_cache(maxsize=64)
def _hints(kind: Hashable) -> dict[str, Any]:
    """Types of a class's fields; evaluating them takes longer than checking a line of a log."""
    return typing.get_type_hints(kind)


def _value(hint: Any, value: Any, what: str, advice: str) -> Any:  # noqa: ANN401
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in inner:
            return None
        for each in inner:
            with suppress(FozoError):
                return _value(each, value, what, advice)
    if dataclasses.is_dataclass(hint):
        return as_dataclass(typing.cast("type[Any]", hint), value, what, advice=advice)
    if origin is tuple and isinstance(value, (list, tuple)):
        each = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
        if len(each) == len(value):
            return tuple(_value(one, part, what, advice) for one, part in zip(each, value, strict=True))
    if origin in (dict, Mapping) and isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: _value(inner[1], part, f"{name} in {what}", advice) for name, part in value.items()}
    if hint is float and type(value) is float and math.isfinite(value):
        return value
    if hint in (int, float) and type(value) is int and abs(value) <= MAX_INTEGER:
        return value
    if hint in (str, bool) and type(value) is hint:
        return value
    raise FozoError(f"{what} is {_brief(value)}, where {_words(hint)} is needed; {advice}")


def _words(hint: Any) -> str:  # noqa: ANN401
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(_words(each) for each in typing.get_args(hint) if each is not type(None))
    return WORDS.get(typing.get_origin(hint) or hint, "a table")


def _brief(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) <= MAX_INTEGER else "a very large number"
    return text if len(text) <= 60 else f"{text[:60]}..."
