"""Can the strengths of FOZO's preset be searched at test time? What an objective would pick, and what it could pick.

    python benchmarks/strengths.py WEIGHTS IMAGES [--images 64] [--severity 5] [--kinds speckle_noise,...]

The same stream through the preset ``aligned`` at several strengths (of its moves and its equaliser alike), each with
memories of its own. Then, from their predictions: the strength of the lowest entropy for each image, for each batch
(what a search over strengths would do at the price of a pass for each, driven by the paper's entropy), their mean
prediction, and the best strength that anybody who knew the labels could pick for each batch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.progress import track

import fozo
from fozo.core.objective import entropies
from fozo.data.corruptions import EXTRA_KINDS
from fozo.data.scenarios import Continual
from fozo.data.sets import open_images
from fozo.data.streams import Stream
from fozo.methods.aligned_fozo import Options

FACTORS = (0.0, 0.5, 1.0, 1.5, 2.0)
CALIBRATION = 512


def picks(logits: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> dict[str, int]:
    """How many images of a batch are recognised: ``logits`` are ``[strengths, images, classes]``."""
    entropy = entropies(logits)
    chances = np.exp(logits - logits.max(axis=2, keepdims=True))
    chances /= chances.sum(axis=2, keepdims=True)
    right = logits.argmax(axis=2) == labels
    each = entropy.argmin(axis=0)
    return {
        **{f"strength x {factor:g}": int(hits.sum()) for factor, hits in zip(FACTORS, right, strict=True)},
        "lowest entropy, each image": int(right[each, np.arange(len(labels))].sum()),
        "lowest entropy, each batch": int(right[entropy.mean(axis=1).argmin()].sum()),
        "mean prediction": int((chances.mean(axis=0).argmax(axis=1) == labels).sum()),
        "best for each batch, by the labels": int(right.sum(axis=1).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("folder", type=Path, metavar="IMAGES")
    parser.add_argument("--kinds", default=",".join(EXTRA_KINDS))
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument("--images", type=int, default=64, help="of each corruption")
    a = parser.parse_args()
    engine = fozo.load_engine(a.weights)
    both = open_images(a.folder).take(CALIBRATION + a.images)
    paths = [sample.path for sample in both.samples]
    order = np.random.default_rng(0).permutation(len(paths))
    clean, test = (both.select([paths[i] for i in part]) for part in (order[:CALIBRATION], order[CALIBRATION:]))
    calibration = Stream(clean, engine.spec, Continual(kinds=("clean",)))
    source = fozo.SourceStatistics.collect(engine, (batch.images for batch in calibration.batches()))
    stream = Stream(test, engine.spec, Continual(kinds=tuple(a.kinds.split(",")), severity=a.severity), batch_size=16)

    plain = Options()
    methods = [
        fozo.FOZO(engine, source, mean=f * plain.mean, spread=f * plain.spread, detail=min(1.0, f * plain.detail))
        for f in FACTORS
    ]
    found: dict[str, int] = {}
    for batch in track(stream.batches(), total=len(stream)):
        logits = np.stack([np.asarray(method(batch.images), dtype=np.float64) for method in methods])
        for name, hits in picks(logits, batch.labels).items():
            found[name] = found.get(name, 0) + hits
    images = a.images * len(a.kinds.split(","))
    for name, hits in found.items():
        print(f"{name:36s} {100 * hits / images:5.1f} %")
    print(f"{engine.spec.name}, {images} images, severity {a.severity}, batches of 16, continual")


if __name__ == "__main__":
    main()
