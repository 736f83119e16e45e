"""Choosing a method's options: a named preset, and the fields that should differ from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, TypeVar

from fozo.errors import FozoError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

O = TypeVar("O", bound="DataclassInstance")  # noqa: E741 - the usual letter for options


def pick(method: str, presets: Mapping[str, O], preset: str, switches: Mapping[str, object]) -> O:
    """Return ``presets[preset]`` with ``switches`` applied, naming what is possible where something is unknown."""
    if preset not in presets:
        raise FozoError(f"{method} has no preset {preset!r}; choose from {', '.join(presets)}")
    known = [field.name for field in fields(presets[preset])]
    for name in switches:
        if name not in known:
            raise FozoError(f"{method} has no option {name!r}; its options are {', '.join(known)}")
    return replace(presets[preset], **switches)


def positive(method: str, **values: float) -> None:
    """Refuse options that have to be above zero and are not (NaN included)."""
    for name, value in values.items():
        if not value > 0:
            raise FozoError(f"{method}: {name} must be above 0, not {value}")
