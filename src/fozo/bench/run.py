"""Running experiments so that each may be killed at any moment and ends with the same bytes.

Each batch's record is on file before the next batch begins. Every few seconds the method's state is saved, after the
records are synced; a rerun restores the latest state, cuts the records back to it and goes on. Since a method, its
state and the stream are all exact, the records that follow are the ones that an unbroken run would have written.

Many experiments run one after another or with :mod:`fozo.cluster`, with the same results. A worker that dies (out of
memory, killed) takes nothing with it: its experiment goes on in a new process.
"""

import hashlib
import re
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fozo.bench.measures import BatchRecord, Cost, measure, score
from fozo.bench.plan import Experiment
from fozo.bench.resources import Paths, Resources, Show, quiet
from fozo.bench.store import COSTS, EXPERIMENT, RECORDS, Conditions, Run, Store, environment, forget_peak, peak_memory
from fozo.data.streams import Stream
from fozo.engines.load import LoadOptions
from fozo.io import Log, disk_errors, encode, read_log, write_json
from fozo.methods.registry import AnyMethod, import_methods

SAVE_SECONDS = 2.0
SAVE_SHARE = 20  # a state is saved when this many times the duration of the last saving has passed: FOA's takes 40 MB
STATES = "state-"  # how the names of saved states begin
CACHE = "calibration"


def run_experiment(
    experiment: Experiment,
    resources: Resources,
    store: Store,
    *,
    threads: int = 1,
    command: str = "",
    save_seconds: float = SAVE_SECONDS,
    show: Show = quiet,
) -> Run:
    """Run an experiment in its folder of the store, or finish it, or find it finished.

    An unfinished run keeps the number of ``threads`` that it began with, because the order of additions, and so the
    last bits, may depend on it. ``command`` is what the user typed, for the report, ``save_seconds`` the least time
    between two savings of the state. ``show`` is called with preparations, and after each batch.
    """
    with store.open(experiment) as folder:
        images = resources.images(experiment.stream)
        threads = folder.begun.get("threads", threads)
        inputs = resources.inputs(experiment, images)
        if folder.begun:
            folder.check(inputs)
            finished = folder.finished()
            if finished is not None:  # before a model is loaded or anything measured
                Checkpoints(folder.path, STATES).clear()  # a kill may have left one
                return finished
        if experiment.quantise:
            engine = resources.quantised(experiment, images, show)
        else:
            engine = resources.engine(experiment.model, images.mask, threads)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(threads)
        plan = experiment.stream
        stream = Stream(
            resources.pixels(images, engine.spec),
            engine.spec,
            plan.order,
            batch_size=plan.batch_size,
            seed=experiment.seed,
            workers=resources.load.threads,
        )
        method = resources.method(experiment, engine, images, show)
        identity = {
            **experiment.identity(),
            **experiment.configuration(),
            "label": experiment.name,
            "threads": threads,
            "weights": engine.spec.fingerprint,
            "stream_fingerprint": stream.fingerprint,
            "stream_facts": stream.describe(),
            **inputs,
        }
        if folder.begun:
            folder.check(identity)
        else:
            write_json(folder.path / EXPERIMENT, identity)
        forget_peak(engine.device)
        records, costs = _run(method, stream, folder.path, experiment, save_seconds, show)
        conditions = Conditions(
            weights=engine.spec.fingerprint,
            stream_fingerprint=stream.fingerprint,
            calibrated_on=inputs["calibrated_on"],
            parameters=method.parameter_count,
            environment=environment(threads, engine.device),
            seconds=sum(cost.seconds for cost in costs),
            memory=max(cost.memory for cost in costs),
            command=command,
            finished=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        )
        digest = hashlib.sha256(b"".join(encode(record.line()) for record in records)).hexdigest()
        run = folder.finish(identity, measure(records), conditions, digest)
        Checkpoints(folder.path, STATES).clear()
        return run


def _run(
    method: AnyMethod, stream: Stream, folder: Path, experiment: Experiment, save_seconds: float, show: Show
) -> tuple[Sequence[BatchRecord], Sequence[Cost]]:
    """Send the stream through the method, from the latest state on; return the records of the whole run."""
    records: list[BatchRecord] = []
    costs: list[Cost] = []
    with closing(Log(folder / RECORDS)) as record_log, closing(Log(folder / COSTS)) as cost_log:
        states = Checkpoints(folder, STATES, save_seconds)
        done = states.restore(method, min(len(record_log), len(cost_log)))
        record_log.truncate(done)
        cost_log.truncate(done)
        if done:
            records += [BatchRecord.read(line) for line in read_log(folder / RECORDS)]
            costs += [Cost.read(line) for line in read_log(folder / COSTS)]
        last = experiment.stream.freeze_after
        seen = sum(record.images for record in records)
        correct = sum(record.correct for record in records)
        total = sum(len(segment.domains) for segment in stream.segments) * len(stream.source.images)
        for batch in stream.batches(done):
            if batch.reset:
                method.reset()
            before = [record.domain for record in records[-last:]] if last else []
            if last and before == [batch.domain] * last:
                method.freeze()
            else:
                method.unfreeze()
            start = time.perf_counter()
            logits = method(batch.images)
            seconds = time.perf_counter() - start
            record = score(
                logits,
                batch.labels,
                index=batch.index,
                domain=batch.domain,
                passes=method.passes_per_image,
                metrics=method.metrics(),
                samples=batch.samples,
            )
            cost = Cost(batch.index, round(seconds, 6), peak_memory(method.engine.device))
            record_log.append(record.line())
            cost_log.append(asdict(cost))
            records.append(record)
            costs.append(cost)
            seen += record.images
            correct += record.correct
            show(f"{experiment.name} seed {experiment.seed}: {100 * correct / seen:.1f} %", seen, total)
            if states.due():
                record_log.sync()
                cost_log.sync()
                states.save(method, batch.index + 1)
        record_log.sync()
        cost_log.sync()
    return records, costs


class Checkpoints:
    """The saved states of one run, at least ``seconds`` apart: ``PREFIX000123.safetensors`` has seen 123 batches."""

    def __init__(self, folder: Path, prefix: str, seconds: float = SAVE_SECONDS) -> None:
        self.folder = folder
        self.prefix = prefix
        self.seconds = seconds
        self._saved = time.monotonic()
        self._pause = seconds

    def _found(self) -> dict[int, Path]:
        name = re.compile(re.escape(self.prefix) + r"([0-9]+)\.safetensors")
        return {int(match[1]): path for path in self.folder.iterdir() if (match := name.fullmatch(path.name))}

    def restore(self, method: AnyMethod, most: int) -> int:
        """Continue from the latest state of at most ``most`` batches; return how many it has seen, 0 without one."""
        states = self._found()
        done = max((number for number in states if number <= most), default=0)
        if done:
            method.restore(states[done])
        return done

    def due(self) -> bool:
        """Whether it is time to save, once what goes with the state is safe on the disk."""
        return time.monotonic() - self._saved >= self._pause

    def save(self, method: AnyMethod, done: int) -> None:
        """Save the state after ``done`` batches, and remove the older ones."""
        start = time.monotonic()
        path = self.folder / f"{self.prefix}{done:06d}.safetensors"
        with disk_errors(path):
            method.save(path)
        for old in set(self._found().values()) - {path}:
            old.unlink()
        self._saved = time.monotonic()
        self._pause = max(self.seconds, SAVE_SHARE * (self._saved - start) if self.seconds else 0)

    def clear(self) -> None:
        for state in self._found().values():
            state.unlink()


@dataclass(frozen=True)
class Setup:
    """Where and how experiments are run: plain values, for another process."""

    out: str
    """The folder of the recipe."""
    paths: Paths
    """Where image sets lie."""
    load: LoadOptions = field(default_factory=lambda: LoadOptions(threads=1))
    """How models are loaded."""
    command: str = ""
    """What the user typed."""
    methods: tuple[str, ...] = ()
    """Files of methods to import."""


_latest: list[tuple[Setup, Resources]] = []
"""What the latest experiment in this process has opened, for the next one."""


def run_one(experiment: Experiment, setup: Setup, show: Show = quiet) -> Run:
    if not _latest or _latest[0][0] != setup:
        for file in setup.methods:
            import_methods(file)
        _latest[:] = [(setup, Resources(setup.paths, setup.load, Path(setup.out).parent / CACHE))]
    return run_experiment(
        experiment,
        _latest[0][1],
        Store(Path(setup.out)),
        threads=setup.load.threads or 1,
        command=setup.command,
        show=show,
    )
