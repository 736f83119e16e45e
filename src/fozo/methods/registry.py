"""The list of methods: a name, what the method needs, and the class that implements it.

Methods of other packages are found by their entry points, and imported when they are asked for by name or for the
whole list::

    [project.entry-points."fozo.methods"]
    mine = "my_package.mine"  # the module (or module:Class) whose class is decorated with @register("mine", ...)
"""

import difflib
import os
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from importlib import metadata
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, TypeVar

from fozo.core.statistics import Statistics
from fozo.engines.load import Model, load_engine
from fozo.errors import FozoError, PluginWarning
from fozo.methods.common.info import NEEDS, MethodInfo
from fozo.methods.method import Method
from fozo.types import Value

AnyMethod = Method[Any, Any]
INNER = "inner"  # what a method that goes around others calls them
PLUGINS = "fozo.methods"  # The group of entry points that other packages name their methods in
_REGISTRY: dict[str, type[AnyMethod]] = {}
_FILES: dict[Path, tuple[str, ...]] = {}
"""Names of the methods of every file that was imported by its path."""
M = TypeVar("M", bound=type[AnyMethod])


def register(
    name: str,
    *,
    passes: str,
    adapts: str,
    paper: str,
    needs: Collection[str] = (),
    draws: bool = False,
    label: str | None = None,
    compared: Mapping[str, Value] | None = None,
    tuning: Mapping[str, Mapping[str, Value]] | None = None,
) -> Callable[[M], M]:
    """Decorate a class: make it known by ``name``, with its docstring's first line and these values as its info.

    ``label`` is the name of the class by default. :class:`~fozo.methods.common.info.MethodInfo` explains the values.

    Examples:
        >>> @register("mirrored", passes="1", adapts="nothing", paper="-")
        ... class Mirrored(fozo.Method):
        ...     "Images seen in a mirror."
        ...     def step(self, state, batch):
        ...         return fozo.Result(self.plain(batch.with_images(batch.images[..., ::-1])), state)
        >>> fozo.create("mirrored", model)(batch).shape
        (8, 10)
    """

    def add(method: M) -> M:
        if name in _REGISTRY:
            raise FozoError(f"a method named {name!r} is registered already; choose another name")
        summary = (method.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        title = method.__name__ if label is None else label
        method.info = MethodInfo(
            name, summary, passes, adapts, paper, frozenset(needs), draws, title, compared or {}, tuning or {}
        )
        _REGISTRY[name] = method
        return method

    return add


def list_methods(*, without: Collection[str] = ()) -> dict[str, MethodInfo]:
    """All registered methods by name, but those that need any of ``without`` (``{"torch"}``, say).

    Those of other packages are among them; one that cannot be imported is left out with a warning.

    Examples:
        >>> fozo.list_methods(without={"torch"})["neo"]
        MethodInfo(name='neo', summary=..., passes='1', ...paper='NEO, ICLR 2026', ...)
    """
    unknown = [need for need in without if need not in NEEDS]
    if unknown:
        raise FozoError(f"no method can need {unknown[0]!r}; choose from {', '.join(NEEDS)}")
    for name, entry in _plugins().items():
        try:
            _load(entry)
        except FozoError as error:
            warnings.warn(f"{error}; {name} is left out", PluginWarning, stacklevel=2)
    infos = {name: method.info for name, method in sorted(_REGISTRY.items())}
    return {name: info for name, info in infos.items() if info.needs.isdisjoint(without)}


def method_class(name: str) -> type[AnyMethod]:
    plugins = {} if name in _REGISTRY else _plugins()
    if name in plugins:
        _load(plugins[name])
    elif name not in _REGISTRY:
        known = sorted({*_REGISTRY, *plugins})
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise FozoError(f"there is no method {name!r}{hint}; known are {', '.join(known)}")
    return _REGISTRY[name]


def method_info(name: str) -> MethodInfo:
    """Say what is known of a method, or of one behind others: ``equalise+neo`` is NEO behind Equalise.

    The constants that such a row may have are those of its last method.
    """
    fronts, _, last = name.rpartition("+")
    info = method_class(last).info
    if not fronts:
        return info
    front = method_info(fronts)
    return replace(info, name=name, label=f"{front.label} + {info.label}", needs=front.needs | info.needs)


def import_methods(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Import a Python file and name the methods that it registers.

    The same file is imported once.
    """
    file = Path(path).resolve()
    if file not in _FILES:
        if not file.is_file():
            raise FozoError(f"there is no file {path}; give a Python file with a class under @register")
        before = set(_REGISTRY)
        module_name = f"fozo_method_file_{len(_FILES)}"
        spec = spec_from_file_location(module_name, file)
        if spec is None or spec.loader is None:
            raise FozoError(f"{path} is not a Python file; give one with the ending .py")
        module = module_from_spec(spec)
        sys.modules[module_name] = module  # where dataclasses look for the names in their annotations
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise FozoError(f"{path} cannot be imported ({_reason(error)}); mend it") from error
        names = tuple(name for name in _REGISTRY if name not in before)
        if not names:
            raise FozoError(f'{path} registers no method; put @register("name", ...) of fozo.methods above its class')
        _FILES[file] = names
    return _FILES[file]


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _plugins() -> dict[str, metadata.EntryPoint]:
    """Entry points of other packages by name, where no method of that name is registered yet."""
    return {entry.name: entry for entry in metadata.entry_points(group=PLUGINS) if entry.name not in _REGISTRY}


def _load(entry: metadata.EntryPoint) -> None:
    """Import a method of another package; whatever is wrong with it is that package's fault, and said so."""
    owner = "an unknown package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
    try:
        entry.load()
    except Exception as error:
        what = f"the method {entry.name!r} of the package {owner} cannot be loaded ({_reason(error)})"
        raise FozoError(f"{what}; update or uninstall it") from error
    if entry.name not in _REGISTRY:
        what = f"the package {owner} promises a method {entry.name!r}, but {entry.value} registers none of that name"
        raise FozoError(f"{what}; update or uninstall it")


def create(
    name: str,
    engine: Model,
    statistics: Statistics | str | os.PathLike[str] | None = None,
    *,
    preset: str | None = None,
    seed: int = 0,
    journal: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    **options: object,
) -> AnyMethod:
    """Make the method called ``name`` (see :func:`list_methods`) from what every :class:`fozo.Method` takes.

    ``front+method`` is a method behind another one; preset and options are those of the last.

    Examples:
        >>> fozo.create("foa", model, statistics, passes=2)(batch).shape
        (8, 10)
        >>> fozo.create("equalise+neo", model, statistics)
        <Equalise on ..., inner=<NEO on ...>>
        >>> fozo.create("tempt", model)
        Traceback (most recent call last):
        fozo.errors.FozoError: there is no method 'tempt' (did you mean 'tent'?); known are ...

    Args:
        batch_size: of the stream, which the published learning rates of gradient methods depend on.
    """
    fronts, _, last = name.rpartition("+")
    last_method = method_class(last)
    if batch_size is not None and hasattr(next(iter(last_method.PRESETS.values())), "batch_size"):
        options.setdefault("batch_size", batch_size)
    if not fronts:
        return last_method(engine, statistics, preset=preset, seed=seed, journal=journal, **options)
    engine = load_engine(engine)
    front = method_class(fronts.rpartition("+")[2])
    if INNER in front.EXTRAS:  # it changes the images that the last one reads
        behind = last_method(engine, statistics, preset=preset, seed=seed, journal=None, **options)
        return create(fronts, engine, statistics, seed=seed, journal=journal, inner=behind)
    if INNER in last_method.EXTRAS:  # it changes the logits that the first one returns
        before = create(fronts, engine, statistics, seed=seed)
        return last_method(engine, statistics, preset=preset, seed=seed, journal=journal, inner=before, **options)
    raise FozoError(f"neither {front.info.name} nor {last} goes around another method; give one that does, such as neo")
