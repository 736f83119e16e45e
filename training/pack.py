"""Write the files of the bundled sample: the model as ONNX in float32 and INT8, its statistics, 2000 test images.

    python -m training.pack /usr/share/datasets/fashion-mnist vit_fashion.safetensors
    python -m training.pack /usr/share/datasets/fashion-mnist  # the monitor's reference alone, of the model as it is

The statistics are of the first images of the training set; no test image takes part. Prints the accuracy of both models
on all 10,000 test images. The monitor's reference is of 512 test images that are not in the sample, with their labels:
on images that it was trained on, a model is right more often than it will ever be again.
"""

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt

import fozo
from fozo.data import sample
from fozo.io import atomic_write
from fozo.types import Floats
from training.train import MEAN, SHAPE, STD, Bytes, read_idx

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
PER_CLASS = 200
CALIBRATION = 4096
MONITORED = 512
SAMPLE = 64  # images of each corruption and severity
BATCH = 256


def batches(engine: fozo.Engine, images: Bytes) -> list[Floats]:
    """Images as the model reads them."""
    return [engine.spec.normalise(images[i : i + BATCH, ..., None]) for i in range(0, len(images), BATCH)]


def main() -> None:
    """Pack everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder with Zalando's four files")
    parser.add_argument("weights", type=Path, nargs="?", help="what training/train.py wrote")
    options = parser.parse_args()

    images, labels = read_idx(options.data, "t10k")
    chosen = np.sort(np.concatenate([np.flatnonzero(labels == label)[:PER_CLASS] for label in range(len(CLASSES))]))
    if options.weights is not None:
        pack(options.data, options.weights, images, labels, chosen)
    others = np.setdiff1d(np.arange(len(labels)), chosen)[:MONITORED]
    model = sample.MODELS["float32"]
    adapter = fozo.Align(fozo.load_engine(model), sample.statistics(model))
    reference = fozo.Reference.collect(
        adapter, images[others][..., None], labels[others].astype(np.int64), sample=SAMPLE
    )
    reference.save(sample.MONITOR)
    print(f"{sample.MONITOR.name}: {sample.MONITOR.stat().st_size} bytes")


def pack(data: Path, weights: Path, images: Bytes, labels: Bytes, chosen: npt.NDArray[np.int64]) -> None:
    """Write the chosen test images, the models and their statistics."""
    with atomic_write(sample.IMAGES) as stream:
        np.savez_compressed(stream, images=images[chosen], labels=labels[chosen], classes=np.array(CLASSES))

    torch_engine = fozo.load_engine(weights, architecture="vit-fashion", heads=SHAPE.heads, mean=MEAN, std=STD)
    clean = read_idx(data, "train")[0][:CALIBRATION]
    for kind, path in sample.MODELS.items():
        fozo.export(torch_engine, path, int8="dynamic" if kind == "INT8" else None, labels=CLASSES)
        engine = fozo.load_engine(path)
        fozo.calibrate(engine, batches(engine, clean)).save(path.with_suffix(".statistics.safetensors"))
        plain = fozo.NoAdapt(engine)
        right = np.concatenate([plain(batch).argmax(axis=1) for batch in batches(engine, images)]) == labels
        print(f"{kind}: {100 * right.mean():.2f} % of the {len(labels)} test images, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
