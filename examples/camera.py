"""Adapt to a camera as it runs: frames from a folder or a video, no PyTorch, one line for each batch.

    fozo export vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors -o model.onnx
    python examples/camera.py model.onnx CLEAN_FRAMES LIVE_FRAMES

CLEAN_FRAMES is a folder of a few dozen frames of this camera from when all was well; they are read once, and their
statistics kept beside them. The shift score says how far a batch looks from them: about 1 for independent clean frames,
more as the world drifts. It needs no pass of its own, so all of this costs one forward pass a frame.

However the loop ends, by Ctrl-C too, what was adapted is saved (LIVE_FRAMES.state), and the next start goes on with
it. One adapter for each camera: two cameras that share one would adapt to each other's weather.
"""

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

import fozo
from fozo.data.images import EXTENSIONS, read_image

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


def main(model: Path, clean: Path, live: Path) -> None:
    """Calibrate once, then adapt batch by batch."""
    engine = fozo.load_engine(model)
    kept, state = clean.with_name(f"{clean.name}.statistics.safetensors"), live.with_name(f"{live.name}.state")
    if not kept.exists():
        fozo.calibrate(engine, clean).save(kept)
    adapter = fozo.adapter(engine, kept)
    if state.exists():
        adapter.restore(state)
    source = frames(live)
    try:
        for number, batch in enumerate(iter(lambda: list(islice(source, BATCH)), [])):
            names = adapter.names(adapter(batch))  # pixels of any size: resized, cropped and normalised for the model
            seen = max(names, key=names.count)
            print(f"batch {number}: shift {adapter.metrics()['shift']:7.2f}   {seen}", flush=True)
    finally:
        adapter.save(state)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*map(Path, sys.argv[1:]))
