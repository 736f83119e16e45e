"""How an image looks, in a few numbers that tell corruptions apart before the model has seen the image.

Noise, blur, fog or a change of contrast alter colour and the amount of detail at some scale far more than the content
of a picture does. So the look of an image is the mean of each channel, and the logarithm of the energy of each channel
at each scale of a pyramid that halves the image again and again. About twenty numbers; no model, no labels.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

LEVELS = 5
SMALLEST = 4
"""Halving stops before a side gets shorter than this: too few pixels to measure an energy with."""
FLOOR = 1e-5
"""Added to energies before the logarithm: about what rounding to 8 bits leaves in a normalised image. Without it a
uniform image would be infinitely far from every other one."""


def look(images: npt.NDArray[np.floating]) -> Array:
    """Describe normalised images ``[B, channels, height, width]`` by ``[B, features]``.

    The number of features depends on channels and size only; compare looks of one model's images.
    """
    x: npt.NDArray[np.floating] = np.asarray(images, dtype=np.float32)
    features = [x.mean(axis=(2, 3))]
    for _ in range(LEVELS):
        height, width = x.shape[2] // 2, x.shape[3] // 2
        if min(height, width) < SMALLEST // 2:
            break
        corners = [x[:, :, row : 2 * height : 2, column : 2 * width : 2] for row in (0, 1) for column in (0, 1)]
        coarse = (corners[0] + corners[1] + corners[2] + corners[3]) / 4
        # Summed over the squares of differences: a difference of sums could fall below zero for smooth images.
        detail = sum(np.square(corner - coarse).mean(axis=(2, 3)) for corner in corners)
        features.append(np.log(detail / 4 + FLOOR))
        x = coarse
    features.append(np.log(x.var(axis=(2, 3)) + FLOOR))
    return np.concatenate(features, axis=1).astype(np.float64)
