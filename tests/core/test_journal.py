"""The journal under power cuts, damage, rewinds and mistaken identity."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fozo
from fozo.core import journal as module
from fozo.core.journal import Journal, make_header, read_journal
from fozo.core.noise import PhiloxNoise
from fozo.core.schedule import Schedule
from fozo.core.spsa import SPSA
from fozo.errors import FozoError
from fozo.methods.prompt_fozo import AUTHORS_SCHEDULE

RECORD = 60
"""Bytes of a step with two gradients: head, gradients, eps, rate, loss, two checksums."""
START = np.linspace(-1, 1, 6).reshape(2, 3)


def header(fingerprint: str = "aaaa", seed: int | None = 5) -> bytes:
    return make_header(fingerprint, "model", seed, START, {"passes": 4})


def write_run(path: Path, steps: int, schedule: Schedule = AUTHORS_SCHEDULE) -> list[np.ndarray]:
    """Run an optimizer with a journal; returns the point after each number of steps."""
    spsa = SPSA(START, schedule, PhiloxNoise(5), samples=2)
    journal = Journal(path, header())
    points = [spsa.point]
    for _ in range(steps):
        step = spsa.tell((spsa.ask() ** 2).sum(axis=(1, 2)))
        journal.append(step, spsa.point)
        points.append(spsa.point)
    journal.close()
    return points


def test_replay_rebuilds_every_point_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    points = write_run(path, 9)
    np.testing.assert_array_equal(fozo.replay(path), points[-1])
    for batches, point in enumerate(points):
        np.testing.assert_array_equal(fozo.replay(path, batches=batches), point)
    with pytest.raises(FozoError, match="holds 9 batches, not 10"):
        fozo.replay(path, batches=10)


def test_a_record_is_a_few_dozen_bytes(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    write_run(path, 1)
    first = path.stat().st_size
    path.unlink()
    write_run(path, 2)
    assert path.stat().st_size - first == RECORD


@given(lost=st.integers(1, RECORD - 1))
@settings(max_examples=RECORD, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_torn_last_record_is_dropped_wherever_it_tore(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "run.journal"
    path.unlink(missing_ok=True)
    points = write_run(path, 4)
    data = path.read_bytes()
    path.write_bytes(data[:-lost])
    np.testing.assert_array_equal(fozo.replay(path), points[3])
    reopened = Journal(path, header())
    assert reopened.steps == 3
    assert path.stat().st_size == len(data) - RECORD
    reopened.close()


def test_a_last_record_of_zeros_is_dropped(tmp_path: Path) -> None:
    """What a file system may leave when only the file's length reached the disk."""
    path = tmp_path / "run.journal"
    points = write_run(path, 4)
    path.write_bytes(path.read_bytes() + bytes(RECORD))
    np.testing.assert_array_equal(fozo.replay(path), points[4])


def test_a_flipped_bit_never_goes_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    points = write_run(path, 4)
    good = path.read_bytes()
    for position in range(len(good)):
        content = bytearray(good)
        content[position] ^= 1 << position % 8
        path.write_bytes(content)
        if position < len(good) - RECORD:
            with pytest.raises(FozoError):
                fozo.replay(path)
            continue
        with contextlib.suppress(FozoError):  # the last record: seen to be damaged, or taken for torn
            np.testing.assert_array_equal(fozo.replay(path), points[3])


def test_rewinding_keeps_the_past_and_replays_the_present(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    points = write_run(path, 6)
    before = path.stat().st_size
    journal = Journal(path, header())
    journal.rewind(2)
    journal.close()
    assert path.stat().st_size > before
    np.testing.assert_array_equal(fozo.replay(path), points[2])
    journal = Journal(path, header())
    journal.rewind(0)
    journal.close()
    np.testing.assert_array_equal(fozo.replay(path), START)


def test_a_gap_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    write_run(path, 2)
    spsa = SPSA(START, AUTHORS_SCHEDULE, PhiloxNoise(5), samples=2)
    for _ in range(4):
        step = spsa.tell((spsa.ask() ** 2).sum(axis=(1, 2)))
    with pytest.raises(FozoError, match="ends at batch 2, but the run is at 3"):
        Journal(path, header()).append(step, spsa.point)


def test_another_models_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    write_run(path, 2)
    with pytest.raises(FozoError, match="fingerprint"):
        Journal(path, header(fingerprint="bbbb"))
    with pytest.raises(FozoError, match="own journal"):
        fozo.replay(path, fingerprint="bbbb")
    fozo.replay(path, fingerprint="aaaa")


def test_own_noise_has_to_be_given_again(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    noise = PhiloxNoise(77)
    spsa = SPSA(START, AUTHORS_SCHEDULE, noise)
    journal = Journal(path, header(seed=None))
    journal.append(spsa.tell((spsa.ask() ** 2).sum(axis=(1, 2))), spsa.point)
    journal.close()
    with pytest.raises(FozoError, match="its own noise"):
        fozo.replay(path)
    with pytest.raises(FozoError, match="other prompts from batch 0"):
        fozo.replay(path, noise=PhiloxNoise(78))
    np.testing.assert_array_equal(fozo.replay(path, noise=noise), spsa.point)


def test_what_is_not_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"something else entirely")
    with pytest.raises(FozoError, match="not a fozo journal"):
        read_journal(path)
    with pytest.raises(FozoError, match="cannot read"):
        read_journal(tmp_path / "missing")
    path.write_bytes(module.MAGIC + b"\xff\xff\x00\x00{")
    with pytest.raises(FozoError, match="header"):
        read_journal(path)


def test_a_full_disk_is_an_error_and_leaves_whole_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.journal"
    points = write_run(path, 3)
    journal = Journal(path, header())
    stream = journal._stream

    class Full:
        """Takes half of what it is given, as a full disk does."""

        def __getattr__(self, name: str) -> object:
            return getattr(stream, name)

        def write(self, data: bytes) -> int:
            return stream.write(data[: len(data) // 2])

    monkeypatch.setattr(journal, "_stream", Full())
    with pytest.raises(FozoError, match="free some space"):
        journal.rewind(1)
    np.testing.assert_array_equal(fozo.replay(path), points[3])
