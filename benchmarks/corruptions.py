"""Time every corruption at 224 px on one core, and glass blur against the published loop.

    python benchmarks/corruptions.py

Needs ``pip install 'fozo[bench]'``.
"""

from __future__ import annotations

import os

# Before NumPy starts its threads.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import time
from collections.abc import Callable
from functools import partial

import cv2
import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter
from skimage.data import astronaut

from fozo.data.corruptions import EXTRA_KINDS, KINDS, corrupt
from fozo.data.corruptions.constants import CONSTANTS
from fozo.data.images import resize_crop

Pixels = npt.NDArray[np.uint8]


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    """Median time of a call, after one to warm up."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1000 * float(np.median(times))


def loop_glass_blur(image: Pixels, severity: int, rng: np.random.Generator) -> Pixels:
    """The published definition of glass blur, pixel by pixel."""
    sigma, reach, rounds = CONSTANTS["glass_blur"][224][severity - 1]
    reach = int(reach)
    x = (gaussian_filter(image / 255, (sigma, sigma, 0), mode="nearest") * 255).astype(np.uint8)
    height, width = x.shape[:2]
    for _ in range(int(rounds)):
        for h in range(height - reach, reach, -1):
            for w in range(width - reach, reach, -1):
                dx, dy = rng.integers(-reach, reach, size=2)
                x[h, w], x[h + dy, w + dx] = x[h + dy, w + dx], x[h, w]
    blurred: Pixels = (gaussian_filter(x / 255, (sigma, sigma, 0), mode="nearest") * 255).astype(np.uint8)
    return blurred


def main() -> None:
    cv2.setNumThreads(1)
    image = resize_crop(astronaut(), 224)  # type: ignore[no-untyped-call]
    print("ms per image at 224 px, one core     1      2      3      4      5")
    for kind in KINDS + EXTRA_KINDS:
        row = [milliseconds(partial(corrupt, image, kind, s, 0), repeats=9) for s in range(1, 6)]
        print(f"{kind:30}" + "".join(f"{value:7.1f}" for value in row))
    for severity in (2, 5):
        ours = milliseconds(partial(corrupt, image, "glass_blur", severity, 0), repeats=9)
        loop = milliseconds(partial(loop_glass_blur, image, severity, np.random.default_rng(0)), repeats=1)
        print(
            f"glass_blur {severity}: the published loop takes {loop:.0f} ms, {loop / ours:.0f} times as long"
        )


if __name__ == "__main__":
    main()
