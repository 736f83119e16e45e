"""Detection for benchmarks: letterboxes, YOLOX's boxes, suppression, and average precision with paired bootstrap.

Boxes are ``[n, 4]``: left, top, right, bottom, in pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from PIL import Image

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Pixels = npt.NDArray[np.uint8]
SIDE = 416
PADDING = 114
STRIDES = (8, 16, 32)
LEAST_SCORE = 0.01
MOST_BOXES = 300
SAME_OVERLAP = 0.65
"""Boxes of a class that overlap more are one."""
RIGHT_OVERLAP = 0.5
"""A box that overlaps a true one so much is right."""


def resized(image: Pixels, side: int = SIDE) -> Pixels:
    """An RGB picture with its longer side at ``side``, as it lies in the letterbox."""
    scale = side / max(image.shape[:2])
    height, width = (round(length * scale) for length in image.shape[:2])
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))


def letterboxed(picture: Pixels, side: int = SIDE) -> Pixels:
    """The picture in the upper left corner of a square, as YOLOX was trained."""
    square = np.full((side, side, 3), PADDING, dtype=np.uint8)
    square[: picture.shape[0], : picture.shape[1]] = picture
    return square


def iou(boxes: Array, others: Array) -> Array:
    """Intersection over union of ``[n, 4]`` and ``[m, 4]``: ``[n, m]``."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    common = np.prod(np.maximum(high - low, 0), axis=2)
    areas = [np.prod(each[:, 2:] - each[:, :2], axis=1) for each in (boxes, others)]
    overlap: Array = common / np.maximum(areas[0][:, None] + areas[1] - common, 1e-9)
    return overlap


@dataclass(frozen=True)
class Boxes:
    """Boxes of one image, best first where they have scores."""

    boxes: Array
    classes: Ints
    scores: Array


class Yolox:
    """YOLOX as an ONNX file: RGB squares ``uint8 [B, 416, 416, 3]`` in, boxes out."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.input = self.session.get_inputs()[0].name
        cells = [np.mgrid[: SIDE // s, : SIDE // s][::-1].reshape(2, -1).T for s in STRIDES]
        self.grid = np.concatenate(cells).astype(np.float64)
        self.stride = np.repeat(STRIDES, [(SIDE // s) ** 2 for s in STRIDES])[:, None].astype(np.float64)

    def __call__(self, squares: Pixels) -> list[Boxes]:
        found = []
        for square in squares:
            bgr = np.ascontiguousarray(square[None, :, :, ::-1].transpose(0, 3, 1, 2), dtype=np.float32)
            found.append(self.read(self.session.run(None, {self.input: bgr})[0][0].astype(np.float64)))
        return found

    def read(self, rows: Array) -> Boxes:
        """Decode ``[cells, 85]``: centre offsets, log sizes, objectness and class scores."""
        scores = rows[:, 4:5] * rows[:, 5:]
        cells, classes = np.nonzero(scores > LEAST_SCORE)
        centre = (rows[cells, :2] + self.grid[cells]) * self.stride[cells]
        half = np.exp(rows[cells, 2:4]) * self.stride[cells] / 2
        return suppress(Boxes(np.hstack([centre - half, centre + half]), classes, scores[cells, classes]))


def suppress(found: Boxes) -> Boxes:
    """Non-maximum suppression within each class: greedily, best first."""
    order = np.argsort(-found.scores, kind="stable")[: 10 * MOST_BOXES]
    boxes = found.boxes[order]
    classes = found.classes[order]
    # Classes are moved apart, so that boxes of two of them never overlap.
    apart = boxes + classes[:, None] * (4.0 * SIDE + np.abs(boxes).max(initial=0))
    left = np.arange(len(order))
    kept: list[int] = []
    while len(left) and len(kept) < MOST_BOXES:
        kept.append(int(left[0]))
        left = left[1:][iou(apart[left[:1]], apart[left[1:]])[0] <= SAME_OVERLAP]
    chosen = np.array(kept, dtype=np.intp)
    return Boxes(boxes[chosen], classes[chosen], found.scores[order][chosen])


def matches(found: Boxes, truth: Boxes) -> npt.NDArray[np.bool_]:
    """Which boxes are right: each true box goes to the best-scored one of its class that overlaps it most."""
    right = np.zeros(len(found.boxes), dtype=bool)
    overlaps = iou(found.boxes, truth.boxes)
    overlaps[found.classes[:, None] != truth.classes[None]] = 0
    for i in range(len(found.boxes)):
        if overlaps.shape[1] and overlaps[i].max() >= RIGHT_OVERLAP:
            right[i] = True
            overlaps[:, overlaps[i].argmax()] = 0
    return right


def average_precision(found: Sequence[Boxes], truth: Sequence[Boxes], classes: Sequence[int], draws: Ints) -> Array:
    """AP50 averaged over classes, by all-point interpolation, of each draw ``[draws, images]`` of images.

    A draw counts how often each image is in it; a class without true boxes in a draw is left out of its mean.
    """
    weights = draws.astype(np.float64)
    right = [matches(*pair) for pair in zip(found, truth, strict=True)]
    image = np.repeat(np.arange(len(found)), [len(each.boxes) for each in found])
    labels, scores = (np.concatenate([getattr(each, name) for each in found]) for name in ("classes", "scores"))
    hit = np.concatenate(right)
    each_class = []
    for label in classes:
        true = weights @ np.array([np.count_nonzero(each.classes == label) for each in truth])
        rows = np.flatnonzero(labels == label)
        rows = rows[np.argsort(-scores[rows], kind="stable")]
        drawn = weights[:, image[rows]]
        good = np.cumsum(drawn * hit[rows], axis=1)
        precision = good / np.maximum(np.cumsum(drawn, axis=1), 1e-9)
        envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        gained = np.diff(good, axis=1, prepend=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            each_class.append(np.where(true > 0, (gained * envelope).sum(axis=1) / true, np.nan))
    mean: Array = 100 * np.nanmean(np.array(each_class), axis=0)
    return mean


def drawn(images: int, draws: int, seed: int = 0) -> Ints:
    """How often each image is in the whole set (first row), and in every bootstrap draw."""
    rng = np.random.default_rng(seed)
    return np.concatenate([np.ones((1, images), np.intp), rng.multinomial(images, np.full(images, 1 / images), draws)])


def read_labelled(path: Path) -> tuple[Pixels, Boxes]:
    """An image at the detector's scale, and the boxes of the ``.txt`` file beside it on that scale."""
    with Image.open(path) as file:
        picture = resized(np.asarray(file.convert("RGB")))
    rows = (
        np.loadtxt(path.with_suffix(".txt"), ndmin=2) if path.with_suffix(".txt").stat().st_size else np.zeros((0, 5))
    )
    size = np.array(picture.shape[1::-1], dtype=np.float64)
    centre = rows[:, 1:3] * size
    half = rows[:, 3:5] * size / 2
    return picture, Boxes(np.hstack([centre - half, centre + half]), rows[:, 0].astype(np.intp), np.ones(len(rows)))
