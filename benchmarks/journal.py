"""What a journal costs: bytes for each batch and image, of FOZO and of Align on the bundled model or one of your own.

    python -m benchmarks.journal
    python -m benchmarks.journal WEIGHTS IMAGES

Streams batches of 8 clean images, 48 of them on the bundled model, 4 on one of your own (statistics of 64 others), and
counts what was appended after the header. Replays each journal, so the figures are of files that work.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

import fozo
from benchmarks.common import clean_batches, refusals
from fozo.core.statistics import SourceStatistics
from fozo.data import sample
from fozo.types import Floats

SIZE = 8


def material(weights: Path | None, images: Path | None) -> tuple[fozo.Engine, SourceStatistics, Iterator[Floats]]:
    """Return an engine, its statistics, and batches to stream."""
    engine = fozo.load_engine(weights if weights and images else sample.MODELS["float32"])
    stream = clean_batches(fozo.open_images(images if weights and images else sample.IMAGES), engine.spec, SIZE)
    if not weights or not images:
        return engine, sample.source(sample.MODELS["float32"]), islice(stream, 48)
    return engine, fozo.calibrate(engine, islice(stream, 8)), islice(stream, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", nargs="?", type=Path)
    parser.add_argument("images", nargs="?", type=Path)
    given = parser.parse_args()
    with refusals("journal"):
        engine, source, stream = material(given.weights, given.images)
        with tempfile.TemporaryDirectory() as folder:
            paths = {name: Path(folder) / name for name in ("align", "fozo")}
            align = fozo.Align(engine, source, journal=paths["align"])
            published = fozo.FOZO(engine, source, journal=paths["fozo"])
            for batch in stream:
                align(batch)
                published(batch)
            align.clone().replay(paths["align"])
            fozo.replay(paths["fozo"])
            for name, path in paths.items():
                sizes = [len(line) + 1 for line in path.read_bytes().splitlines()[1:]]
                print(f"{engine.spec.name}, {name}: {min(sizes)} to {max(sizes)} bytes a batch of {SIZE}, "
                      f"{np.mean(sizes) / SIZE:.0f} an image on average, over {len(sizes)} batches")  # fmt: skip


if __name__ == "__main__":
    main()
