"""``fozo rank``: which folder of images looks most like clean ones, to choose an exposure, a lens or a time of day."""

from pathlib import Path
from typing import Annotated

from fozo.cli.options import STATISTICS, load_model
from fozo.engines.load import LoadOptions
from fozo.errors import FozoError

FOLDERS = "Folders of images: one for each setting to choose among."
CLEAN = "Folder of clean images to compare with, instead of a model's reference."
MODEL = "Compare with the --reference of a model, and expect its accuracy: as fozo watch takes it."


def rank(
    folders: Annotated[list[Path], FOLDERS],
    load: LoadOptions,
    clean: Annotated[Path | None, CLEAN] = None,
    model: Annotated[str | None, MODEL] = None,
    stats: Annotated[Path, STATISTICS] = Path("stats.npz"),
    reference: Annotated[Path, "What fozo calibrate --monitor wrote."] = Path("monitor.npz"),
    images: Annotated[int, "Images of each folder to measure, drawn at random."] = 64,
) -> None:
    """Order folders by the distance of their images from clean ones, the nearest first.

    1 is the distance of one clean image from the mean of all. What few images have by chance is taken off.
    """
    import numpy as np

    from fozo.data.inputs import batches
    from fozo.data.sets.folder import open_unlabelled
    from fozo.monitor import CleanImages, MonitorReference
    from fozo.monitor.quality import QualityStatistics, advice, changes, pixel_spec
    from fozo.monitor.regression import prediction_features
    from fozo.public import adapter as make_adapter

    if (clean is None) == (model is None):
        raise FozoError("give either --clean, a folder to compare with, or --model, whose --reference is compared with")
    sets, known, adapter = [open_unlabelled(folder) for folder in folders], None, None
    spec = pixel_spec()
    if model is not None:
        known, adapter = MonitorReference.load(reference), make_adapter(load_model(model, load), stats)
        known.check(adapter)
        spec = adapter.engine.spec
    measure, rows = QualityStatistics(spec), []
    source = known.clean if known else CleanImages.of(measure(np.concatenate([*map(np.asarray, batches(clean, spec))])))
    for folder, found in zip(folders, sets, strict=True):
        seen = [np.asarray(batch) for batch in batches(found.take(min(images, len(found))), spec)]
        if not seen:
            raise FozoError(f"no image of {folder} can be read; leave this folder out")
        features, expected = measure(np.concatenate(seen)), None
        if known is not None and adapter is not None:
            adapter.reset()
            expected = known.expect(prediction_features(np.concatenate([*map(adapter, seen)])), features)
        distance = source.beyond_chance(features)
        quality, words = changes(features, source.whitening.mean, source.whitening.std)
        words = words if distance >= 0.005 else ()  # what prints as 0.00 is chance
        parts = filter(None, (", ".join(words) or "like clean images", expected, *advice(words, quality)))
        rows.append((distance, f"{folder} ({len(features)} images): {'; '.join(map(str, parts))}"))
    print("distance from the clean images, the closest first:")
    for distance, sentence in sorted(rows):
        print(f"{distance:.2f} {sentence}")
