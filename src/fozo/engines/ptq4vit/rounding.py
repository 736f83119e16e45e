"""Rounding to a grid of 2^b levels and back: what an integer kernel would see, computed in floating point."""

from __future__ import annotations

from torch import Tensor

GELU_DEPTH = 0.16997124254703522  # minus GELU's minimum, as published; its tanh and quick forms have 0.1700 and 0.1636


def levels(bits: int) -> int:
    """Count the levels on one side of zero: 128 for 8 bits, of which the highest is not reached from below."""
    return 1 << (bits - 1)


def uniform(x: Tensor, step: Tensor, side: int) -> Tensor:
    """Round to multiples of ``step`` from ``-side`` to ``side - 1``."""
    return (x / step).round_().clamp_(-side, side - 1).mul_(step)


def after_gelu(x: Tensor, step: Tensor, side: int) -> Tensor:
    """Twin ranges for GELU: a fixed fine step below zero, where all values are small, and ``step`` above."""
    steps = step.where(x >= 0, step.new_tensor(GELU_DEPTH / side))
    return (x / steps).round_().clamp_(-side, side - 1).mul_(steps)


def after_softmax(x: Tensor, split: Tensor, side: int) -> Tensor:
    """Twin ranges for probabilities: ``side - 1`` steps up to ``split``, and as many up to one.

    As published, the two parts are added: a value above ``split`` gets the full lower range on top, and one below it
    the rounded ``split``. The search sees that and keeps ``split`` small.
    """
    top = side - 1
    high = x.maximum(split).mul_(top).round_().div_(top)
    step = split / top
    return (x.minimum(split) / step).round_().mul_(step).add_(high)
