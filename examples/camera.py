"""Adapt to a camera as it runs: frames from a folder or a video, no PyTorch, one line for each batch.

    fozo export vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors -o model.onnx
    python examples/camera.py model.onnx CLEAN_FRAMES LIVE_FRAMES

CLEAN_FRAMES are a hundred or more frames from when all was well; they are read once, and their statistics kept beside
the model. The shift score says how far a batch looks from them: about 1 for independent clean frames, more as the world
drifts. It needs no pass of its own, so all of this costs one forward pass a frame.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

import fozo
from fozo.data.images import EXTENSIONS, fit, read_image

BATCH = 16


def frames(source: Path) -> Iterator[npt.NDArray[np.uint8]]:
    """Frames ``[height, width, 3]`` of a folder by name, or of a video where OpenCV is installed."""
    if source.is_dir():
        yield from (read_image(path) for path in sorted(source.iterdir()) if path.suffix.lower() in EXTENSIONS)
        return
    import cv2  # pip install opencv-python-headless

    video = cv2.VideoCapture(str(source))
    while (frame := video.read()[1]) is not None:
        yield np.asarray(frame[:, :, ::-1], dtype=np.uint8)  # OpenCV's blue comes first


def batches(source: Path, spec: fozo.Spec) -> Iterator[npt.NDArray[np.float32]]:
    """Frames as the model reads them, ``BATCH`` at a time; the last batch may be smaller."""
    cropped = (fit(frame, spec.image_size) for frame in frames(source))
    while batch := list(islice(cropped, BATCH)):
        yield spec.normalise(np.stack(batch))


def main(model: Path, clean: Path, live: Path) -> None:
    """Calibrate once, then adapt batch by batch."""
    engine = fozo.load_engine(model)
    kept = model.with_suffix(".statistics.npz")
    if not kept.exists():
        fozo.calibrate(engine, batches(clean, engine.spec)).save(kept)
    adapter = fozo.adapter(engine, kept)
    for number, images in enumerate(batches(live, engine.spec)):
        top = int(np.bincount(adapter(images).argmax(axis=1)).argmax())
        name = engine.spec.labels[top] if engine.spec.labels else f"class {top}"
        print(f"batch {number}: shift {adapter.metrics()['shift']:7.2f}   {name}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*map(Path, sys.argv[1:]))
