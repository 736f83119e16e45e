"""Adapt to a camera as it runs: frames from a folder or a video, no PyTorch, one line for each batch.

    fozo export vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors -o model.onnx
    python examples/camera.py model.onnx CLEAN_FRAMES LIVE_FRAMES

CLEAN_FRAMES are a hundred or more frames from when all was well; they are read once, and their statistics kept beside
the model. The shift score says how far the plain model's features of a batch are from them: about 1 for independent
clean frames, more as the world drifts. It costs a third pass beside FOZO's two; leave it out where it does not matter.
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
        fozo.SourceStatistics.collect(engine, batches(clean, engine.spec)).save(kept)
    source = fozo.SourceStatistics.load(kept)
    adapter = fozo.FOZO(engine, source, passes=2, seed=0)
    for number, images in enumerate(batches(live, engine.spec)):
        tokens = engine.embed(images)
        top = int(np.bincount(adapter.adapt(tokens).argmax(axis=1)).argmax())
        drift = (engine.run(tokens).pooled[0].mean(axis=0) - source.pooled.mean) / source.pooled.std
        name = engine.spec.labels[top] if engine.spec.labels else f"class {top}"
        print(f"batch {number}: shift {len(images) * np.mean(drift**2):7.2f}   {name}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*map(Path, sys.argv[1:]))
