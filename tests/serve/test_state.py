"""The files of a camera: what cannot be read now is kept, what is wrong is set aside, and no place is taken in vain."""

import errno
import gc
import os
import re
import shutil
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import fozo
from fozo.errors import FozoError
from fozo.io import read_bytes
from fozo.serve.app import InferenceServer
from fozo.serve.config import ServeConfig
from fozo.serve.limits import Refused
from fozo.serve.store import STATE_FILE, CameraInUse, StateFolder, folder_name
from fozo.state import State, read_state, save
from tests.refusals import refuses
from tests.serve.conftest import NAME, config, foggy, frames, running, until
from tests.serve.test_cameras import close, header, logits, pool, post, send
from tests.serve.test_limits import FRAME, PATH, PNG
from tests.serve.test_server import new_adapter

GARBAGE = np.zeros((1, 7), np.float32)
SHORTAGES = ("EMFILE", "ENFILE", "EIO", "EACCES", "ENOSPC", "EINTR", "ENOMEM", "ESTALE")


def folder(state: Path, camera: str = "cam") -> Path:
    (path,) = state.glob(f"*/{folder_name(camera)}")
    return path


def contents(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir()}


@pytest.mark.parametrize("file", [STATE_FILE, "read"])
def test_what_cannot_be_read_now_is_not_damaged(
    tmp_path: Path, reference: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """503, and nothing is touched, also where ``glob`` hides the shortage as in Python 3.12."""
    settings, real, real_read = config(tmp_path, reference), os.open, read_bytes
    with pool(settings) as submit:
        logits(submit(frames(5), id="first"))
    before, shortage = contents(folder(tmp_path)), 0

    def refused(path: Any, *given: Any, **named: Any) -> int:
        if Path(path).name == file:
            raise OSError(shortage, os.strerror(shortage), str(path))
        return real(path, *given, **named)

    def unread(path: Any, limit: int) -> bytes:
        if file == "read":
            raise FozoError("cannot read it") from OSError(shortage, os.strerror(shortage))
        return real_read(path, limit)

    with pool(settings) as submit:
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", refused)
            patch.setattr("fozo.state.read_bytes", unread)
            patch.setattr(Path, "glob", lambda *_: iter(()))
            for name in SHORTAGES:
                shortage = getattr(errno, name)
                with pytest.raises(Refused) as caught:
                    logits(submit(frames(1, 5)))
                assert caught.value.code == 503 and caught.value.retry, name
        assert contents(folder(tmp_path)) == before and not list(tmp_path.rglob("*.refused"))
        logits(submit(frames(1, 5)))
    assert header(tmp_path, "cam")["images"] == 6


@dataclass(frozen=True)
class Forged(State):
    """A file's leaves, whatever they are."""


def forged(change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Callable[[Path], None]:
    """Change the owner and the leaves of a camera's file, and its checksum with them."""

    def forge(path: Path) -> None:
        owner, values = read_state(path / STATE_FILE, kind="camera")
        change(owner, values)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fozo.state.leaves", lambda state: iter(values.items()))
            save(path / STATE_FILE, Forged(), owner, kind="camera")

    return forge


OUTPUT = "past.responses.0.outputs.0."


def leaf(name: str, value: Any) -> Callable[[Path], None]:
    return forged(lambda owner, values: values.update({name: value}))


def swapped(path: Path) -> None:
    shutil.copyfile(folder(path.parent.parent, "other") / STATE_FILE, path / STATE_FILE)


def half(path: Path) -> None:
    data = (path / STATE_FILE).read_bytes()
    (path / STATE_FILE).write_bytes(data[: len(data) // 2])


def of_version_02(path: Path) -> None:
    (path / STATE_FILE).unlink()
    (path / "camera.json").write_text("{}")


WRONG: dict[str, Callable[[Path], None]] = {
    "objects": leaf(f"{OUTPUT}dtype", "O"),
    "fewer bytes": leaf(f"{OUTPUT}data", np.zeros(3, np.uint8)),
    "no logits": leaf("past.responses.0.outputs.length", 0),
    "400 digits": leaf("past.responses.0.images", 10**400),
    "a negative count": leaf("past.responses.0.images", -1),
    "no images": leaf("past.responses.0.images", 0),
    "an endless number": leaf("past.responses.0.drift.1", 1e300),
    "three numbers of drift": leaf("past.responses.0.drift.length", 3),
    "a text for accuracy": leaf("past.responses.0.accuracy.0", "abc"),
    "images": leaf("past.images", 10**30),
    "a monitor that has seen fewer images": leaf("method.watched.images", 1),
    "no monitor": forged(lambda owner, values: values.pop("method.watched.pairs")),
    "another model": forged(lambda owner, values: owner["method"].update(fingerprint="x")),
    "another camera's state": swapped,
    "a state of fozo 0.2": of_version_02,
    "half a file": half,
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_set_aside(tmp_path: Path, reference: Path, what: str) -> None:
    with pool(config(tmp_path, reference)) as submit:
        first = logits(submit(frames(4), id="first"))
        logits(submit(foggy(frames(4)), "other", id="first"))
    WRONG[what](folder(tmp_path))
    with pool(config(tmp_path, reference)) as submit:
        close(logits(submit(frames(4), id="again")), first)
        logits(submit(foggy(frames(4)), "other"))
    assert header(tmp_path, "cam")["images"] == 4 and header(tmp_path, "other")["images"] == 8
    (aside,) = tmp_path.rglob("*.refused")
    assert re.fullmatch(folder_name("cam") + r"\.\d{4}-\d\d-\d\d\.1\.refused", aside.name)


def test_going_wrong_and_back_destroys_nothing(tmp_path: Path) -> None:
    """Another setting is refused at the start; where it is asked for, each state that it sets aside stays."""

    def settings(strength: float, **changes: Any) -> ServeConfig:
        chosen = config(tmp_path, **changes)
        return replace(chosen, models=(replace(chosen.models[0], options={"cls_strength": strength}),))

    with pool(settings(0.4)) as submit:
        logits(submit(frames(5), id="first"))
        logits(submit(frames(4), "other"))
    before = contents(folder(tmp_path))
    with pytest.raises(fozo.FozoError, match=r"2 of 2 cameras .* cannot go on .*--adopt"):
        InferenceServer(settings(0.2))
    assert contents(folder(tmp_path)) == before
    for images, strength in ((1, 0.2), (2, 0.4), (3, 0.2)):
        with running(settings(strength, misfits="adopt")) as (url, server):
            logits(send(server, frames(images)))
            metrics = httpx.get(f"http://{url}/metrics").text
            assert f'fozo_states_set_aside{{model="{NAME}"}} {images}.0' in metrics
    asides = sorted(tmp_path.glob(f"*/{folder_name('cam')}.*.refused"))
    assert [read_state(aside / STATE_FILE, kind="camera")[1]["past.images"] for aside in asides] == [5, 1, 2]
    kept = contents(asides[0])
    assert kept == {name: data for name, data in before.items() if name != ".lock"}
    assert header(tmp_path, "other")["images"] == 4


def test_misfits_are_set_aside_at_once_where_that_is_asked_for(tmp_path: Path, reference: Path) -> None:
    with pool(config(tmp_path)) as submit:
        logits(submit(frames(4), "a"))
        logits(submit(frames(4), "b"))
    other = config(tmp_path, misfits="set-aside")
    InferenceServer(replace(other, models=(replace(other.models[0], method="noadapt"),))).stop()
    assert len(list(tmp_path.rglob("*.refused"))) == 2
    assert not [path for path in tmp_path.rglob(STATE_FILE) if not path.parent.name.endswith(".refused")]


def test_cameras_that_do_not_return_are_forgotten_on_request(tmp_path: Path) -> None:
    with pool(config(tmp_path)) as submit:
        for name in ("old", "new", "awake"):
            logits(submit(frames(4), name))
    long_ago = time.time() - 3 * 86_400
    for name in ("old", "awake"):
        os.utime(folder(tmp_path, name) / STATE_FILE, (long_ago, long_ago))
    with pool(config(tmp_path)) as submit:
        logits(submit(frames(1), "awake"))
        assert folder(tmp_path, "old").exists()
        store = StateFolder(tmp_path, NAME, forget_after=2.0)
        assert store.forget() == 1
        assert not list(tmp_path.glob(f"*/{folder_name('old')}")) and folder(tmp_path, "new").exists()
    assert header(tmp_path, "awake")["images"] == 5


def test_a_server_looks_for_old_cameras_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fozo.serve.pool.FORGET_INTERVAL", 0.0)
    with pool(config(tmp_path, forget_after=2.0, idle=0.2)) as submit:
        for name in ("old", "new"):
            logits(submit(frames(4), name, end=True))
        long_ago = time.time() - 3 * 86_400
        os.utime(folder(tmp_path, "old") / STATE_FILE, (long_ago, long_ago))
        until(lambda: not list(tmp_path.glob(f"*/{folder_name('old')}")))
        assert folder(tmp_path, "new").exists()


class Faults:
    """Fails one call to the system, the n-th of those that save a camera."""

    def __init__(self, patch: pytest.MonkeyPatch, error: BaseException, at: int) -> None:
        self.error = error
        self.left = at
        for name in ("open", "fsync", "replace", "rename", "unlink", "listdir", "stat", "fdopen"):
            patch.setattr(os, name, self.failing(getattr(os, name)))

    @property
    def happened(self) -> bool:
        return self.left < 0

    def failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left == -1:
                raise self.error
            return real(*given, **named)

        return call


@pytest.mark.parametrize("error", [OSError(errno.EIO, "the disk fails"), OSError(errno.ENOSPC, "full"), MemoryError()])
def test_each_call_of_a_save_may_fail(tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """What is in force is whole before and after, nothing is left lying about, and the log says why."""
    with pool(config(tmp_path, save_every=1)) as submit:
        logits(submit(frames(4)))
        path = folder(tmp_path)
        (slot,) = submit.args[0].pool._slots.values()
        failures = 0
        for at in range(1000):
            slot.camera.unsaved = 1
            with pytest.MonkeyPatch.context() as patch:
                faults = Faults(patch, error, at)
                saved = submit.args[0].pool._save(slot.camera)
            if not faults.happened:
                break
            failures += not saved
            assert header(tmp_path, "cam")["images"] == 4
            assert {each.name for each in path.iterdir()} == {".lock", STATE_FILE}
        assert saved and failures > 4 and at < 999
    reason = str(error) if isinstance(error, MemoryError) else str(error.args[1])
    assert all((reason or "MemoryError") in record.getMessage() for record in caplog.records if "saved:" in record.msg)


def test_links_are_not_followed_to_a_camera(tmp_path: Path) -> None:
    with pool(config(tmp_path)) as submit:
        logits(submit(frames(1)))
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (folder(tmp_path).parent / folder_name("link")).symlink_to(elsewhere)
        with pytest.raises(Refused, match="is a link"):
            submit(frames(1), "link").result(30)
    assert not list(elsewhere.iterdir())


def test_a_start_begins_again_although_its_id_was_answered_before(tmp_path: Path) -> None:
    """The second run of a client that counts its requests from 0 in every run."""
    adapter, run = new_adapter(), [frames(1, i) for i in range(5)]
    with pool(config(tmp_path)) as submit:
        first = [logits(submit(part, id=f"{i}", start=not i)) for i, part in enumerate(run)]
        again = [logits(submit(part, id=f"{i}", start=not i)) for i, part in enumerate(run)]
        repeated = logits(submit(run[4], id="4"))  # but this is a repetition
        fresh = [np.asarray(adapter(part)) for part in run]
        started = [logits(submit(run[0], id="0", start=True)) for _ in range(2)]  # and so is a start that is sent twice
    assert header(tmp_path, "cam")["images"] == 1
    for one, two, wanted in zip(first, again, fresh, strict=True):
        np.testing.assert_array_equal(one, two)
        close(one, wanted)
    np.testing.assert_array_equal(repeated, again[4])
    np.testing.assert_array_equal(started[0], started[1])


def test_refused_requests_take_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(config(tmp_path, max_known=2, anonymous="stateless")) as (url, server):
        assert server.pool is not None
        assert [post(url, f"g{i}").status_code for i in range(6)] == [400] * 6
        until(lambda: not server.pool.cameras)
        assert not [path for path in tmp_path.rglob("*") if path.is_dir() and path.parent != tmp_path]
    with pool(config(tmp_path, max_known=2)) as submit:
        for name in "abab":
            logits(submit(frames(1), name, end=name == "a"))
        with pytest.raises(fozo.FozoError, match="shape"):
            submit(GARBAGE, "b").result(30)
        with pytest.raises(Refused, match="knows 2 cameras") as full:
            submit(frames(1), "c").result(30)
        assert not full.value.retry
        shutil.rmtree(folder(tmp_path, "a"))  # as the sentence advises
        monkeypatch.setattr("fozo.serve.store.RECOUNT", 0.0)
        logits(submit(frames(1), "c"))
        with pytest.raises(Refused, match="knows 2 cameras"):
            submit(frames(1), "d").result(30)
    with running(config(tmp_path, max_known=2)) as (url, _):
        refused = post(url, "e")
        assert refused.status_code == 503 and "Retry-After" not in refused.headers


@pytest.mark.parametrize("shared", [False, True])
def test_a_folder_that_cannot_be_locked_is_not_with_another_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    real = os.open

    def refused(path: Any, *given: Any, **named: Any) -> int:
        if Path(path).name == ".lock":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, *given, **named)

    monkeypatch.setattr(os, "open", refused)
    if not shared:
        refuses("Read-only file system", InferenceServer, config(tmp_path))
        return
    with pool(config(tmp_path, shared=True)) as submit:
        with pytest.raises(Refused, match="Read-only file system") as caught:
            submit(frames(1)).result(30)
        assert not isinstance(caught.value.__cause__, CameraInUse)


def test_a_link_as_a_lock_is_called_so(tmp_path: Path) -> None:
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    refuses("symbolic links", InferenceServer, config(tmp_path))


def test_only_its_user_may_read_a_camera_or_hold_its_lock(tmp_path: Path, reference: Path) -> None:
    state = tmp_path / "state"
    before = os.umask(0o022)
    try:
        with pool(config(state, reference, shared=True)) as submit:
            logits(submit(frames(4), id="first"))
        with pool(config(state, reference)):
            pass
    finally:
        os.umask(before)
    paths = [state, *state.rglob("*")]
    assert sum(path.name == ".lock" for path in paths) == 2 and sum(path.name == STATE_FILE for path in paths) == 1
    for path in paths:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_what_was_answered_and_is_not_saved_is_less_than_save_every(tmp_path: Path) -> None:
    sent = 0
    with pool(config(tmp_path, save_every=6)) as submit:
        for count in (4, 4, 1, 4, 4):
            logits(submit(frames(count)))
            sent += count
            saved = header(tmp_path, "cam")["images"] if list(tmp_path.rglob(STATE_FILE)) else 0
            assert sent - saved < 6
        logits(submit(frames(1), end=True))
        assert header(tmp_path, "cam")["images"] == sent + 1


def test_an_end_that_could_not_be_saved_is_not_answered_with_200(tmp_path: Path) -> None:
    """The camera stays in memory; the same request again is not learnt from twice, and saves it."""
    query = {"sequence_id": "cam", "sequence_end": "true", "id": "last"}
    picture = {"content": FRAME, "headers": PNG}
    with running(config(tmp_path)) as (url, server):
        assert server.pool is not None
        first = httpx.post(f"http://{url}{PATH}", params={"sequence_id": "cam"}, **picture)  # type: ignore[arg-type]
        (folder(tmp_path) / STATE_FILE).mkdir()
        for _ in range(2):
            failed = httpx.post(f"http://{url}{PATH}", params=query, **picture)  # type: ignore[arg-type]
            assert failed.status_code == 503 and "'cam'" in failed.json()["error"] and failed.headers["Retry-After"]
            assert server.pool.cameras == 1
        (folder(tmp_path) / STATE_FILE).rmdir()
        ended = httpx.post(f"http://{url}{PATH}", params=query, **picture)  # type: ignore[arg-type]
        assert first.status_code == ended.status_code == 200 and server.pool.cameras == 0
        assert header(tmp_path, "cam")["images"] == 2


def test_scratch_memory_lasts_while_requests_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A correction that the next images share is not made again for each request."""
    released = list[int]()
    monkeypatch.setattr("fozo.serve.cameras.Camera.release", lambda camera: released.append(1))
    with pool(config(tmp_path, idle=0.5)) as submit:
        for i in range(20):
            logits(submit(frames(1, i)))
        assert not released
        monkeypatch.setattr("fozo.serve.pool.QUIET", 0.0)
        until(lambda: released)


def test_a_camera_that_leaves_is_freed_at_once(
    tmp_path: Path, reference: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when Python happens to look for cycles: a monitor and its adapter refer to each other."""
    made, real = list[Any](), fozo.Align.clone

    def clone(adapter: fozo.Align) -> fozo.Align:
        twin = real(adapter)
        made.append(weakref.ref(twin))
        return twin

    monkeypatch.setattr(fozo.Align, "clone", clone)
    with pool(config(tmp_path, reference, anonymous="stateless")) as submit:
        made.clear()  # of those that were made at the start
        gc.collect()
        gc.disable()
        try:
            for camera, changes in (("cam", {}), ("cam", {"start": True}), ("cam", {"end": True}), ("", {})):
                logits(submit(frames(1), camera, **changes))
            until(lambda: len(made) == 3 and not any(each() for each in made))
        finally:
            gc.enable()
