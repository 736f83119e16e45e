"""Align, fozo's own method: an equaliser on the image and moves of the tokens, by memories of the same domain.

``method`` has the loop; ``memory`` finds earlier images of the same domain, ``equaliser`` amplifies what their domain
lacks, ``targets`` says where clean tokens of the same content are, ``moves`` takes them there. docs/method.md has the
mathematics.
"""

from fozo.methods.align.config import AlignConfig
from fozo.methods.align.method import Align

__all__ = ["Align", "AlignConfig"]
