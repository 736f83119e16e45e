"""The files of a camera: what cannot be read now is kept, what is wrong is set aside, and no place is taken in vain."""

import errno
import gc
import hashlib
import io
import json
import os
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import fozo
from fozo.io import load_arrays, save_arrays
from fozo.serve.app import InferenceServer
from fozo.serve.limits import Refused
from fozo.serve.store import CameraInUse, folder_name
from tests.serve.conftest import config, foggy, frames, running, until
from tests.serve.test_cameras import close, header, logits, pool, post
from tests.serve.test_limits import FRAME, PATH, PNG
from tests.serve.test_server import new_adapter

GARBAGE = np.zeros((1, 7), np.float32)
SHORTAGES = ("EMFILE", "ENFILE", "EIO", "EACCES", "ENOSPC", "EINTR", "ENOMEM", "ESTALE")


def folder(state: Path, camera: str = "cam") -> Path:
    (path,) = state.glob(f"*/{folder_name(camera)}")
    return path


def contents(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir()}


@pytest.mark.parametrize("file", ["camera.json", "adapter-1.npz", "answers-1.npz", "monitor-1.npz", "read"])
def test_what_cannot_be_read_now_is_not_damaged(
    tmp_path: Path, reference: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """503, and nothing is touched, also where ``glob`` hides the shortage as in Python 3.12."""
    settings, real, real_read = config(tmp_path, reference), os.open, io.FileIO.read
    with pool(settings) as submit:
        logits(submit(frames(5), id="first"))
    before, shortage = contents(folder(tmp_path)), 0

    def refused(path: Any, *given: Any, **named: Any) -> int:
        if Path(path).name == file:
            raise OSError(shortage, os.strerror(shortage), str(path))
        return real(path, *given, **named)

    def unread(stream: Any, *given: Any) -> bytes | None:  # zipfile takes this for "not a zip file"
        if file == "read":
            raise OSError(shortage, os.strerror(shortage))
        return real_read(stream, *given)

    with pool(settings) as submit:
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", refused)
            patch.setattr("fozo.io.files.Bounded.read", unread)
            patch.setattr(Path, "glob", lambda *_: iter(()))
            for name in SHORTAGES:
                shortage = getattr(errno, name)
                with pytest.raises(Refused) as caught:
                    logits(submit(frames(1, 5)))
                assert caught.value.code == 503 and caught.value.retry, name
        assert contents(folder(tmp_path)) == before and not list(tmp_path.rglob("*.refused"))
        logits(submit(frames(1, 5)))
    assert header(tmp_path, "cam")["images"] == 6


def forged(change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Callable[[Path], None]:
    """Change the kept answers, and the digest in camera.json with them."""

    def forge(path: Path) -> None:
        said, arrays = load_arrays(path / "answers-1.npz", "answers")
        change(said, arrays)
        save_arrays(path / "answers-1.npz", said, arrays)
        data, listed = (path / "answers-1.npz").read_bytes(), json.loads((path / "camera.json").read_text())
        listed["files"]["answers"] = hashlib.blake2b(data, digest_size=16).hexdigest()
        (path / "camera.json").write_text(json.dumps(listed))

    return forge


def logits_as(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    return forged(lambda said, arrays: arrays.update({"0-0": change(arrays["0-0"])}))


def row(**changes: object) -> Callable[[Path], None]:
    names = ("id", "digest", "count", "drift", "accuracy", "sentence")

    def change(said: dict[str, Any], _: object) -> None:
        said["answers"] = [[changes.get(name, was) for name, was in zip(names, said["answers"][0], strict=True)]]

    return forged(change)


def camera_json(**changes: object) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        said = json.loads((path / "camera.json").read_text()) | changes
        (path / "camera.json").write_text(json.dumps(said))

    return change


def swapped(path: Path) -> None:
    shutil.copyfile(folder(path.parent.parent, "other") / "adapter-1.npz", path / "adapter-1.npz")


WRONG: dict[str, Callable[[Path], None]] = {
    "0-d logits": logits_as(lambda found: found[0, 0]),
    "NaN": logits_as(lambda found: found * np.nan),
    "another width": logits_as(lambda found: found[:, :4]),
    "no rows": logits_as(lambda found: found[:0]),
    "doubles": logits_as(lambda found: found.astype(np.float64)),
    "too many rows": logits_as(lambda found: np.concatenate([found, found])),
    "no logits": forged(lambda said, arrays: arrays.clear()),
    "400 digits": row(count=10**400),
    "a negative count": row(count=-1),
    "an endless number": row(drift=[1.0, 1e400, 0.0, 0.0]),
    "three numbers of drift": row(drift=[1.0, 0.0, 0.0]),
    "a text for accuracy": row(accuracy="abc"),
    "a generation without a file": camera_json(generation=10**300),
    "images": camera_json(images=10**30),
    "no digests": camera_json(files=None),
    "another camera's adapter": swapped,
    "a missing monitor": lambda path: (path / "monitor-1.npz").unlink(),
    "missing answers": lambda path: (path / "answers-1.npz").unlink(),
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
    assert [each.name for each in tmp_path.rglob("*.refused")] == [folder_name("cam") + ".refused"]


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
        with pytest.raises(fozo.FozoError, match="Read-only file system"):
            InferenceServer(config(tmp_path))
        return
    with pool(config(tmp_path, shared=True)) as submit:
        with pytest.raises(Refused, match="Read-only file system") as caught:
            submit(frames(1)).result(30)
        assert not isinstance(caught.value.__cause__, CameraInUse)


def test_a_link_as_a_lock_is_called_so(tmp_path: Path) -> None:
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(fozo.FozoError, match="symbolic links"):
        InferenceServer(config(tmp_path))


def test_only_its_user_may_read_a_camera(tmp_path: Path, reference: Path) -> None:
    before = os.umask(0o022)
    try:
        with pool(config(tmp_path, reference)) as submit:
            logits(submit(frames(4), id="first"))
    finally:
        os.umask(before)
    files = [path for path in folder(tmp_path).iterdir() if path.name != ".lock"]
    assert len(files) == 4 and all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    assert folder(tmp_path).parent.stat().st_mode & 0o777 == 0o700


def test_what_was_answered_and_is_not_saved_is_less_than_save_every(tmp_path: Path) -> None:
    sent = 0
    with pool(config(tmp_path, save_every=6)) as submit:
        for count in (4, 4, 1, 4, 4):
            logits(submit(frames(count)))
            sent += count
            saved = header(tmp_path, "cam")["images"] if list(tmp_path.rglob("camera.json")) else 0
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
        (folder(tmp_path) / "camera.json").mkdir()
        for _ in range(2):
            failed = httpx.post(f"http://{url}{PATH}", params=query, **picture)  # type: ignore[arg-type]
            assert failed.status_code == 503 and "'cam'" in failed.json()["error"] and failed.headers["Retry-After"]
            assert server.pool.cameras == 1
        (folder(tmp_path) / "camera.json").rmdir()
        ended = httpx.post(f"http://{url}{PATH}", params=query, **picture)  # type: ignore[arg-type]
        assert first.status_code == ended.status_code == 200 and server.pool.cameras == 0
        assert header(tmp_path, "cam")["images"] == 2


def test_scratch_memory_lasts_while_requests_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A correction that the next images share is not made again for each request."""
    released = list[int]()
    monkeypatch.setattr(fozo.Align, "release", lambda adapter: released.append(1))
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
    made, real = list[Any](), fozo.Align.sibling

    def sibling(adapter: fozo.Align) -> fozo.Align:
        made.append(weakref.ref(found := real(adapter)))
        return found

    monkeypatch.setattr(fozo.Align, "sibling", sibling)
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


def test_memory_is_given_back_when_cameras_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed = list[int]()
    monkeypatch.setattr("fozo.serve.pool.trim_memory", lambda: trimmed.append(1))
    with pool(config(tmp_path, idle=0.05)) as submit:
        logits(submit(frames(1)))
        until(lambda: trimmed)
        assert submit.args[0].pool.cameras == 0
