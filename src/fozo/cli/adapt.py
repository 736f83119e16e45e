"""``fozo adapt``: adapt to images and write what is on them, of one folder or of an archive of streams."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fozo.cli.options import STATISTICS, BatchSize, Model, Progress, read_options, read_value
from fozo.engines.load import LoadOptions
from fozo.errors import FozoError, check_counts

if TYPE_CHECKING:
    from fozo.cli.streams import Setup, Stream

METHOD = "See fozo methods; align by default, equalise for a model that shows no tokens."
SOURCES = "Folders of images, seen in the order of their names, or videos: each is a stream of its own."
OUT = "File for the predictions: CSV, or .jsonl; predictions.csv by default."
OUT_DIR = "Folder for the predictions, state and log of many streams; the same command goes on after any kill."
REFERENCE = "What fozo calibrate --reference wrote: a monitor watches each stream."


def method_names() -> list[str]:
    from fozo.methods.registry import list_methods

    return list(list_methods())


def adapt(
    model: Model,
    sources: Annotated[list[Path], SOURCES],
    load: LoadOptions,
    statistics: Annotated[Path | None, STATISTICS] = None,
    clean: Annotated[Path | None, "Folder of clean images to calibrate on now; EATA and PEA need it."] = None,
    reference: Annotated[Path | None, REFERENCE] = None,
    method: Annotated[str | None, typer.Option(help=METHOD, autocompletion=method_names)] = None,
    preset: Annotated[str | None, "Of the method: paper of fozo, say."] = None,
    passes: Annotated[str | None, "Forward passes of a batch, for methods that take several."] = None,
    option: Annotated[list[str] | None, "NAME=VALUE of the method's config; give it again for more."] = None,
    seed: Annotated[int, "Of the method's draws."] = 0,
    out: Annotated[Path | None, OUT] = None,
    batch_size: BatchSize = 64,
    state: Annotated[Path | None, "Continue from this file where it exists, and save there at the end."] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the same command was interrupted.")] = False,
    out_dir: Annotated[Path | None, OUT_DIR] = None,
    each: Annotated[bool, typer.Option("--each", help="Each folder or video in SOURCES is a stream.")] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="JSON lines instead of CSV in --out-dir.")] = False,
    workers: Annotated[int, "Processes for many streams; --threads are of each, 1 by default."] = 1,
    ray: Annotated[bool, typer.Option("--ray", help="Many streams on the Ray cluster of RAY_ADDRESS.")] = False,
) -> None:
    """Adapt to images and write their five likeliest classes with probabilities.

    A line is written as soon as its batch is done. A log beside it says what each batch gave. Many streams have a
    folder each in --out-dir, where cameras.csv and index.html show them, the worst first.
    """
    from fozo.bench.resources import needs
    from fozo.cli.folder_run import JSON_LINES, LOG
    from fozo.cli.streams import Setup, Stream, find_streams
    from fozo.data.videos import opencv
    from fozo.io import check_output
    from fozo.methods.common.info import NEEDS
    from fozo.methods.common.measured import MEASURED

    check_counts(workers=workers, batch_size=batch_size)
    options: dict[str, Any] = {"seed": seed, "preset": preset, "batch_size": batch_size, **read_options(option or [])}
    if passes is not None:
        options["passes"] = read_value(passes)
    wanted = needs(method or "align", options)  # equalise needs the same of these
    measured = sorted(wanted & MEASURED.keys())
    if measured and clean is None:
        what = NEEDS[measured[0]].partition(";")[0]
        raise FozoError(f"{method} needs {what}; give a folder of them as --clean")
    if "statistics" in wanted and statistics is None and clean is None:
        raise FozoError(
            f"{method or 'align'} needs --statistics (fozo calibrate makes them), or clean images as --clean"
        )
    setup = Setup(model, load, method, options, batch_size, statistics, clean, reference)
    if out_dir is None and (each or ray or jsonl or workers > 1 or len(sources) > 1):
        raise FozoError("many streams have a folder each; give the folder for these as --out-dir")
    if out_dir is not None and (out is not None or state is not None or "journal" in options):
        raise FozoError("each stream in --out-dir has files of its own; leave out --out, --state and journal")
    for source in sources:
        if not source.is_dir() and (each or not source.is_file()):
            raise FozoError(f"{source} is not a folder{'' if each else ' and not a video'}; give one of images")
    if out_dir is None:
        out = out or Path("predictions.csv")
        streams = [Stream(out.name, sources[0], out, state, resume)]
    else:
        streams = find_streams(sources, each, out_dir, JSON_LINES if jsonl else ".csv")
    if any(stream.source.is_file() for stream in streams):
        opencv()
    if out_dir is not None:
        threads = 1 if load.threads is None else load.threads
        check_counts(threads=threads)
        _adapt_all(streams, replace(setup, load=replace(load, threads=threads)), out_dir, workers, ray)
        return
    for path in filter(None, (out, Path(f"{out}{LOG}"), state)):
        check_output(path)  # said before the work, not after it
    _adapt_one(streams[0], setup)


def _adapt_one(stream: Stream, setup: Setup) -> None:
    from fozo.cli.streams import adapt_stream
    from fozo.methods.common.description import describe_model

    with closing(Progress()) as progress:
        try:
            run, method = adapt_stream(stream, setup, progress)
        except KeyboardInterrupt:
            progress.close()
            print(
                f"fozo: {stream.out} has the first {progress.done} of {progress.total} predictions; the same command "
                f"with --resume goes on",
                file=sys.stderr,
            )
            raise
    sentence = f"{stream.out}: predictions of {run.images} images by {method.info.name}"
    if setup.method is None and setup.clean is None:  # where it calibrates, fozo.calibrate says what was found
        print(describe_model(method.engine).sentence)
    print("; ".join(filter(None, [sentence, run.summary])))


def _adapt_all(streams: list[Stream], setup: Setup, out_dir: Path, workers: int, ray: bool) -> None:
    from fozo.cli.streams import TABLE, Camera, NotReady, adapt_camera, write_cameras
    from fozo.cluster import run
    from fozo.io import locked

    cameras = []
    threads = setup.load.threads or 1
    work = partial(adapt_camera, setup=setup)
    with (
        locked(out_dir),
        closing(Progress()) as progress,
        closing(run(work, streams, workers=min(workers, len(streams)), ray=ray, cpus=threads)) as results,
    ):
        try:
            for stream, result in results:
                progress.close()
                if isinstance(result, NotReady):
                    raise result
                if isinstance(result, Camera):
                    cameras.append(result)
                    print(result.sentence, flush=True)
                else:
                    cameras.append(Camera(stream.name, error=str(result)))
                    print(f"fozo: {stream.name}: {result}", file=sys.stderr, flush=True)
                progress("adapting", len(cameras), len(streams))
        except KeyboardInterrupt:
            progress.close()
            print("fozo: the same command goes on where this one stops", file=sys.stderr)
            raise
        progress.close()
        write_cameras(cameras, out_dir)
    failed = sum(bool(camera.error) for camera in cameras)
    if failed:
        raise FozoError(
            f"{failed} of {len(cameras)} streams failed, as {out_dir / TABLE} says; correct them and give the same "
            f"command again"
        )
