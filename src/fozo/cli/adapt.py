"""``fozo adapt``: adapt to a folder of images, and write what is on them."""

import hashlib
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from fozo.cli.options import STATISTICS, BatchSize, Model, Progress, load_model, read_options, read_value
from fozo.engines.load import LoadOptions
from fozo.errors import FozoError
from fozo.types import Floats

MAX_STATISTICS = 1 << 30  # bytes of a file of statistics, at most
METHOD = "See fozo methods; align by default, equalise for a model that shows no tokens."


def method_names() -> list[str]:
    from fozo.methods.registry import list_methods

    return list(list_methods())


def adapt(
    model: Model,
    images: Annotated[Path, "Folder of images; they are seen in the order of their names."],
    load: LoadOptions,
    statistics: Annotated[Path | None, STATISTICS] = None,
    clean: Annotated[Path | None, "Folder of clean images to calibrate on now; EATA and PEA need it."] = None,
    method: Annotated[str | None, typer.Option(help=METHOD, autocompletion=method_names)] = None,
    preset: Annotated[str | None, "Of the method: paper of fozo, say."] = None,
    passes: Annotated[str | None, "Forward passes; align also takes auto."] = None,
    option: Annotated[list[str] | None, "NAME=VALUE of the method's config; give it again for more."] = None,
    seed: Annotated[int, "Of the method's draws."] = 0,
    out: Annotated[Path, "File for the predictions."] = Path("predictions.csv"),
    batch_size: BatchSize = 64,
    state: Annotated[Path | None, "Continue from this file where it exists, and save there at the end."] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the same command was interrupted.")] = False,
) -> None:
    """Adapt to a folder of images and write their five likeliest classes with probabilities.

    A line is written as soon as its batch is done. OUT.log, beside it, says what each batch gave.
    """
    from fozo.bench.resources import needs
    from fozo.cli.folder import compare, label_by_folder, read_batches
    from fozo.cli.folder_run import LOG, adapt_folder
    from fozo.core.statistics import Statistics
    from fozo.data.sets.folder import open_unlabelled
    from fozo.data.streams import LabelledBatch
    from fozo.io import check_output, read_bytes
    from fozo.methods.common.description import report_model
    from fozo.methods.common.info import NEEDS
    from fozo.methods.common.measured import MEASURED
    from fozo.methods.registry import create
    from fozo.public import calibrate

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
    for path in filter(None, (out, Path(f"{out}{LOG}"), state)):
        check_output(path)  # said before the work, not after it
    live_images = open_unlabelled(images)
    clean_images = None if clean is None else open_unlabelled(clean)
    engine = load_model(model, load)
    if method is None:
        method = "align" if "tokens" in engine.abilities else "equalise"
        report_model(engine)
    labelled = label_by_folder(live_images, engine.spec)
    calibrated_on = clean_images.fingerprint if clean_images is not None and wanted else None
    done = 0
    latest: LabelledBatch | None = None
    with closing(Progress()) as progress:

        def clean_batches() -> Iterator[Floats]:
            assert clean_images is not None
            for batch in read_batches(clean_images, engine, progress, "calibrating", batch_size=batch_size):
                if len(batch.samples):
                    yield batch.images

        def batches(start: int) -> Iterator[LabelledBatch]:
            nonlocal done, latest
            streamed = read_batches(
                labelled or live_images, engine, progress, "adapting", batch_size=batch_size, start=start
            )
            for batch in streamed:
                done = batch.index * batch_size
                latest = batch
                yield batch

        if "statistics" in wanted and statistics is not None:
            options["statistics"] = Statistics.load(statistics)
            calibrated_on = hashlib.sha256(read_bytes(statistics, MAX_STATISTICS)).hexdigest()[:16]
        elif "statistics" in wanted:
            options["statistics"] = calibrate(engine, clean_batches())
        options |= {need: MEASURED[need].measure(engine, clean_batches()) for need in measured}
        adapter = create(method, engine, **options)
        identity: dict[str, object] = {
            "model": engine.spec.name,
            "weights": engine.spec.fingerprint,
            "mean": list(engine.spec.mean or ()),
            "std": list(engine.spec.std or ()),
            "method": method,
            "images": live_images.fingerprint,
            "batch_size": batch_size,
            "threads": load.threads,
            "calibrated_on": calibrated_on,
            **adapter.identity(),
        }
        try:
            run = adapt_folder(
                adapter, labelled or live_images, out, batches, identity,
                labelled=labelled is not None, resume=resume, state=state,
            )  # fmt: skip
        except KeyboardInterrupt:
            progress.close()
            print(
                f"fozo: {out} has the first {done} of {len(live_images)} predictions; the same command with --resume "
                f"goes on",
                file=sys.stderr,
            )
            raise
    if not run.images:
        raise FozoError(
            f"none of the {len(live_images)} images of {images} can be read; check them with fozo data check"
        )
    words = ""
    if "statistics" in options and latest is not None and len(latest.samples):
        words = compare(latest.images, options["statistics"], engine.spec)
    print("; ".join(filter(None, [f"{out}: predictions of {run.images} images by {method}", run.summary, words])))
