"""Can Align's strengths be searched at test time? What an objective would pick, and what it could pick.

    python -m benchmarks.strengths WEIGHTS IMAGES [--images 64] [--severity 5] [--kinds speckle_noise,...]

The same stream through Align at several strengths (of its moves and its equaliser alike), each with memories of its
own. Then, from their predictions: the strength of the lowest entropy for each image, for each batch (what a search over
strengths would do at the price of a pass for each, driven by the paper's entropy), their mean prediction, and an
oracle: for each batch the strength that its labels would pick.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.progress import track

import fozo
from benchmarks.common import clean_and_test, clean_batches
from fozo.core.objective import entropies
from fozo.data.corruptions import EXTRA_KINDS
from fozo.data.scenarios import Continual
from fozo.methods.align import AlignConfig
from fozo.types import Array

FACTORS = (0.0, 0.5, 1.0, 1.5, 2.0)
CALIBRATION = 512


def picks(logits: Array, labels: npt.NDArray[np.int64]) -> dict[str, int]:
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
        "oracle, each batch": int(right.sum(axis=1).max()),
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
    clean, test = clean_and_test(a.folder, CALIBRATION, a.images)
    source = fozo.calibrate(engine, clean_batches(clean, engine.spec))
    scenario = Continual(kinds=tuple(a.kinds.split(",")), severity=a.severity)
    stream = fozo.Stream(test, engine.spec, scenario, batch_size=16)

    usual = AlignConfig()
    methods = [
        fozo.Align(
            engine,
            source,
            mean_strength=factor * usual.mean_strength,
            std_strength=factor * usual.std_strength,
            equaliser_strength=min(1.0, factor * usual.equaliser_strength),
        )
        for factor in FACTORS
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
