"""A frozen detector with and without fozo: boxes before and after, side by side, on a video or a folder.

    python examples/detector.py yolox_nano.onnx CLEAN LIVE OUT

The model is a YOLOX written as ONNX: one square input, BGR of 0..255; a row of offsets and log sizes, objectness and
class scores for each cell of strides 8, 16 and 32. CLEAN and LIVE are folders of images, or videos where OpenCV is
installed; CLEAN is a few dozen frames of the same camera on clear days. For every frame of LIVE a picture goes to OUT:
left what the detector finds on the frame, right what it finds behind ``fozo.adapter``.

For another detector, change ``Detector``: any function of a frame will do, and what it returns comes back unchanged.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from PIL import Image, ImageDraw

import fozo
from fozo.data.images import EXTENSIONS, read_image

Pixels = npt.NDArray[np.uint8]
Boxes = npt.NDArray[np.float64]  # rows of left, top, right, bottom, score, class
STRIDES, PADDING = (8, 16, 32), 114
SCORE, SAME = 0.3, 0.5  # boxes below this score are left out, and so are those that overlap a better one more than SAME


class Detector:
    """YOLOX as a function: a BGR frame in, boxes in its pixels out."""

    def __init__(self, path: Path) -> None:
        self.session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        given = self.session.get_inputs()[0]
        self.name, self.side = given.name, int(given.shape[2])
        counts = [self.side // stride for stride in STRIDES]
        self.grid = np.concatenate([np.mgrid[:n, :n][::-1].reshape(2, -1).T for n in counts])
        self.stride = np.repeat(STRIDES, np.square(counts))[:, None]

    def __call__(self, frame: Pixels) -> Boxes:
        x = frame.transpose(2, 0, 1)[None].astype(np.float32)
        rows = self.session.run(None, {self.name: x})[0][0].astype(np.float64)
        scores = rows[:, 4] * rows[:, 5:].max(axis=1)
        centre, half = (rows[:, :2] + self.grid) * self.stride, np.exp(rows[:, 2:4]) * self.stride / 2
        found = np.column_stack([centre - half, centre + half, scores, rows[:, 5:].argmax(axis=1)])
        found = found[np.argsort(-scores)]
        return suppressed(found[found[:, 4] >= SCORE])


def suppressed(boxes: Boxes) -> Boxes:
    """Boxes without those that overlap a better one of their class."""
    kept: list[Boxes] = []
    for box in boxes:
        for other in kept:
            sides = np.minimum(box[2:4], other[2:4]) - np.maximum(box[:2], other[:2])
            common = np.prod(np.maximum(sides, 0))
            areas = np.prod(box[2:4] - box[:2]) + np.prod(other[2:4] - other[:2])
            if box[5] == other[5] and common > SAME * (areas - common):
                break
        else:
            kept.append(box)
    return np.array(kept).reshape(-1, 6)


def frames(source: Path, side: int) -> Iterator[Pixels]:
    """BGR frames letterboxed to a square: fozo does not take the border for picture."""
    for frame in read(source):
        height, width = (round(length * side / max(frame.shape[:2])) for length in frame.shape[:2])
        square = np.full((side, side, 3), PADDING, dtype=np.uint8)
        square[:height, :width] = np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling.BILINEAR))
        yield np.ascontiguousarray(square[:, :, ::-1])


def read(source: Path) -> Iterator[Pixels]:
    if source.is_dir():
        yield from (read_image(path) for path in sorted(source.iterdir()) if path.suffix.lower() in EXTENSIONS)
        return
    import cv2  # pip install opencv-python-headless

    video = cv2.VideoCapture(str(source))
    while (frame := video.read()[1]) is not None:
        yield np.ascontiguousarray(frame[:, :, ::-1])


def drawn(frame: Pixels, boxes: Boxes) -> Image.Image:
    picture = Image.fromarray(np.ascontiguousarray(frame[:, :, ::-1]))
    pen = ImageDraw.Draw(picture)
    for left, top, right, bottom, score, label in boxes:
        pen.rectangle((left, top, right, bottom), outline=(255, 160, 0), width=2)
        pen.text((left + 3, top + 2), f"{int(label)} {score:.2f}", fill=(255, 255, 255))
    return picture


def main(model: Path, clean: Path, live: Path, out: Path) -> None:
    detector = Detector(model)
    seen: list[Pixels] = []

    def detect(frame: Pixels) -> Boxes:
        seen[:] = [frame]  # as equalised, to be drawn
        return detector(frame)

    adapter = fozo.adapter(detect, frames(clean, detector.side), channels="bgr")
    out.mkdir(parents=True, exist_ok=True)
    for number, frame in enumerate(frames(live, detector.side)):
        before, after = detector(frame), adapter(frame)
        pair = Image.new("RGB", (2 * detector.side, detector.side))
        pair.paste(drawn(frame, before), (0, 0))
        pair.paste(drawn(seen[0], after), (detector.side, 0))
        pair.save(out / f"{number:05}.jpg")
        print(f"frame {number}: {len(before)} boxes, {len(after)} with fozo", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit("usage: python examples/detector.py yolox.onnx CLEAN LIVE OUT")
    main(*map(Path, sys.argv[1:]))
