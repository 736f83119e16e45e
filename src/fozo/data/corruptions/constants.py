"""The published constants of ImageNet-C, CIFAR-C and Tiny-ImageNet-C.

Facts from ``make_imagenet_c.py``, ``make_tinyimagenet_c.py`` and ``make_cifar_c.py`` of hendrycks/robustness
(Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
ICLR 2019). ``CONSTANTS[kind][scale][severity - 1]`` is a tuple of numbers, whose meaning the function of that
kind gives; ``scale`` is the side in pixels of the images that they were chosen for.
"""

from __future__ import annotations

Constants = tuple[float, ...]

SCALES = (32, 64, 224)


def _singles(*values: float) -> tuple[Constants, ...]:
    return tuple((value,) for value in values)


CONSTANTS: dict[str, dict[int, tuple[Constants, ...]]] = {
    # standard deviation
    "gaussian_noise": {
        224: _singles(0.08, 0.12, 0.18, 0.26, 0.38),
        64: _singles(0.04, 0.08, 0.12, 0.15, 0.18),
        32: _singles(0.04, 0.06, 0.08, 0.09, 0.10),
    },
    # photons at full brightness
    "shot_noise": {
        224: _singles(60, 25, 12, 5, 3),
        64: _singles(250, 100, 50, 30, 15),
        32: _singles(500, 250, 100, 75, 50),
    },
    # share of values replaced
    "impulse_noise": {
        224: _singles(0.03, 0.06, 0.09, 0.17, 0.27),
        64: _singles(0.01, 0.02, 0.05, 0.08, 0.14),
        32: _singles(0.01, 0.02, 0.03, 0.05, 0.07),
    },
    # radius of the disk, standard deviation of its antialiasing
    "defocus_blur": {
        224: ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        64: ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
        32: ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    },
    # standard deviation of the blur, largest displacement, rounds
    "glass_blur": {
        224: ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
        64: ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
        32: ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    },
    # radius, standard deviation of the line
    "motion_blur": {
        224: ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
        64: ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
        32: ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    },
    # end and step of the range of zoom factors, which starts at 1
    "zoom_blur": {
        224: ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
        64: ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        32: ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    },
    # mean and standard deviation of the flakes, their zoom, threshold, blur radius, blur standard deviation,
    # share of the image that is not whitened
    "snow": {
        224: (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
        64: (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
        ),
        32: (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    },
    # weight of the image, weight of the frost, shrinking of the frost texture
    "frost": {
        224: ((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
        64: ((1, 0.3, 0.3), (0.9, 0.4, 0.3), (0.8, 0.45, 0.3), (0.75, 0.5, 0.3), (0.7, 0.55, 0.3)),
        32: ((1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)),
    },
    # thickness, decay of the roughness from one level of the fractal to the next
    "fog": {
        224: ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
        64: ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
        32: ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    },
    # added to the value of HSV
    "brightness": {
        224: _singles(0.1, 0.2, 0.3, 0.4, 0.5),
        64: _singles(0.1, 0.2, 0.3, 0.4, 0.5),
        32: _singles(0.05, 0.1, 0.15, 0.2, 0.3),
    },
    # factor about each channel's mean
    "contrast": {
        224: _singles(0.4, 0.3, 0.2, 0.1, 0.05),
        64: _singles(0.4, 0.3, 0.2, 0.1, 0.05),
        32: _singles(0.75, 0.5, 0.4, 0.3, 0.15),
    },
    # amplitude, smoothness and shift of the corners, as shares of the side. The published program has 244
    # where it means 224; that is what made ImageNet-C, so it stays.
    "elastic_transform": {
        224: tuple(
            (244 / 224 * amplitude, 244 / 224 * smoothness, 244 / 224 * shift)
            for amplitude, smoothness, shift in (
                (2, 0.7, 0.1),
                (2, 0.08, 0.2),
                (0.05, 0.01, 0.02),
                (0.07, 0.01, 0.02),
                (0.12, 0.01, 0.02),
            )
        ),
        64: ((0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03), (0.16, 0.03, 0.02)),
        32: ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    },
    # share of the resolution that is kept
    "pixelate": {
        224: _singles(0.6, 0.5, 0.4, 0.3, 0.25),
        64: _singles(0.9, 0.8, 0.7, 0.6, 0.5),
        32: _singles(0.95, 0.9, 0.85, 0.75, 0.65),
    },
    # quality
    "jpeg_compression": {
        224: _singles(25, 18, 15, 10, 7),
        64: _singles(65, 58, 50, 40, 25),
        32: _singles(80, 65, 58, 50, 40),
    },
    # standard deviation, relative to the value
    "speckle_noise": {
        224: _singles(0.15, 0.2, 0.35, 0.45, 0.6),
        64: _singles(0.15, 0.2, 0.25, 0.3, 0.35),
        32: _singles(0.06, 0.1, 0.12, 0.16, 0.2),
    },
    # standard deviation
    "gaussian_blur": {
        224: _singles(1, 2, 3, 4, 6),
        64: _singles(0.5, 0.75, 1, 1.25, 1.5),
        32: _singles(0.4, 0.6, 0.7, 0.8, 1),
    },
    # mean and standard deviation of the liquid, its smoothness, threshold, strength (water) or smoothness
    # of the edge (mud), and 1 for mud
    "spatter": {
        224: (
            (0.65, 0.3, 4, 0.69, 0.6, 0),
            (0.65, 0.3, 3, 0.68, 0.6, 0),
            (0.65, 0.3, 2, 0.68, 0.5, 0),
            (0.65, 0.3, 1, 0.65, 1.5, 1),
            (0.67, 0.4, 1, 0.65, 1.5, 1),
        ),
        64: (
            (0.62, 0.1, 0.7, 0.7, 0.6, 0),
            (0.65, 0.1, 0.8, 0.7, 0.6, 0),
            (0.65, 0.3, 1, 0.69, 0.6, 0),
            (0.65, 0.1, 0.7, 0.68, 0.6, 1),
            (0.65, 0.1, 0.5, 0.67, 0.6, 1),
        ),
        32: (
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
    },
    # factor and offset of the saturation of HSV
    "saturate": {
        224: ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
        64: ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)),
        32: ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    },
}
