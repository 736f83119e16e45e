"""Files that are whole or not there, and files that nobody has reason to trust.

``files`` opens and writes: regular files only, complete or not at all, nothing left behind by a kill. ``arrays`` reads
and writes named arrays without pickles, ``logs`` JSON and append-only logs, ``facts`` turns plain values into the
dataclass that they should be. Whatever a file holds, its reader gives a valid object or a
:class:`~fozo.errors.FozoError`, and what is in its headers is bounded before anything is allocated for it;
``python -m tests.fuzz`` tries that.
"""

from fozo.io.arrays import Form, load_arrays, read_form, read_npz, save_arrays
from fozo.io.facts import as_dataclass
from fozo.io.files import (
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
)
from fozo.io.logs import MAX_LINE, Log, decode, encode, parse_json, read_json, read_log, write_json

__all__ = [
    "MAX_LINE",
    "Form",
    "Log",
    "as_dataclass",
    "atomic_write",
    "check_output",
    "decode",
    "disk_errors",
    "encode",
    "load_arrays",
    "locked",
    "open_output",
    "open_regular",
    "parse_json",
    "read_bytes",
    "read_form",
    "read_json",
    "read_log",
    "read_npz",
    "read_text",
    "remove_temporary_files",
    "save_arrays",
    "temporary_folder",
    "write_json",
]
