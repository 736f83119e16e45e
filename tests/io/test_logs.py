"""Logs, locks and JSON files of the benchmark, at the moments when things go wrong."""

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from fozo.errors import FozoError
from fozo.io import Log, decode, encode, locked, read_json
from tests.refusals import refuses


def test_lines_are_checked(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    for number in range(3):
        log.append({"number": number})
    log.close()
    whole = (tmp_path / "log").read_bytes()
    for cut in range(len(whole)):  # killed after any byte: all whole lines stay, the torn one goes
        (tmp_path / "cut").write_bytes(whole[:cut])
        assert len(Log(tmp_path / "cut")) == whole[:cut].count(b"\n")
        assert (tmp_path / "cut").read_bytes() == whole[: whole[:cut].rfind(b"\n") + 1]
    damaged = bytearray(whole)
    damaged[12] ^= 1
    (tmp_path / "bad").write_bytes(damaged)
    refuses("damaged in line 1", Log, tmp_path / "bad")
    assert decode(encode({"a": [1, 2.5, None]})) == {"a": [1, 2.5, None]}


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path / "log")
    log.append({"a": 1})
    before = (tmp_path / "log").read_bytes()
    file = log._file

    class Full:
        def write(self, data: bytes) -> int:
            return file.write(data[:5])  # what a nearly full disk does: part of it

        def fileno(self) -> int:
            return file.fileno()

    monkeypatch.setattr(log, "_file", Full())
    refuses("no space left.*free some space", log.append, {"b": 2})
    assert (tmp_path / "log").read_bytes() == before and len(log) == 1
    monkeypatch.undo()
    log.append({"b": 2})
    log.close()
    assert len(Log(tmp_path / "log")) == 2


def test_one_process_at_a_time(tmp_path: Path) -> None:
    refused = pytest.raises(FozoError, match="another process is working in")
    with locked(tmp_path / "run"), refused, locked(tmp_path / "run"):
        pass
    with locked(tmp_path / "run"):
        pass


def test_a_lock_that_a_dying_process_still_holds_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as dying:
        dying.enter_context(locked(tmp_path / "run"))
        monkeypatch.setattr(time, "sleep", lambda _: dying.close())
        with locked(tmp_path / "run"):
            pass


def test_unreadable_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.json").write_text("[]")
    for name in ("a.json", "b.json", "c.json"):
        refuses(name, read_json, tmp_path / name)
