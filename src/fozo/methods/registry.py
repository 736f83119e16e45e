"""The list of methods: a name, what the method needs, and the class that implements it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from fozo.errors import FozoError

if TYPE_CHECKING:
    from fozo.core.statistics import SourceStatistics
    from fozo.engines.base import Engine
    from fozo.methods.base import Method


@dataclass(frozen=True)
class MethodInfo:
    """What a user should know of a method before choosing it."""

    name: str
    summary: str
    needs_gradient: bool
    needs_source: bool
    passes: str
    """Forward passes for each image."""
    adapts: str
    paper: str


_REGISTRY: dict[str, Callable[..., Method]] = {}
_INFO: dict[str, MethodInfo] = {}
M = TypeVar("M", bound="Callable[..., Method]")


def register(info: MethodInfo) -> Callable[[M], M]:
    """Decorate a class, or a function that chooses between classes: make it known under ``info.name``."""

    def add(factory: M) -> M:
        if info.name in _REGISTRY:
            raise FozoError(f"a method named {info.name!r} is registered already; choose another name")
        if isinstance(factory, type):
            factory.info = info  # type: ignore[attr-defined]
        _REGISTRY[info.name], _INFO[info.name] = factory, info
        return factory

    return add


def methods() -> dict[str, MethodInfo]:
    """All registered methods by name."""
    return dict(sorted(_INFO.items()))


def takes(name: str, option: str) -> bool:
    """Whether a registered method's constructor names this keyword (``seed``, say)."""
    return option in inspect.signature(_REGISTRY[name]).parameters


def create(name: str, engine: Engine, source: SourceStatistics | None = None, **options: object) -> Method:
    """Make the method called ``name``; ``options`` are its keyword arguments."""
    if name not in _REGISTRY:
        close = difflib.get_close_matches(name, _REGISTRY, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise FozoError(f"there is no method {name!r}{hint} Known are {', '.join(sorted(_REGISTRY))}")
    try:
        return _REGISTRY[name](engine, source, **options)
    except TypeError as error:
        raise FozoError(f"{name} does not take these options: {error}") from error
