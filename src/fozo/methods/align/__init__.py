"""Align, fozo's own method: an equaliser on the image and moves of the tokens, by memories of the same domain.

``method`` has the loop, docs/method.md the mathematics.
"""

from fozo.methods.align.method import Align, AlignConfig

__all__ = ["Align", "AlignConfig"]
