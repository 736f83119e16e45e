"""Files that are written whole or not at all, and read without trusting them.

``files`` opens and writes: regular files only, complete or not at all, nothing left behind by a kill. ``arrays`` reads
named arrays without pickles, ``logs`` JSON, TOML and append-only logs, and checks plain
values against a dataclass. Whatever a file holds, its reader gives a valid object or a
:class:`~fozo.errors.FozoError`, and sizes in its headers are bounded before anything is allocated;
``python -m tests.fuzz`` tries that.
"""

from fozo.io.arrays import load_arrays, open_npz
from fozo.io.files import (
    FolderInUse,
    atomic_write,
    check_output,
    disk_errors,
    locked,
    open_output,
    open_regular,
    read_bytes,
    read_text,
    remove_temporary_files,
    temporary_folder,
    unreadable,
)
from fozo.io.logs import (
    MAX_LINE,
    Log,
    as_dataclass,
    decode,
    encode,
    parse_json,
    read_json,
    read_log,
    read_toml,
    write_json,
)

__all__ = [
    "MAX_LINE", "FolderInUse", "Log", "as_dataclass", "atomic_write", "check_output", "decode", "disk_errors",
    "encode", "load_arrays", "locked", "open_npz", "open_output", "open_regular",
    "parse_json", "read_bytes", "read_json", "read_log", "read_text", "read_toml",
    "remove_temporary_files", "temporary_folder", "unreadable", "write_json",
]  # fmt: skip
