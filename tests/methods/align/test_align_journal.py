"""Align's journal: replayed exactly, undone to any batch, and refused where it is not what it seems."""

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
from fozo.methods.align.memory import RetrievalConfig
from fozo.methods.align.method import AlignConfig
from fozo.testing import same
from tests.helpers import random_images, random_vit

CLEAN = [random_images(20, seed=i) for i in range(3)]
STREAM = [*CLEAN, *(0.3 * batch + 1.0 for batch in CLEAN)]
Line = dict[str, Any]


def close(method: fozo.Align) -> None:
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


def test_resets_failures_and_fallbacks_are_recorded(
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
    """One byte a number that is remembered, four thirds of it as text, and little beside; also when it is full."""
    path = tmp_path / "camera.journal"
    method = fozo.Align(engine, source, AlignConfig(retrieval=RetrievalConfig(capacity=50)), journal=path)
    for batch in STREAM:
        method(batch)
    size = max(len(line) for line in path.read_bytes().splitlines()[1:]) / 20
    layers, width, contents = method.shape
    beside = 4 * (layers + contents) + 3 * 8 * (method.equaliser.std.size + 4)
    assert size < 4 / 3 * (layers * width + beside) + 150


def forge(name: str, **changes: object) -> Callable[[Line], Line]:
    """Change what a line says about an array."""

    def change(line: Line) -> Line:
        arrays = {**line["arrays"], name: {**line["arrays"].get(name, {}), **changes}}
        return {**line, "arrays": arrays}

    return change


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda line: {**line, "arrays": None}, "cannot be followed"),
        (forge("unknown", shape=[1], at=[0], data=""), "cannot be followed"),
        (forge("codes", data=""), "cannot be followed"),
        (forge("codes", data=packed(b"\0" * 50_000_000)), "cannot be followed"),
        (forge("codes", shape=[10**15, 5, 8]), "cannot be followed"),
        (forge("contents", at=[10**9]), "cannot be followed"),
        (forge("seen", shape=[], at=[0], data=packed(np.array(7).tobytes())), "remembers 20 of 7 images"),
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


def test_a_cached_correction_is_made_again_by_who_takes_over(
    engine: fozo.Engine, source: SourceStatistics, tmp_path: Path
) -> None:
    """Single images share a correction for a while. It is not saved: it follows from the memory, bit for bit."""
    path, drifted = tmp_path / "camera.journal", 0.3 * random_images(120, seed=3) + 1.0
    method = fozo.Align(engine, source, journal=path)
    for i in range(104):
        method(drifted[i : i + 1])
    method.save(tmp_path / "state.npz")
    for i in range(104, 112):
        replayed, restored = fozo.Align(engine, source), fozo.Align(engine, source)
        replayed.replay(path)
        restored.load_state(method.state())
        wanted = method(drifted[i : i + 1])
        np.testing.assert_array_equal(replayed(drifted[i : i + 1]), wanted)
        np.testing.assert_array_equal(restored(drifted[i : i + 1]), wanted)
    resumed = fozo.Align(engine, source)
    resumed.restore(tmp_path / "state.npz")
    for i in range(104, 112):
        resumed(drifted[i : i + 1])
    assert same(resumed.state(), method.state())
