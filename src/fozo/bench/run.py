"""Running one experiment so that it may be killed at any moment and ends with the same bytes.

Each batch's record is on file before the next batch begins. Every few seconds the method's state is saved, after the
records are synced; a rerun restores the latest state, cuts the records back to it and goes on. Since a method, its
state and the stream are all exact, the records that follow are the ones that an unbroken run would have written.
"""

from __future__ import annotations

import hashlib
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from fozo.bench.environment import environment, forget_peak, peak_memory
from fozo.bench.experiment import Experiment
from fozo.bench.folder import disk_errors, locked, read_json, sweep, write_json
from fozo.bench.measures import measure
from fozo.bench.records import BatchRecord, Cost, Log, plain, read_costs, read_records, score, to_line
from fozo.bench.workshop import Workshop, device_of
from fozo.data.streams import Stream
from fozo.errors import FozoError
from fozo.methods.base import Method

RESULT, CONDITIONS, EXPERIMENT = "result.json", "conditions.json", "experiment.json"
RECORDS, COSTS = "records.jsonl", "costs.jsonl"
STATE = re.compile(r"state-(\d+)\.npz")
SAVE_SECONDS = 2.0
SAVE_SHARE = 20
"""A state is saved when this many times the duration of the last saving has passed: FOA's takes 40 MB."""


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    images: int
    total: int
    correct: int
    seen: int
    """Images of this session, and its seconds, for the speed."""
    seconds: float


Watcher = Callable[[Progress], None]


def run_experiment(
    experiment: Experiment,
    workshop: Workshop,
    folder: Path,
    *,
    threads: int = 1,
    command: str = "",
    save_seconds: float = SAVE_SECONDS,
    watch: Watcher = lambda progress: None,
) -> dict[str, object]:
    """Run an experiment in ``folder``, or finish it, or find it finished; return the content of ``result.json``.

    Args:
        experiment: what to run.
        workshop: where engines and images come from.
        folder: the experiment's own; made if absent.
        threads: processor threads; an unfinished run keeps the number that it began with, because the order of
            additions, and so the last bits, may depend on it.
        command: what the user typed, for the report.
        save_seconds: least time between two savings of the state.
        watch: called after each batch.
    """
    with locked(folder):
        sweep(folder)
        engine, stream = workshop.stream(experiment)
        threads = _use_threads(folder, threads)
        method, calibration = workshop.method(experiment, engine, stream.source.images)
        facts: dict[str, object] = {
            **experiment.describe(),
            "label": experiment.label,
            "threads": threads,
            "weights": engine.spec.fingerprint,
            "stream_fingerprint": stream.fingerprint,
            "stream_facts": stream.describe(),
            "calibrated_on": calibration,
        }
        _claim(folder, facts)
        if (folder / RESULT).exists():
            return read_json(folder / RESULT)
        device = device_of(engine)
        forget_peak(device)
        _run(method, stream, folder, save_seconds, device, watch)
        return _finish(folder, facts, method, device, command)


def _use_threads(folder: Path, threads: int) -> int:
    path = folder / EXPERIMENT
    if path.exists():
        begun = read_json(path).get("threads")
        threads = begun if isinstance(begun, int) else threads
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(threads)
    return threads


def _claim(folder: Path, facts: dict[str, object]) -> None:
    """Write down what the folder is for, or check that it is for the same."""
    path = folder / EXPERIMENT
    if not path.exists():
        write_json(path, facts)
        return
    before = read_json(path)
    names = {"weights": "model weights", "stream_fingerprint": "images", "calibrated_on": "calibration images"}
    for key, what in names.items():
        if before.get(key) != facts[key]:
            raise FozoError(f"{folder} was begun with other {what}; choose another --out for these")


def _run(method: Method, stream: Stream, folder: Path, save_seconds: float, device: str, watch: Watcher) -> None:
    records, costs = Log(folder / RECORDS), Log(folder / COSTS)
    try:
        done = _resume(method, folder, min(len(records), len(costs)))
        records.truncate(done)
        costs.truncate(done)
        before = read_records(folder / RECORDS)
        images, correct = sum(r.images for r in before), sum(r.correct for r in before)
        total = sum(len(segment.domains) for segment in stream.segments) * len(stream.source.images)
        began = saved = time.monotonic()
        pause, seen = save_seconds, 0
        for batch in stream.batches(done):
            if batch.reset:
                method.reset()
            start = time.perf_counter()
            logits = method(batch.images)
            seconds = time.perf_counter() - start
            record = BatchRecord(
                index=batch.index,
                domain=batch.domain,
                passes=method.spent,
                told=method.telling(),
                **score(logits, batch.labels),
            )
            records.append(to_line(record))
            costs.append(to_line(Cost(batch.index, round(seconds, 6), peak_memory(device))))
            images, correct, seen = images + record.images, correct + record.correct, seen + record.images
            watch(Progress(images, total, correct, seen, time.monotonic() - began))
            if time.monotonic() - saved >= pause:
                start = time.monotonic()
                records.sync()
                costs.sync()
                _save(method, folder, batch.index + 1)
                saved = time.monotonic()
                pause = max(save_seconds, SAVE_SHARE * (saved - start) if save_seconds else 0)
        records.sync()
        costs.sync()
    finally:
        records.close()
        costs.close()


def _states(folder: Path) -> dict[int, Path]:
    found = ((STATE.fullmatch(path.name), path) for path in folder.iterdir())
    return {int(match[1]): path for match, path in found if match}


def _resume(method: Method, folder: Path, recorded: int) -> int:
    """Restore the latest state that the records reach up to; return how many batches it has seen."""
    usable = {done: path for done, path in _states(folder).items() if done <= recorded}
    if not usable:
        return 0
    done = max(usable)
    method.restore(usable[done])
    return done


def _save(method: Method, folder: Path, done: int) -> None:
    path = folder / f"state-{done:06d}.npz"
    with disk_errors(path):
        method.save(path)
    for number, old in _states(folder).items():
        if number != done:
            old.unlink()


def _finish(folder: Path, facts: dict[str, object], method: Method, device: str, command: str) -> dict[str, object]:
    data = (folder / RECORDS).read_bytes()
    measures = measure(read_records(folder / RECORDS))
    costs = read_costs(folder / COSTS)
    threads = facts["threads"]
    assert isinstance(threads, int)
    result = {
        **facts,
        "measures": asdict(measures),
        "parameters": method.parameters,
        "passes": plain(measures.passes / measures.images),
        "digest": hashlib.sha256(data).hexdigest(),
    }
    conditions = {
        "environment": environment(threads, device),
        "seconds": sum(cost.seconds for cost in costs),
        "memory": max(cost.memory for cost in costs),
        "command": command,
        "finished": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }
    write_json(folder / CONDITIONS, conditions)
    write_json(folder / RESULT, result)
    for state in _states(folder).values():
        state.unlink()
    return read_json(folder / RESULT)
