"""JSON and TOML files, their values as dataclasses (every field is checked), and logs that survive a kill."""

import dataclasses
import difflib
import io
import json
import math
import os
import re
import sys
import types
import typing
import zlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, TypeVar

from fozo.errors import FozoError
from fozo.io import files

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_JSON = 16 << 20  # bytes of a JSON file; a recipe, the largest that fozo writes, has some hundred thousand
MAX_LINE = 16 << 20  # bytes of a line of a log
CHECKSUM = b'"crc32":'
OLD_LINE = re.compile(rb"([0-9a-f]{8}) (\{.*)\n")  # of fozo 0.2: the checksum, and the object
D = TypeVar("D")
MAX_INTEGER = 2**63 - 1
WORDS = {str: "text", int: "a whole number", float: "a finite number", bool: "true or false", tuple: "a list"}


def parse_json(text: bytes | str) -> dict[str, Any]:
    """Read a JSON object; raises ValueError for anything else, including NaN and too deep nesting."""
    try:
        payload = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(payload, dict):
        raise ValueError("it is not a JSON object")
    return payload


def _refuse_constant(text: str) -> float:
    raise ValueError(f"it holds {text}, which is not JSON")


def write_json(path: Path, payload: Mapping[str, object], mode: int = 0o666) -> None:
    text = json.dumps(payload, indent=1, allow_nan=False) + "\n"  # unsorted: domains keep the order of the stream
    with files.disk_errors(path), files.atomic_write(path, mode) as stream:
        stream.write(text.encode())


def read_json(path: Path, advice: str = "remove its folder and run it again") -> dict[str, Any]:
    """Read a JSON object; ``advice`` ends the error where the file is damaged."""
    with files.unreadable(f"{path} is not readable JSON", advice):
        return parse_json(files.read_bytes(path, MAX_JSON))


def read_toml(path: Path) -> dict[str, Any]:
    with files.unreadable(f"{path} is not readable TOML", "correct it"):
        payload: dict[str, Any] = tomllib.loads(files.read_text(path))
        return payload


class Log:
    """An append-only file of checksummed lines that survives a kill at any moment.

    A line is a JSON object, and its last value ``crc32`` is the checksum of what is before that. Each line is handed to
    the operating system in one write, so SIGKILL cannot lose it; ``sync`` protects all lines from a power cut too. A
    torn last line is cut off when the file is opened; damage before that is an error. A second writer is refused while
    it is open.
    """

    def __init__(self, path: Path) -> None:
        """Open or create it, cutting off a torn last line."""
        self.path = path
        with files.disk_errors(path):
            descriptor = files.open_descriptor(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, "write")
        self._file = io.FileIO(descriptor, "r+")
        try:
            files.lock_file(descriptor, path)
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                self._ends = [0, *(end for _, end in _lines(file, path))]
            self.truncate(len(self))
        except BaseException:
            self._file.close()
            raise

    def __len__(self) -> int:
        return len(self._ends) - 1

    def truncate(self, lines: int) -> None:
        del self._ends[lines + 1 :]
        with files.disk_errors(self.path):
            os.ftruncate(self._file.fileno(), self._ends[-1])

    def append(self, payload: Mapping[str, object]) -> None:
        """Write one line, or, where the disk is full, none."""
        line = encode(payload)
        if len(line) > MAX_LINE:
            raise FozoError(f"a line of {len(line) >> 20} MiB is too long for {self.path}; give smaller batches")
        self._ends.append(files.append_whole(self._file, self.path, self._ends[-1], line))

    def sync(self) -> None:
        with files.disk_errors(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def encode(payload: Mapping[str, object]) -> bytes:
    text = json.dumps(payload, separators=(",", ":"), allow_nan=False).encode().removesuffix(b"}")
    head = text + b"," if payload else text
    return b"%s%s%d}\n" % (head, CHECKSUM, zlib.crc32(head))


def decode(line: bytes) -> dict[str, Any] | None:
    """Read a line; ``None`` if it is torn or damaged."""
    old = OLD_LINE.fullmatch(line)
    head, _, check = line.rpartition(CHECKSUM)
    is_whole = int(old[1], 16) == zlib.crc32(old[2]) if old else check == b"%d}\n" % zlib.crc32(head)
    if not is_whole:
        return None
    try:
        payload = parse_json(old[2] if old else line)
    except ValueError:
        return None
    payload.pop("crc32", None)
    return payload


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """Read the lines one by one, without a torn last one."""
    with files.open_regular(path) as file:
        for payload, _ in _lines(file, path):
            yield payload


def _lines(file: IO[bytes], path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    length = os.fstat(file.fileno()).st_size
    end = 0
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), start=1):
        end += len(line)
        payload = decode(line)
        if payload is not None:
            yield payload, end
        elif end < length or line.endswith(b"\n"):  # a torn line lacks its end
            raise FozoError(f"{path} is damaged in line {number}; restore it from a backup")


def as_dataclass(kind: type[D], payload: object, what: str, *, advice: str = "write it again", **fixed: Any) -> D:  # noqa: ANN401
    """Make a dataclass of plain values, nested dataclasses, tuples, mappings and unions included.

    Ranges are checked by the dataclass's ``__post_init__``.

    Args:
        kind: the dataclass; its fields say what is taken.
        payload: a table of values by field; fields with a default may be left out.
        what: what to call it in an error: file and table, such as ``the model fashion of serve.toml``.
        advice: the end of every error: what to do about it.
        fixed: fields that the caller sets as they are, and the file may not.
    """
    if not isinstance(payload, Mapping):
        raise FozoError(f"{what} should be a table of values, not {_brief(payload)}; {advice}")
    hints = _hints(typing.cast("Hashable", kind))  # every class is; mypy does not see it
    fields = [field for field in dataclasses.fields(kind) if field.name not in fixed]  # type: ignore[arg-type]
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
    return kind(**values, **fixed)


@lru_cache(maxsize=64)
def _hints(kind: Hashable) -> dict[str, Any]:
    """Types of a class's fields; evaluating them takes longer than checking a line of a log."""
    return typing.get_type_hints(kind)


def _value(hint: Any, value: Any, what: str, advice: str) -> Any:  # noqa: ANN401
    origin = typing.get_origin(hint)
    inner = typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in inner:
            return None
        for option in inner:
            with suppress(FozoError):
                return _value(option, value, what, advice)
    if dataclasses.is_dataclass(hint):
        return as_dataclass(typing.cast("type[Any]", hint), value, what, advice=advice)
    if origin is tuple and isinstance(value, (list, tuple)):
        if inner[-1] is Ellipsis and _numbers(inner[0], value):
            return tuple(value)
        hints = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
        if len(hints) == len(value):
            return tuple(_value(item_hint, item, what, advice) for item_hint, item in zip(hints, value, strict=True))
    if origin in (dict, Mapping) and isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: _value(inner[1], item, f"{name} in {what}", advice) for name, item in value.items()}
    if origin is typing.Literal and value in inner and type(value) is str:
        return value
    if hint is float and type(value) is float and math.isfinite(value):
        return value
    if hint in (int, float) and type(value) is int and abs(value) <= MAX_INTEGER:
        return value
    if hint in (str, bool) and type(value) is hint:
        return value
    raise FozoError(f"{what} is {_brief(value)}, where {_words(hint)} is needed; {advice}")


def _numbers(hint: Any, values: Sequence[Any]) -> bool:  # noqa: ANN401
    """Whether these are numbers as ``_value`` takes them, one by one: a line of a log may have thousands."""
    kinds = set(map(type, values))
    if hint is int and kinds == {int}:
        return all(abs(value) <= MAX_INTEGER for value in values)
    return hint is float and kinds == {float} and all(map(math.isfinite, values))


def _words(hint: Any) -> str:  # noqa: ANN401
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(_words(option) for option in typing.get_args(hint) if option is not type(None))
    if typing.get_origin(hint) is typing.Literal:
        return f"one of {', '.join(typing.get_args(hint))}"
    return WORDS.get(typing.get_origin(hint) or hint, "a table")


def _brief(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) <= MAX_INTEGER else "a very large number"
    return text if len(text) <= 60 else f"{text[:60]}..."
