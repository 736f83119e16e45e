"""Align's journal: replayed exactly, undone to any batch, and refused where it is not what it seems."""

from __future__ import annotations

import base64
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fozo
from fozo.core.statistics import SourceStatistics
from fozo.errors import FozoError
from fozo.io import encode, read_log
from fozo.methods.align.config import AlignConfig
from fozo.methods.align.retrieval import DomainEstimate, RetrievalConfig, Stored
from fozo.methods.align.update import Update
from fozo.testing import same
from tests.helpers import random_images, random_vit

CLEAN = [random_images(20, seed=i) for i in range(3)]
STREAM = [*CLEAN, *(0.3 * batch + 1.0 for batch in CLEAN)]
Line = dict[str, Any]


def close(method: fozo.Align) -> None:
    """As the end of its process does."""
    assert method.journal is not None
    method.journal.close()


def test_replay_rebuilds_every_state_bit_for_bit(engine: fozo.Engine, source: SourceStatistics, tmp_path: Path) -> None:
    path = tmp_path / "camera.journal"
    config = AlignConfig(passes="auto", retrieval=RetrievalConfig(capacity=50))
    method = fozo.Align(engine, source, config, journal=path)
    states = [method.state()]
    for batch in STREAM:
        method(batch)
        states.append(method.state())
    other = fozo.Align(engine, source, config)
    for batches, state in enumerate(states):
        other.replay(path, batches=batches)
        assert same(other.state(), state)
    other.replay(path)
    np.testing.assert_array_equal(other(STREAM[0]), method(STREAM[0]))
    with pytest.raises(FozoError, match="holds 7 batches, not 8"):
        other.replay(path, batches=8)
    with pytest.raises(FozoError, match=r"is of align, not of fozo; give it to that method's replay\(\)"):
        fozo.replay(path)


def test_a_run_is_continued_and_undone_in_its_own_journal(
    engine: fozo.Engine, source: SourceStatistics, tmp_path: Path
) -> None:
    path = tmp_path / "camera.journal"
    first, unbroken = fozo.Align(engine, source, journal=path), fozo.Align(engine, source)
    for batch in STREAM[:4]:
        first(batch)
    close(first)  # the power goes
    second = fozo.Align(engine, source, journal=path)
    second.replay(path)
    for batch in STREAM[:4]:
        unbroken(batch)
    np.testing.assert_array_equal(second(STREAM[4]), unbroken(STREAM[4]))
    before = path.stat().st_size
    second.replay(path, batches=2)  # something went wrong from the third on
    assert second.batches == 2 and path.stat().st_size > before
    second(STREAM[5])
    close(second)
    judge = fozo.Align(engine, source)
    for batch in (*STREAM[:2], STREAM[5]):
        judge(batch)
    third = fozo.Align(engine, source)
    third.replay(path)
    assert same(third.state(), judge.state())


def test_resets_failures_and_healing_are_on_record(
    engine: fozo.Engine, source: SourceStatistics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "camera.journal"
    method = fozo.Align(engine, source, journal=path)
    method(STREAM[0])
    method.reset()
    method(STREAM[4])
    state = method.state()
    with monkeypatch.context() as patch:
        patch.setattr(method, "record", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            method(STREAM[5])
    assert same(method.state(), state)
    with monkeypatch.context() as patch:  # predictions break under any move
        run = engine.run
        patch.setattr(
            engine, "run", lambda batch, *how: {k: v + (np.nan if how else 0) for k, v in run(batch, *how).items()}
        )
        method(STREAM[5])
        assert method.metrics()["fallbacks"] == 3
    method(STREAM[3])
    replayed = fozo.Align(engine, source)
    replayed.replay(path)
    assert same(replayed.state(), method.state()) and replayed.batches == 3


def test_it_is_refused_by_another_model_config_or_statistics(
    engine: fozo.Engine, source: SourceStatistics, tmp_path: Path
) -> None:
    path = tmp_path / "camera.journal"
    method = fozo.Align(engine, source, journal=path)
    method(STREAM[0])
    other = fozo.load_engine(random_vit(seed=1))
    theirs = fozo.calibrate(other, [random_images(8)])
    again = fozo.calibrate(engine, [random_images(40, seed=9)])
    for stranger, differing in (
        (fozo.Align(other, theirs), "fingerprint"),
        (fozo.Align(engine, source, passes=2), "config"),
        (fozo.Align(engine, again), "source"),
    ):
        before = stranger.state()
        with pytest.raises(FozoError, match=f"differs in .*{differing}"):
            stranger.replay(path)
        assert same(stranger.state(), before)


def test_bytes_of_an_image(engine: fozo.Engine, source: SourceStatistics, tmp_path: Path) -> None:
    """One byte a number that is remembered, four thirds of it as text, and little beside."""
    path = tmp_path / "camera.journal"
    method = fozo.Align(engine, source, journal=path)
    for batch in STREAM:
        method(batch)
    size = max(len(line) for line in path.read_bytes().splitlines()[1:]) / 20
    layers, width, contents = method.form
    corrections = 3 * 2 * 8 * method.descriptor_std.size / 20  # of three groups, an estimate each
    beside = 4 * (layers + contents) + 8 * (method.descriptor_std.size + 4) + corrections
    assert size < 4 / 3 * (layers * width + beside) + 60


def forge(updates: object = None, **changes: object) -> Callable[[Line], Line]:
    def change(line: Line) -> Line:
        if updates is not None:
            line = {
                **line,
                "updates": updates,
                "corrections": [False] * len(updates if isinstance(updates, list) else []),
            }
        return {**line, **changes}

    return change


def packed(data: bytes, images: object = 1) -> list[Line]:
    return [{"images": images, "data": base64.b64encode(zlib.compress(data)).decode()}]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (forge(credit=None), "no memory updates, or no credit"),
        (forge(credit=1e9), "no memory updates, or no credit"),
        (forge(updates=5), "no memory updates, or no credit"),
        (forge(updates=[5]), r"cannot be read \(no update\)"),
        (forge(updates=[{}]), r"cannot be read \('images'\)"),
        (forge(updates=packed(b"")), "data of another length"),
        (forge(updates=packed(b"\0" * 50_000_000)), "data of another length"),
        (forge(updates=packed(b"", images=10**12)), "no number of images"),
        (forge(updates=packed(b"", images=True)), "no number of images"),
        (forge(updates=[{"images": 1, "data": "?"}]), "cannot be read"),
        (forge(updates=[]), "leads elsewhere"),
        (forge(corrections=[]), "no corrections"),
        (forge(corrections=None), "no corrections"),
        (forge(left=-1), "no corrections"),
        (forge(left=True), "no corrections"),
        (forge(corrections=["?"] * 3), "an estimate of the journal cannot be read"),
        (forge(corrections=[base64.b64encode(b"\0" * 7).decode()] * 3), "an estimate of the journal cannot be read"),
        (
            forge(corrections=[base64.b64encode(np.zeros(200).tobytes()).decode()] * 3),
            "an estimate of the journal cannot be read",
        ),
        (forge(led_to=5), "leads elsewhere"),
    ],
)
def test_a_forged_line_is_one_sentence_and_changes_nothing(
    engine: fozo.Engine, source: SourceStatistics, tmp_path: Path, change: Callable[[Line], Line], sentence: str
) -> None:
    path = tmp_path / "camera.journal"
    method = fozo.Align(engine, source, journal=path)
    method(STREAM[0])
    header, line = read_log(path)
    path.write_bytes(encode(header) + encode(change(line)))
    before = method.state()
    with pytest.raises(FozoError, match=sentence):
        method.replay(path)
    assert same(method.state(), before)


def test_numbers_of_a_update_have_to_be_finite_and_variances_positive() -> None:
    form = (3, 5, 2)
    values = Stored.of(np.random.default_rng(0).standard_normal((2, 3, 5)).astype(np.float32), np.ones((2, 2)))
    good = Update(DomainEstimate(*np.ones((3, 2, 4))), values, np.ones(2))
    read = Update.decode(good.encode(), 4, form)
    for name in ("codes", "scales", "contents"):
        np.testing.assert_array_equal(getattr(read.stored, name), getattr(values, name))
    np.testing.assert_array_equal(read.domains.variance, good.domains.variance)
    np.testing.assert_array_equal(read.clean, good.clean)
    nothing = Stored.of(np.ones((0, 3, 5), np.float32), np.ones((0, 2)))
    empty = Update(DomainEstimate(*np.ones((3, 0, 4))), nothing, np.ones(0))
    assert len(Update.decode(empty.encode(), 4, form)) == 0
    for which, value in ((1, 0.0), (0, np.nan), (2, np.inf)):
        parts = np.ones((3, 2, 4))
        parts[which, 1, 2] = value
        with pytest.raises(FozoError, match="not finite"):
            Update.decode(Update(DomainEstimate(*parts), good.stored, good.clean).encode(), 4, form)


def test_a_forked_child_does_not_write_its_parents_journal(
    engine: fozo.Engine, source: SourceStatistics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock is inherited, so the file alone would let both write."""
    method = fozo.Align(engine, source, journal=tmp_path / "camera.journal")
    method(STREAM[0])
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(FozoError, match="is the parent process's; give the adapters of a child their own"):
            method(STREAM[1])
    method(STREAM[1])


def test_a_correction_kept_over_batches_is_replayed_and_saved_too(
    engine: fozo.Engine, source: SourceStatistics, tmp_path: Path
) -> None:
    """Single images are treated alike for a while; whoever takes over in between goes on with the same numbers."""
    path, drifted = tmp_path / "camera.journal", 0.3 * random_images(60, seed=3) + 1.0
    method = fozo.Align(engine, source, journal=path)
    kept = 0
    for i in range(50):
        method(drifted[i : i + 1])
        kept += method.planned == [True]
    assert 20 < kept < 50
    assert method.correction is not None and method.correction.left > 0
    replayed, restored = fozo.Align(engine, source), fozo.Align(engine, source)
    replayed.replay(path)
    method.save(tmp_path / "state.npz")
    restored.restore(tmp_path / "state.npz")
    for other in (replayed, restored):
        assert same(other.state(), method.state())
    for i in range(50, 60):
        wanted = method(drifted[i : i + 1])
        np.testing.assert_array_equal(replayed(drifted[i : i + 1]), wanted)
        np.testing.assert_array_equal(restored(drifted[i : i + 1]), wanted)
