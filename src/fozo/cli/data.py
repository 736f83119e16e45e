"""Commands on folders of images.

``fozo corrupt`` makes an ImageNet-C of them, ``fozo data check`` inspects a set, and ``fozo rank`` says which looks
most like clean ones, to choose an exposure, a lens or a time of day.
"""

import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fozo.cli.options import STATISTICS, Progress, load_model
from fozo.engines.load import LoadOptions
from fozo.errors import FozoError

FOLDERS = "Folders of images: one for each setting to choose among."
CLEAN = "Folder of clean images to compare with, instead of a model's reference."
MODEL = "Compare with the --reference of a model, and expect its accuracy: as fozo watch takes it."


def corrupt(
    images: Annotated[Path, "Folder that holds a folder of images for each class."],
    out: Annotated[Path, "Folder for the result; an unfinished one is continued."],
    kinds: Annotated[str, "all (15), all+extra (19), unseen (22 others), or names joined by commas."] = "all",
    severity: Annotated[str, "5, or 1-5, or 1,3,5."] = "5",
    size: Annotated[int, "Side of the images in pixels."] = 224,
    seed: Annotated[int, "Changes every random draw."] = 0,
    workers: Annotated[int | None, "Processes; by default one for each core."] = None,
) -> None:
    """Make an ImageNet-C-shaped tree OUT/kind/severity/class/file.JPEG from clean images."""
    from fozo.data.corrupt_tree import corrupt_tree, parse_kinds, parse_severities

    with closing(Progress()) as progress:
        outcome = corrupt_tree(
            images, out, kinds=parse_kinds(kinds), severities=parse_severities(severity), size=size, seed=seed,
            workers=workers, progress=partial(progress, "corrupting"),
        )  # fmt: skip
    print(f"{out}: {outcome.written} files written, {outcome.skipped} were there already")
    for sentence in outcome.unreadable:
        print(f"fozo: {sentence}", file=sys.stderr)
    if outcome.unreadable:
        print(f"fozo: {len(outcome.unreadable)} images could not be read; the rest is done", file=sys.stderr)
        raise typer.Exit(2)


def check(
    path: Annotated[Path, "A folder of images, or an .npz of them."],
    layout: Annotated[str, "What it is, where that cannot be seen from the folders."] = "auto",
    full: Annotated[
        bool, typer.Option("--full", help="Decode every image: the only way to find every truncated file.")
    ] = False,
) -> None:
    """Say what an image set is, and which of its files are broken (then the exit code is 2)."""
    from fozo.data.sets import check_image_set

    with closing(Progress()) as progress:
        report = check_image_set(path, layout, full=full, progress=partial(progress, "checking"))
    print("\n".join(report.lines))
    if report.broken:
        raise typer.Exit(2)


def rank(
    folders: Annotated[list[Path], FOLDERS],
    load: LoadOptions,
    clean: Annotated[Path | None, CLEAN] = None,
    model: Annotated[str | None, MODEL] = None,
    statistics: Annotated[Path, STATISTICS] = Path("statistics.safetensors"),
    reference: Annotated[Path, "What fozo calibrate --reference wrote."] = Path("reference.safetensors"),
    images: Annotated[int, "Images of each folder to measure, drawn at random."] = 64,
) -> None:
    """Order folders by the distance of their images from clean ones, the nearest first.

    1 is the distance of one clean image from the mean of all. What few images have by chance is taken off.
    """
    import numpy as np

    from fozo.data.inputs import batches
    from fozo.data.sets.folder import open_unlabelled
    from fozo.monitor import CleanImages, Reference
    from fozo.monitor.quality import QualityStatistics, advice, changes, pixel_spec
    from fozo.monitor.regression import prediction_features
    from fozo.public import adapter as make_adapter

    if (clean is None) == (model is None):
        raise FozoError("give either --clean, a folder to compare with, or --model, whose --reference is compared with")
    sets = [open_unlabelled(folder) for folder in folders]
    known = None
    adapter = None
    spec = pixel_spec()
    if model is not None:
        known = Reference.load(reference)
        adapter = make_adapter(load_model(model, load), statistics)
        known.check(adapter)
        spec = adapter.engine.spec
    measure = QualityStatistics(spec)
    source = known.clean if known else CleanImages.of(measure(np.concatenate([*map(np.asarray, batches(clean, spec))])))
    rows = []
    for folder, images_of_folder in zip(folders, sets, strict=True):
        drawn = images_of_folder.take(min(images, len(images_of_folder)))
        pixels = [np.asarray(batch) for batch in batches(drawn, spec)]
        if not pixels:
            raise FozoError(f"no image of {folder} can be read; leave this folder out")
        features = measure(np.concatenate(pixels))
        expected = None
        if known is not None and adapter is not None:
            adapter.reset()
            expected = known.expect(prediction_features(np.concatenate([*map(adapter, pixels)])), features)
        distance = source.beyond_chance(features)
        quality, clearest = changes(features, source.whitening.mean, source.whitening.std)
        if distance < 0.005:  # what prints as 0.00 is chance
            clearest = ()
        words = ", ".join(map(str, clearest)) or "like clean images"
        parts = filter(None, (words, expected, advice(clearest, quality)))
        rows.append((distance, f"{folder} ({len(features)} images): {'; '.join(map(str, parts))}"))
    print("distance from the clean images, the closest first:")
    for distance, sentence in sorted(rows):
        print(f"{distance:.2f} {sentence}")
