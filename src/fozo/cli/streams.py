"""Streams of ``fozo adapt``: how one is adapted to, in this process or another, and the table of many."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rich.box import HEAVY_HEAD
from rich.markup import escape
from rich.table import Table

from fozo.bench.report.render import render, write_page
from fozo.bench.resources import needs
from fozo.cli.folder import open_recording, read_batches
from fozo.cli.folder_run import FolderRun, adapt_folder, csv_table
from fozo.cli.options import Progress, load_model, open_console
from fozo.core.statistics import Statistics
from fozo.data.inputs import VIDEOS, is_video
from fozo.data.sets.folder import open_unlabelled
from fozo.engines.load import LoadOptions
from fozo.errors import FozoError
from fozo.io import atomic_write, disk_errors, read_bytes
from fozo.methods.common.measured import MEASURED
from fozo.methods.registry import AnyMethod, create
from fozo.monitor import Reference
from fozo.public import calibrate
from fozo.types import Engine, Floats

MAX_MEASURED = 1 << 30  # bytes of a file of statistics or of a monitor's reference, at most
SHOWN = 20  # rows of the table on the screen
TABLE = "cameras.csv"
PAGE = "index.html"


@dataclass(frozen=True)
class Setup:
    """What the streams of a command have in common: plain values, for another process."""

    model: str
    load: LoadOptions
    method: str | None
    """By name; by default the recommended one for the model."""
    options: Mapping[str, Any]
    """Of the method."""
    batch_size: int
    statistics: Path | None = None
    clean: Path | None = None
    reference: Path | None = None
    """The monitor's, which watches every stream."""


@dataclass(frozen=True)
class Stream:
    """Where a stream is read, and where its files are written."""

    name: str
    source: Path
    out: Path
    state: Path | None
    resume: bool


class NotReady(FozoError):
    """No stream can be begun: the fault is of the model, or of what was measured of it."""


@dataclass(frozen=True)
class Tools:
    """What all streams of a process share."""

    engine: Engine
    method: str
    options: Mapping[str, Any]
    identity: Mapping[str, object]
    reference: Reference | None


_latest: list[tuple[Setup, Tools]] = []
"""What the latest stream of this process was adapted with, for the next one."""


def adapt_stream(stream: Stream, setup: Setup, progress: Progress) -> tuple[FolderRun, AnyMethod]:
    """Adapt to a stream, or go on where a killed process stopped, or find it finished."""
    if not _latest or _latest[0][0] != setup:
        try:
            _latest[:] = [(setup, _tools(setup, progress))]
        except (FozoError, OSError, MemoryError) as error:
            raise NotReady(str(error)) from error
    tools = _latest[0][1]
    method = create(tools.method, tools.engine, **tools.options)
    recording = open_recording(stream.source, tools.engine.spec)
    with disk_errors(stream.out):
        stream.out.parent.mkdir(parents=True, exist_ok=True)
    run = adapt_folder(
        method, recording, stream.out, {**tools.identity, **method.identity()}, progress, batch_size=setup.batch_size,
        resume=stream.resume, state=stream.state, reference=tools.reference,
    )  # fmt: skip
    if not run.images:
        raise FozoError(
            f"none of the {run.left_out} images of {stream.source} can be read; check them with fozo data check"
        )
    return run, method


def _tools(setup: Setup, progress: Progress) -> Tools:
    engine = load_model(setup.model, setup.load)
    spec = engine.spec
    method = setup.method or ("align" if "tokens" in engine.abilities else "equalise")
    options = dict(setup.options)
    wanted = needs(method, options)
    clean = None if setup.clean is None else open_unlabelled(setup.clean)

    def clean_batches() -> Iterator[Floats]:
        assert clean is not None
        for batch in read_batches(clean, spec, progress, "calibrating", batch_size=setup.batch_size):
            if len(batch.samples):
                yield batch.images

    calibrated_on = clean.fingerprint if clean is not None and wanted else None
    if "statistics" in wanted and setup.statistics is not None:
        options["statistics"] = Statistics.load(setup.statistics)
        calibrated_on = _fingerprint(setup.statistics)
    elif "statistics" in wanted:
        options["statistics"] = calibrate(engine, clean_batches())
    options |= {need: MEASURED[need].measure(engine, clean_batches()) for need in sorted(wanted & MEASURED.keys())}
    identity: dict[str, object] = {
        "model": spec.name,
        "weights": spec.fingerprint,
        "mean": list(spec.mean or ()),
        "std": list(spec.std or ()),
        "method": method,
        "threads": setup.load.threads,
        "calibrated_on": calibrated_on,
    }
    reference = None
    if setup.reference is not None:
        reference = Reference.load(setup.reference)
        reference.check(create(method, engine, **options))
        identity["reference"] = _fingerprint(setup.reference)
    return Tools(engine, method, options, identity, reference)


def _fingerprint(path: Path) -> str:
    return hashlib.sha256(read_bytes(path, MAX_MEASURED)).hexdigest()[:16]


# Many streams.


def find_streams(sources: Sequence[Path], each: bool, out_dir: Path, ending: str) -> list[Stream]:
    """Name the streams, and the folder that each has in ``out_dir``."""
    streams: dict[str, Stream] = {}
    for source in sources:
        inside = [source]
        if each:
            inside = [path for path in sorted(source.iterdir()) if path.is_dir() or is_video(path)]
            inside = [path for path in inside if not path.name.startswith(".")]
        if not inside:
            raise FozoError(f"{source} holds no folders and no videos ({', '.join(VIDEOS)}); give it without --each")
        for path in inside:
            name = path.resolve().name
            if each and len(sources) > 1:
                name = f"{source.resolve().name}-{name}"
            if name in streams:
                raise FozoError(f"{streams[name].source} and {path} would both be called {name}; rename one of them")
            folder = out_dir / name
            out = folder / f"predictions{ending}"
            streams[name] = Stream(name, path, out, folder / "state.safetensors", resume=True)
    return list(streams.values())


@dataclass(frozen=True)
class Camera:
    """A row of the table: what became of a stream."""

    camera: str
    images: int = 0
    left_out: int = 0
    """Images that cannot be read."""
    drift: str = ""
    """What drifted, in words, if anything did."""
    since_image: int | None = None
    """The image with which it began."""
    since_time: str = ""
    """When that was taken."""
    accuracy_first: float | None = None
    """Expected accuracy when it was first known."""
    accuracy_now: float | None = None
    """Expected accuracy at the end; none where it is unknown, as of a black picture."""
    relative: bool = False
    """Whether these are fractions of the accuracy on clean images, whose labels were not given."""
    faults: str = ""
    """Faults of the camera that there are now."""
    passed: str = ""
    """Drifts and faults that there were before."""
    measure: float | None = None
    """How far from clean the last batch was: of the monitor's threshold, or else the method's shift."""
    error: str = ""
    """Why the stream was not finished, if it was not."""
    files: str = ""
    """The folder of its files, in that of the table."""

    @classmethod
    def of(cls, name: str, run: FolderRun) -> "Camera":
        findings = run.findings
        assert findings is not None
        relative = run.ends("expected_accuracy") is None
        name_of_accuracy = "relative_accuracy" if relative else "expected_accuracy"
        first, _ = run.ends(name_of_accuracy) or (None, None)
        seen = [line.metrics for line in run.batches if line.images]
        _, measure = run.ends("drift_ratio") or run.ends("shift") or (None, None)
        return cls(
            camera=name,
            images=run.images,
            left_out=run.left_out,
            drift=findings.drift,
            since_image=findings.since,
            since_time=findings.since_time,
            accuracy_first=first,
            accuracy_now=seen[-1].get(name_of_accuracy) if seen else None,
            relative=relative,
            faults=", ".join(findings.faults),
            passed=", ".join(findings.passed),
            measure=measure,
            files=run.path.parent.name,
        )

    @property
    def badness(self) -> tuple[float, ...]:
        """Sorts the worst first: failures, faults, then drifts by the expected accuracy that they cost."""
        lost = (self.accuracy_first or 0.0) - (self.accuracy_now or 0.0)
        return (-bool(self.error), -bool(self.faults), -bool(self.drift), -lost, -(self.measure or 0.0))

    @property
    def since(self) -> str:
        return "" if self.since_image is None else f"image {self.since_image:,} ({self.since_time})"

    @property
    def accuracy(self) -> str:
        if self.accuracy_first is None:
            return ""
        now = "unknown" if self.accuracy_now is None else f"{100 * self.accuracy_now:.0f} %"
        return f"{100 * self.accuracy_first:.0f} % → {now}" + " (of the clean one)" * self.relative

    @property
    def sentence(self) -> str:
        drift = f"{self.drift} since {self.since}" if self.drift else ""
        accuracy = f"expected accuracy {self.accuracy}" if self.accuracy else ""
        left_out = f"{self.left_out:,} left out" if self.left_out else ""
        parts = filter(None, (f"{self.images:,} images", left_out, self.faults, drift, accuracy))
        return f"{self.camera}: {self.error or '; '.join(parts)}"


def adapt_camera(stream: Stream, setup: Setup) -> Camera:
    """Adapt to one of many streams, in a worker process: what it gives is small."""
    with closing(Progress()) as progress:
        progress.quiet = True
        run, _ = adapt_stream(stream, setup, progress)
    return Camera.of(stream.name, run)


def write_cameras(cameras: Sequence[Camera], out_dir: Path) -> None:
    """Write and show the table, the worst first."""
    ordered = sorted(cameras, key=lambda camera: (camera.badness, camera.camera))
    heads = [column.name for column in fields(Camera)]
    path = out_dir / TABLE
    with disk_errors(path), atomic_write(path) as file:
        file.write(csv_table([heads, *(list(asdict(camera).values()) for camera in ordered)]))
    write_page(out_dir / PAGE, render("cameras.html", title="Cameras, the worst first", cameras=ordered, table=TABLE))
    console = open_console()
    table = Table(
        "camera", "images", "faults", "since", "expected accuracy", box=HEAVY_HEAD if console.is_terminal else None
    )
    table.add_column("drift", no_wrap=True, overflow="ellipsis")
    for camera in ordered[:SHOWN]:
        cells = (camera.camera, f"{camera.images:,}", camera.faults, camera.since, camera.accuracy)
        table.add_row(*map(escape, cells), escape(camera.error or camera.drift))
    console.print(table)
    more = len(ordered) - SHOWN
    print(f"{f'and {more} more: ' if more > 0 else ''}{path}, {out_dir / PAGE}")
