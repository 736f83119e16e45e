"""States: attributes that a class declares, and the checks that a state or its file has to pass."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fozo.errors import FozoError
from fozo.io import ArraySpec, load_arrays, save_arrays
from fozo.types import State

VERSION = 4
MAX_MAGNITUDE = 1e30  # Adaptation leads to no number near it; beyond it, products of two would not be finite
AnyArray: TypeAlias = npt.NDArray[np.generic] | ArraySpec  # An array, or what a file's header says about one


def read_attributes(owner: object, names: Iterable[str], optional: Collection[str]) -> State:
    """Return attributes as named arrays, objects by their ``state()``; ``optional`` numbers have 0 or 1 rows."""
    found: State = {}
    for name in names:
        value = getattr(owner, name)
        if hasattr(value, "state"):
            found |= value.state()
        elif name in optional and (value is None or isinstance(value, float)):
            found[name] = np.array([] if value is None else [value], dtype=np.float64)
        else:
            found[name] = np.asarray(value)
    return found


def write_attributes(owner: object, names: Iterable[str], optional: Collection[str], state: State) -> None:
    """Set what :func:`read_attributes` returned. Plain integers are counts, so negative ones are refused."""
    for name in names:
        current = getattr(owner, name)
        if hasattr(current, "load_state"):
            current.load_state(state)
            continue
        value: object = state[name]
        if name in optional and (current is None or isinstance(current, float)):
            if len(state[name]) > 1:
                raise FozoError(f"the state's {name!r} is {len(state[name])} numbers, not one; save the state again")
            value = float(state[name][0]) if len(state[name]) else None
        elif isinstance(current, (int, float)):
            value = type(current)(state[name].item())
            if isinstance(current, int) and value < 0:
                raise FozoError(f"the state's {name!r} is {value}, but counts start at 0; give a state saved whole")
        setattr(owner, name, value)


def check_arrays(method: str, current: State, variable: Mapping[str, str], state: Mapping[str, AnyArray]) -> None:
    """Refuse names, shapes and precisions other than the current ones; ``variable`` rows may differ in number."""
    rows: dict[str, int] = {}
    for name in sorted(current.keys() ^ state.keys()):
        what = f"holds {name!r}, which {method} does not have" if name in state else f"lacks {name!r}"
        raise FozoError(f"the state {what}; give a state that it saved itself")
    for name, value in state.items():
        wanted = current[name].shape
        if name in variable and value.shape:
            wanted = (rows.setdefault(variable[name], value.shape[0]), *wanted[1:])
        if value.dtype != current[name].dtype or value.shape != wanted:
            raise FozoError(
                f"the state's {name!r} is {value.dtype} of shape {list(value.shape)}, where finite "
                f"{current[name].dtype} of shape {list(wanted)} is needed; give a state that was saved whole"
            )


def check_finite(state: State) -> None:
    for name, value in state.items():
        if value.dtype.kind == "f" and not (np.abs(value.astype(np.float64)) <= MAX_MAGNITUDE).all():
            raise FozoError(f"the state's {name!r} has values that are not finite; give a state that was saved whole")


def save_state(path: str | os.PathLike[str], model: str, owner: Mapping[str, object], state: State) -> None:
    """Write an ``.npz`` (no pickle), atomically. ``owner`` says what has to be the same to continue from it."""
    header = {"kind": "state", "version": VERSION, "model": model, **owner}
    save_arrays(path, header, state, mode=0o600)  # it tells what a camera saw; a monitor's holds a frame


def load_state(
    path: str | os.PathLike[str], owner: Mapping[str, object], check_specs: Callable[[Mapping[str, AnyArray]], None]
) -> State:
    """Read a state of ``owner``; anything else is refused before its arrays are read."""

    def check(header: Mapping[str, object], specs: Mapping[str, ArraySpec]) -> None:
        _check_owner(os.fspath(path), header, owner)
        check_specs(specs)

    return load_arrays(path, "state", check)[1]


def _check_owner(path: str, header: Mapping[str, object], owner: Mapping[str, object]) -> None:
    if header.get("version") != VERSION:
        what = f"{path} is a state of version {header.get('version')!r}, but this fozo reads version {VERSION}"
        raise FozoError(f"{what}; remove it, and adapt from the start")
    for key in [*owner, "inner"]:
        theirs, ours = header.get(key), owner.get(key)
        if theirs == ours:
            continue
        if isinstance(theirs, dict) and isinstance(ours, dict):
            key = next((name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)), key)
            theirs, ours = theirs.get(key), ours.get(key)
        saved = f"{path} was saved with {key}={theirs!r} ({header.get('model')})"
        raise FozoError(f"{saved}, but this run has {ours!r}; restore it into a method made the same way")
