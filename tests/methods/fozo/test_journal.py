"""The journal under power cuts, damage, rewinds and mistaken identity."""

import base64
from pathlib import Path

import numpy as np
import pytest

import fozo
from fozo.core.noise import PhiloxNoise
from fozo.core.spsa import SPSA, SPSAState
from fozo.errors import FozoError
from fozo.io import encode
from fozo.methods.common.journal import KIND, VERSION, Journal, read_journal
from fozo.methods.fozo.journal import encode_start, entry_of
from fozo.methods.fozo.method import AUTHORS_SCHEDULE
from tests.refusals import refuses

START = np.linspace(-1, 1, 6).reshape(2, 3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.journal"


def header(fingerprint: str = "aaaa", seed: int | None = 5) -> dict[str, object]:
    owner = {"config": {"passes": 4}, "fingerprint": fingerprint, "model": "model", "seed": seed}
    return {"kind": KIND, "version": VERSION, **owner, **encode_start(START)}


def take_step(spsa: SPSA, state: SPSAState) -> SPSAState:
    """One step on a sphere."""
    return spsa.tell(state, (spsa.ask(state) ** 2).sum(axis=(1, 2)))


def write_run(path: Path, steps: int) -> list[np.ndarray]:
    """Run an optimizer with a journal; returns the point after each number of steps."""
    spsa = SPSA(START, AUTHORS_SCHEDULE, PhiloxNoise(5), samples=2)
    journal = Journal(path, header())
    state = spsa.init()
    points = [state.point]
    for index in range(steps):
        state = take_step(spsa, state)
        journal.append(index, entry_of(state))
        points.append(state.point)
    journal.close()
    return points


def test_replay_rebuilds_every_point_bit_for_bit(path: Path) -> None:
    points = write_run(path, 9)
    np.testing.assert_array_equal(fozo.replay_prompts(path), points[-1])
    for batches, point in enumerate(points):
        np.testing.assert_array_equal(fozo.replay_prompts(path, batches=batches), point)
    refuses("holds 9 batches, not 10", fozo.replay_prompts, path, batches=10)
    assert all(len(line) < 250 for line in path.read_bytes().splitlines()[1:])


def test_a_torn_last_line_is_dropped_wherever_it_tore(path: Path) -> None:
    points = write_run(path, 4)
    data = path.read_bytes()
    last = len(data.splitlines(keepends=True)[-1])
    for lost in range(1, last + 1):
        path.write_bytes(data[: len(data) - lost])
        np.testing.assert_array_equal(fozo.replay_prompts(path), points[3])
    path.write_bytes(data + bytes(60))  # a file system may leave this when only the file's length reached the disk
    np.testing.assert_array_equal(fozo.replay_prompts(path), points[4])
    path.write_bytes(data[:-7])
    reopened = Journal(path, header())
    assert reopened.batches == 3
    assert path.read_bytes() == data[:-last]
    reopened.close()


def test_a_flipped_bit_never_goes_unnoticed(path: Path) -> None:
    points = write_run(path, 4)
    good = path.read_bytes()
    ends = np.cumsum([len(line) for line in good.splitlines(keepends=True)])
    for position in range(len(good)):
        content = bytearray(good)
        content[position] ^= 1 << position % 8
        path.write_bytes(content)
        line = int(np.searchsorted(ends, position, side="right"))
        if line == 0:
            sentence = "is not a fozo journal, or its header is damaged"
        elif line < 4:
            sentence = f"is damaged in line {line + 1}"
        elif position == len(good) - 1:  # without its end the last line is torn
            np.testing.assert_array_equal(fozo.replay_prompts(path), points[3])
            continue
        else:
            sentence = "is damaged in line 5"
        refuses(sentence, fozo.replay_prompts, path)


STEP = {"index": 2, "gradients": [1.0], "epsilon": 0.1, "rate": 0.1, "loss": 1.0}


def entry(led_to: object = 5, **changes: object) -> dict[str, object]:
    return {"index": 2, "step": {**STEP, **changes}, "led_to": led_to}


def test_lines_that_are_whole_but_no_steps_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fozo.methods.fozo.journal.MAX_DRAWS", 6 * START.size)
    write_run(path, 2)
    good = path.read_bytes()
    for line, sentence in (
        ({"speed": 2}, "jumps from batch 2 to None"),
        ({"rewind": 9}, "jumps from batch 2 to 9"),
        ({"rewind": -1}, "jumps from batch 2 to -1"),
        ({"rewind": True}, "jumps from batch 2 to True"),
        ({"index": 2, "step": {"index": 2}, "led_to": 5}, "batch 2 of the journal .* lacks 'gradients'"),
        (entry(speed=2), "batch 2 of the journal .* has no setting 'speed'"),
        (entry(gradients="12"), "batch 2 of the journal .* gradients of the step"),
        (entry(gradients=[]), "gradients that no step has"),
        (entry(gradients=[1.0] * 7), "gradients that no step has"),
        (entry(led_to="x"), "has no checksum"),
        (entry(rate=1e300, gradients=[1e300]), "batch 2 of the journal .* leads to other prompts"),
    ):
        path.write_bytes(good + encode(line))
        refuses(sentence, fozo.replay_prompts, path)


def test_rewinding_keeps_the_past_and_replays_the_present(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = write_run(path, 6)
    for batches in (2, 0):
        before = path.read_bytes()
        journal = Journal(path, header())
        batches_before = journal.batches
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(journal._log, "append", lambda line: 1 / 0)  # as where the disk is full
            journal.rewind(batches)
        assert journal.batches == batches_before
        journal.rewind(batches)
        journal.close()
        assert path.read_bytes().startswith(before)
        np.testing.assert_array_equal(fozo.replay_prompts(path), points[batches])


def test_another_models_journal_is_refused(path: Path) -> None:
    write_run(path, 2)
    refuses("fingerprint", Journal, path, header(fingerprint="bbbb"))
    refuses("own journal", fozo.replay_prompts, path, fingerprint="bbbb")
    fozo.replay_prompts(path, fingerprint="aaaa")


def test_own_noise_has_to_be_given_again(path: Path) -> None:
    noise = PhiloxNoise(77)
    spsa = SPSA(START, AUTHORS_SCHEDULE, noise)
    state = take_step(spsa, spsa.init())
    journal = Journal(path, header(seed=None))
    journal.append(0, entry_of(state))
    journal.close()
    refuses("its own noise", fozo.replay_prompts, path)
    refuses(r"batch 0 .* leads to other prompts", fozo.replay_prompts, path, noise=PhiloxNoise(78))
    np.testing.assert_array_equal(fozo.replay_prompts(path, noise=noise), state.point)


def test_a_forged_header_is_one_sentence(path: Path) -> None:
    write_run(path, 2)
    whole = path.read_bytes()
    _, rest = whole.split(b"\n", 1)
    nan = base64.b64encode(np.full(START.shape, np.nan).tobytes()).decode()
    forged: list[dict[str, object]] = [
        {"shape": [-1]}, {"shape": []}, {"shape": [2**62, 2**62]}, {"shape": "12"}, {"shape": None}, {"shape": [1.5]},
        {"shape": [True] * START.size}, {"start": "?"}, {"start": 5}, {"start": "AAAA"}, {"start": nan},
        {"seed": -1}, {"seed": 2**70}, {"seed": True}, {"seed": "5"}, {"seed": 6},
    ]  # fmt: skip
    for change in forged:
        path.write_bytes(encode({**header(), **change}) + rest)
        with pytest.raises(FozoError):
            fozo.replay_prompts(path)
    path.write_bytes(whole)
    fozo.replay_prompts(path)


def test_one_writer_at_a_time(path: Path) -> None:
    first = Journal(path, header())
    refuses(r"another writer has .*run\.journal open; wait", Journal, path, header())
    read_journal(path)  # others may read it meanwhile
    first.close()
    Journal(path, header()).close()


def test_a_header_torn_by_a_power_cut_is_written_again(path: Path) -> None:
    Journal(path, header()).close()
    whole = path.read_bytes()
    for kept in (0, 3, 8, 9, 10, 200, len(whole) - 1):
        path.write_bytes(whole[:kept])
        Journal(path, header()).close()
        assert path.read_bytes() == whole


def test_a_file_of_somebody_elses_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    for content in (b"\xff\xd8\xff\xe0 no newline", b"two\nlines", b"00000000 [1, 2]\n", b"deadbeef deadbeef"):
        path.write_bytes(content)
        for use in (read_journal, lambda file: Journal(file, header())):
            refuses("not a fozo journal", use, path)
        assert path.read_bytes() == content
