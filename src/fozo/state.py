"""State as a value: a frozen dataclass of arrays, numbers, texts and other states.

A state is never written into: a step makes a new one. So an older state is an undo, a state kept aside is a checkpoint,
and a step that raises has changed nothing. Everything that has to be kept, sent or undone goes through four functions:

    save(path, state, owner)              one file, atomically
    load(path, like, owner)               the same again; ``like`` says what may be read
    diff(old, new) -> Changes             what a step changed, as plain JSON values
    patch(old, changes) -> State          the step again

A file is in the format of safetensors (no pickle): 8 bytes of length, a JSON header, the bytes of all arrays. Nothing
in it is compressed, so reading one takes no more memory than twice its length.
"""

from __future__ import annotations

import base64
import collections.abc
import json
import math
import os
import zlib
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, fields
from dataclasses import field as dataclass_field
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from fozo.errors import FozoError
from fozo.io import atomic_write, read_bytes

if TYPE_CHECKING:
    from typing_extensions import Self

AnyArray: TypeAlias = npt.NDArray[np.generic]
Scalar: TypeAlias = "bool | int | float | str | None"
Leaf: TypeAlias = "AnyArray | Scalar"
Changes: TypeAlias = "dict[str, Any]"

KIND = "state"
VERSION = 5
MAX_FILE = 1 << 30  # bytes
MAX_COUNT = 1 << 53  # whole numbers that a float holds exactly
MAX_MAGNITUDE = 1e30  # adaptation leads to no number near it; products of two larger ones would not be finite
REMOVED = "-"  # among changes: the paths that are gone
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "|u1", "BOOL": "|b1"}
DTYPE_NAMES = {np.dtype(code): name for name, code in DTYPES.items()}  # the names are safetensors'


@dataclass(frozen=True)
class State:
    """What adaptation changes. Subclasses are frozen dataclasses; ``__post_init__`` refuses values that no run has.

    Examples:
        >>> adapter = fozo.adapter(model, statistics)
        >>> before = adapter.state()
        >>> logits = adapter(batch)
        >>> adapter.load_state(before)  # as if the batch had not been
    """

    def __getstate__(self) -> dict[str, Any]:
        """Leave caches out of copies and pickles."""
        caches = {field.name for field in fields(self) if "derived" in field.metadata}
        return {name: value for name, value in self.__dict__.items() if name not in caches}


S = TypeVar("S", bound=State)


def ragged(of: str, **options: Any) -> Any:
    """A field whose array may have any number of rows; within a state, fields of equal ``of`` have equally many."""
    return dataclass_field(metadata={"rows": of}, **options)


def derived(default: object = None) -> Any:
    """A field that follows from the others (a cache): it travels with the value, and is never written anywhere."""
    return dataclass_field(default=default, compare=False, repr=False, metadata={"derived": True})


# The tree and its leaves.


def leaves(state: State, prefix: str = "") -> Iterator[tuple[str, Leaf]]:
    """Name all arrays, numbers and texts of a state by their path: ``spsa.point``."""
    for field in fields(state):
        if "derived" not in field.metadata:
            yield from _leaves_of(getattr(state, field.name), prefix + field.name)


def _leaves_of(value: Any, path: str) -> Iterator[tuple[str, Leaf]]:
    if isinstance(value, State):
        yield from leaves(value, f"{path}.")
    elif isinstance(value, Mapping):
        yield f"{path}.names", " ".join(value)
        for name, item in value.items():
            yield f"{path}.{name}", item
    elif isinstance(value, tuple):
        yield f"{path}.length", len(value)
        for index, item in enumerate(value):
            yield from _leaves_of(item, f"{path}.{index}")
    else:
        yield path, value


def same(one: State, other: State) -> bool:
    """Whether two states are equal, bit for bit."""
    ones = dict(leaves(one))
    others = dict(leaves(other))
    return ones.keys() == others.keys() and all(_same_leaf(leaf, others[path]) for path, leaf in ones.items())


def _same_leaf(one: Leaf, other: Leaf) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and _same_bytes(one, other)
    return type(one) is type(other) and one == other


def seal(state: State) -> None:
    """Make all arrays of a state read-only, so that who writes into one is told."""
    for _, leaf in leaves(state):
        if isinstance(leaf, np.ndarray):
            leaf.flags.writeable = False


def rebuild(
    like: S | type[S],
    values: Mapping[str, Leaf],
    what: str = "the state",
    advice: str = "give one that was saved whole",
) -> S:
    """Make a state of leaves; refuse names, types and shapes that ``like`` could not have.

    ``like`` is a state of the wanted shapes. Where these are not known yet (statistics of a model) it is the class,
    whose ``__post_init__`` compares the shapes with each other.
    """
    unread = dict(values)
    kind = like if isinstance(like, type) else type(like)
    template = None if isinstance(like, type) else like
    try:
        state = _rebuild_state(kind, template, unread, "")
        if unread:
            raise ValueError(f"it holds {min(unread)!r}, which it should not")
    except Exception as error:  # damaged values raise nearly anything
        raise FozoError(f"{what} is damaged or of something else: {error}; {advice}") from error
    return state


def _rebuild_state(kind: type[S], like: S | None, unread: dict[str, Leaf], prefix: str) -> S:
    arguments: dict[str, Any] = {}
    counts: dict[str, int] = {}  # rows of the fields that have equally many
    hints = _hints(cast("Hashable", kind))
    for field in fields(kind):
        if "derived" in field.metadata:
            continue
        template = None if like is None else getattr(like, field.name)
        path = prefix + field.name
        if like is None and field.default is None and not any(name.startswith(path) for name in unread):
            continue  # a measured file from before the field was there
        if "rows" in field.metadata:
            template = _with_rows(template, unread.get(path), counts, field.metadata["rows"])
        arguments[field.name] = _rebuild_value(hints[field.name], template, unread, path)
    return kind(**arguments)


def _with_rows(template: Any, value: object, counts: dict[str, int], of: str) -> Any:
    """The template with as many rows as the first of the fields that have equally many."""
    if isinstance(value, np.ndarray) and value.ndim and template is not None:
        count = counts.setdefault(of, len(value))
        return np.broadcast_to(np.zeros((), template.dtype), (count, *template.shape[1:]))
    return template


def _rebuild_value(hint: Any, template: Any, unread: dict[str, Leaf], path: str) -> Any:
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if NoneType in options and unread.get(path, ...) is None:
        return unread.pop(path)
    kinds = [kind for kind in options if kind is not NoneType]
    if isinstance(template, State):
        kinds = [type(template)]
    kind = kinds[0]
    if isinstance(kind, type) and issubclass(kind, State):
        return _rebuild_state(kind, template, unread, f"{path}.")
    if get_origin(kind) is tuple:
        return _rebuild_tuple(get_args(kind), unread, path)
    if get_origin(kind) is collections.abc.Mapping:
        return _rebuild_mapping(get_args(kind)[1], template or {}, unread, path)
    value = _take(unread, path)
    if isinstance(template, np.ndarray):
        _check_array(value, template.dtype, template.shape, path)
    elif get_origin(kind) is np.ndarray:
        _check_array(value, _dtype_of(kind), getattr(value, "shape", ()), path)
    else:
        _check_scalar(kinds, value, path)
    return value


def _rebuild_tuple(hints: tuple[Any, ...], unread: dict[str, Leaf], path: str) -> tuple[Any, ...]:
    length = _take(unread, f"{path}.length")
    _check_scalar([int], length, path)
    any_length = hints[-1] is Ellipsis
    if not any_length and length != len(hints):
        raise ValueError(f"{path!r} has {length} parts, not {len(hints)}")
    items = []
    for index in range(length):  # a forged length ends at the first part that is missing
        hint = hints[0] if any_length else hints[index]
        items.append(_rebuild_value(hint, None, unread, f"{path}.{index}"))
    return tuple(items)


def _rebuild_mapping(hint: Any, like: Mapping[str, Any], unread: dict[str, Leaf], path: str) -> dict[str, Any]:
    names = _take(unread, f"{path}.names")
    _check_scalar([str], names, path)
    return {name: _rebuild_value(hint, like.get(name), unread, f"{path}.{name}") for name in names.split()}


def _take(unread: dict[str, Leaf], path: str) -> Any:
    if path not in unread:
        raise ValueError(f"it lacks {path!r}")
    return unread.pop(path)


def _dtype_of(hint: Any) -> np.dtype[Any] | None:
    """The precision that a type hint asks for; none where any float will do."""
    scalar = get_args(get_args(hint)[1])[0]
    abstract = scalar in (np.generic, np.floating, np.integer)
    return None if abstract else np.dtype(scalar)


def _check_array(value: Any, dtype: np.dtype[Any] | None, shape: tuple[int, ...], path: str) -> None:
    """Refuse another precision or shape, and numbers that are not finite."""
    if not isinstance(value, np.ndarray) or value.shape != shape or (dtype is not None and value.dtype != dtype):
        is_array = isinstance(value, np.ndarray)
        what = f"{value.dtype} of shape {list(value.shape)}" if is_array else "not an array"
        wanted = f"{dtype or 'an array'} of shape {list(shape)}"
        raise ValueError(f"{path!r} is {what}, where {wanted} is needed")
    if value.dtype.kind == "f" and value.size:
        smallest = float(value.min())  # NaN if any is
        largest = float(value.max())
        if not (smallest >= -MAX_MAGNITUDE and largest <= MAX_MAGNITUDE):
            raise ValueError(f"{path!r} is not finite")


def _check_scalar(kinds: list[Any], value: Any, path: str) -> None:
    if type(value) not in kinds:
        raise ValueError(f"{path!r} is {value!r:.40}, which has the wrong type")
    if type(value) is float and not abs(value) <= MAX_MAGNITUDE:
        raise ValueError(f"{path!r} is {value}, which is not finite")
    if type(value) is int and not 0 <= value <= MAX_COUNT:  # whole numbers are counts
        raise ValueError(f"{path!r} is {value!r:.40}, but counts start at 0 and end at 2**53")


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind)


# Files.


def save(
    path: str | os.PathLike[str], state: State, owner: Mapping[str, object], *, kind: str = KIND, mode: int = 0o600
) -> None:
    """Write a state to one file, atomically. ``owner`` says what has to be the same for it to be continued."""
    tensors: dict[str, object] = {}
    scalars: dict[str, object] = {}
    chunks: list[bytes] = []
    position = 0
    for name, leaf in leaves(state):
        if not isinstance(leaf, np.ndarray):
            scalars[name] = leaf
            continue
        data = leaf.tobytes()
        span = [position, position + len(data)]
        tensors[name] = {"dtype": DTYPE_NAMES[leaf.dtype], "shape": list(leaf.shape), "data_offsets": span}
        chunks.append(data)
        position += len(data)
    about = json.dumps({"kind": kind, "version": VERSION, "owner": owner, "values": scalars}, allow_nan=False)
    checksum = str(_checksum(about, tensors, chunks))
    header = json.dumps({"__metadata__": {"fozo": about, "crc32": checksum}, **tensors}).encode()
    with atomic_write(path, mode) as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for data in chunks:
            file.write(data)


def load(
    path: str | os.PathLike[str],
    like: S | type[S],
    owner: Mapping[str, object],
    *,
    kind: str = KIND,
    advice: str = "remove it, and adapt from the start",
) -> S:
    """Read what :func:`save` wrote; anything else is refused in one sentence."""
    name = os.fspath(path)
    saved_owner, values = read_state(path, kind=kind, advice=advice)
    check_owner(name, saved_owner, owner)
    return rebuild(like, values, f"the {kind} in {name}", advice)


def read_state(
    path: str | os.PathLike[str], *, kind: str = KIND, advice: str = "remove it, and adapt from the start"
) -> tuple[dict[str, Any], dict[str, Leaf]]:
    """Read the owner and the leaves of a file, for who decides himself what to make of them."""
    name = os.fspath(path)
    data = read_bytes(path, MAX_FILE)
    try:
        about, arrays = _decode(data)
    except Exception as error:  # damaged bytes raise nearly anything
        what = f"{name} is not a whole file of this version of fozo ({type(error).__name__}: {error})"
        raise FozoError(f"{what}; {advice}") from error
    if about["kind"] != kind:
        raise FozoError(f"{name} holds {about['kind']!r:.40} where {kind!r} is needed; give the right file")
    return about["owner"], {**about["values"], **arrays}


def _decode(data: bytes) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    header_end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:header_end])
    metadata = header.pop("__metadata__")
    body = data[header_end:]
    if str(_checksum(metadata["fozo"], header, [body])) != metadata["crc32"]:
        raise ValueError("its checksum differs")
    about = json.loads(metadata["fozo"])
    if about["version"] != VERSION:
        raise ValueError(f"it is of version {about['version']!r:.40}")
    kinds = {"kind": str, "owner": dict, "values": dict}
    if not all(isinstance(about[name], kind) for name, kind in kinds.items()):
        raise ValueError("its header is not one of fozo's")
    return about, {name: _cut(body, entry) for name, entry in header.items()}


def _checksum(about: str, tensors: Mapping[str, object], chunks: list[bytes]) -> int:
    checksum = zlib.crc32(f"{about} {json.dumps(tensors)}".encode())
    for data in chunks:
        checksum = zlib.crc32(data, checksum)
    return checksum


def _cut(body: bytes, entry: Mapping[str, Any]) -> AnyArray:
    start, stop = entry["data_offsets"]
    dtype = np.dtype(DTYPES[entry["dtype"]])
    shape = entry["shape"]
    fits = min(shape, default=0) >= 0 and math.prod(shape) * dtype.itemsize == stop - start
    if not (fits and 0 <= start <= stop <= len(body)):
        raise ValueError(f"an array of shape {shape!r:.40} is not where the header says")
    flat: AnyArray = np.frombuffer(body[start:stop], dtype=dtype)
    array: AnyArray = flat.reshape(shape)
    return array


def check_owner(name: str, saved: Mapping[str, object], ours: Mapping[str, object]) -> None:
    """Refuse what another method, model or config has saved, naming the first difference."""
    if saved == ours:
        return
    saved_values = dict(_flat(saved))
    our_values = dict(_flat(ours))
    for key in {**our_values, **saved_values}:
        saved_value = saved_values.get(key)
        our_value = our_values.get(key)
        if saved_value != our_value:
            raise FozoError(
                f"{name} was saved with {key}={saved_value!r:.200}, but this run has {our_value!r:.200}; "
                f"restore it into a method made the same way"
            )


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


@dataclass(frozen=True)
class Measured(State):
    """A state that is a file of its own: statistics of clean images, a monitor's reference."""

    KIND: ClassVar[str]
    ADVICE: ClassVar[str] = "collect them again"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to one file, atomically."""
        save(path, self, {}, kind=self.KIND, mode=0o666)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what :meth:`save` wrote; what no clean images can have given is refused here, not in use."""
        from fozo import archives

        if archives.is_archive(path):  # of fozo 0.2
            values = archives.read(path, cls.KIND, cls.ADVICE)
            return rebuild(cls, values, f"the {cls.KIND} in {os.fspath(path)}", cls.ADVICE)
        return load(path, cls, {}, kind=cls.KIND, advice=cls.ADVICE)


# What a step changed.


def diff(old: State, new: State) -> Changes:
    """Return what is different in ``new``, by path: numbers as they are, arrays as the rows that changed."""
    before = dict(leaves(old))
    after = dict(leaves(new))
    changes: Changes = {}
    for path, leaf in after.items():
        known = before.get(path, ...)
        if leaf is known:
            continue
        if not isinstance(leaf, np.ndarray):
            if leaf != known:
                changes[path] = leaf
        elif not isinstance(known, np.ndarray):
            nothing = np.zeros((0, *leaf.shape[1:]), leaf.dtype)
            changes[path] = {"dtype": DTYPE_NAMES[leaf.dtype], **_changed_rows(nothing, leaf)}
        elif not _same_bytes(leaf, known):
            changes[path] = _changed_rows(known, leaf)
    removed = before.keys() - after.keys()  # of a tuple that has become shorter
    return {**changes, REMOVED: sorted(removed)} if removed else changes


def patch(old: S, changes: Changes) -> S:
    """Return the state that :func:`diff` was given as ``new``."""
    removed = changes.get(REMOVED, [])
    values = {path: leaf for path, leaf in leaves(old) if path not in removed}
    for path, change in changes.items():
        if path == REMOVED:
            continue
        known = values.get(path)
        if isinstance(change, dict) and "dtype" in change:  # an array that was not there before
            known = np.zeros((0, *change["shape"][1:]), DTYPES[change["dtype"]])
        values[path] = _patched_rows(known, change) if isinstance(known, np.ndarray) else change
    return rebuild(old, values)


def _same_bytes(one: AnyArray, other: AnyArray) -> bool:
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def _changed_rows(old: AnyArray, new: AnyArray) -> Changes:
    """The rows of ``new`` that are not in ``old``; of a window that moved on, only those that came in."""
    old_rows = np.atleast_1d(old)
    new_rows = np.atleast_1d(new)
    dropped = _rows_dropped(old_rows, new_rows)
    kept = old_rows[dropped:][: len(new_rows)]
    is_new = [index >= len(kept) or not _same_bytes(row, kept[index]) for index, row in enumerate(new_rows)]
    changed = np.flatnonzero(is_new).tolist()
    data = base64.b64encode(zlib.compress(new_rows[changed].tobytes(), 1)).decode()
    return {"shape": list(new.shape), "dropped": dropped, "at": changed, "data": data}


def _rows_dropped(old: AnyArray, new: AnyArray) -> int:
    """How many of the oldest rows a sliding window has lost; 0 for an array that is none."""
    for dropped in range(len(old) if len(new) else 0):
        kept = old[dropped : dropped + len(new)]
        if _same_bytes(kept[0], new[0]) and _same_bytes(kept, new[: len(kept)]):
            return dropped
    return 0


def _patched_rows(old: AnyArray, change: Changes) -> AnyArray:
    shape = tuple(change["shape"])
    changed = change["at"]
    kept = np.atleast_1d(old)[change["dropped"] :][: shape[0] if shape else 1]
    if shape[1:] != old.shape[1:] or (shape and shape[0] > len(kept) + len(changed)):
        what = f"it changes {len(changed)} rows of {list(old.shape)} to {list(shape)}"
        raise FozoError(f"{what}; restore it from a backup")
    rows = np.zeros(shape or (1,), dtype=old.dtype)
    rows[: len(kept)] = kept
    replaced = rows[changed]
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(base64.b64decode(change["data"], validate=True), replaced.nbytes + 1)
    rows[changed] = np.frombuffer(data, dtype=old.dtype).reshape(replaced.shape)
    return rows.reshape(shape)


__all__ = [
    "Changes", "Leaf", "Measured", "State", "check_owner", "derived", "diff", "leaves", "load", "patch", "ragged",
    "read_state", "rebuild", "same", "save", "seal",
]  # fmt: skip
