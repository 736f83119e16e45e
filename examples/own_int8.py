"""Adapt an INT8 model that you quantised yourself: fozo runs it as it is, and never quantises it again.

    fozo export WEIGHTS -o model.onnx                 # float32, with prompts as an input
    python examples/own_int8.py model.onnx CLEAN LIVE # quantises with ONNX Runtime's own tool, then adapts

The quantiser in the middle is yours: here it is ``quantize_dynamic`` with its defaults, but any tool that keeps the
graph's inputs, outputs and metadata will do. That is the path that works. What does not, and why, is in
docs/edge.md: modules of torch.ao and torchao, and INT8 files of Optimum, have no input for prompts.
"""

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnxruntime.quantization import QuantType, quantize_dynamic

import fozo
from fozo.data.images import EXTENSIONS, fit, read_image

BATCH = 16


def batches(folder: Path, spec: fozo.Spec) -> Iterator[npt.NDArray[np.float32]]:
    """All images below a folder by name, as the model reads them, ``BATCH`` at a time."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in EXTENSIONS)
    images = (fit(read_image(path), spec.image_size) for path in paths)
    while batch := list(islice(images, BATCH)):
        yield spec.normalise(np.stack(batch))


def main() -> None:
    """Quantise, calibrate on clean images, adapt to live ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="what fozo export wrote")
    parser.add_argument("clean", type=Path, help="folder of clean images")
    parser.add_argument("live", type=Path, help="folder of images from where the model is used")
    options = parser.parse_args()

    int8 = options.model.with_suffix(".int8.onnx")
    # reduce_range: without it, processors that lack VNNI overflow silently.
    quantize_dynamic(options.model, int8, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8)

    engine = fozo.load_engine(int8)
    # An INT8 model is a model of its own: statistics of the float32 one are refused.
    statistics = fozo.calibrate(engine, batches(options.clean, engine.spec))
    adapter = fozo.adapter(engine, statistics)
    for number, images in enumerate(batches(options.live, engine.spec)):
        classes = np.argmax(adapter(images), axis=1)
        print(f"batch {number}: classes {' '.join(map(str, classes))}")
    before, after = options.model.stat().st_size, int8.stat().st_size
    print(f"{before / 1e6:.2f} MB in float32, {after / 1e6:.2f} MB in INT8")


if __name__ == "__main__":
    main()
