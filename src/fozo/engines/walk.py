"""Passes that stop between blocks, for methods that move all tokens on the way (PEA)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from fozo.core.moments import TokenMoments
from fozo.types import Array, Batch, Engine, Taps


@dataclass(frozen=True)
class MatrixMove:
    """A move ``token @ matrix + shift`` of every token."""

    matrix: Array
    """``[d, d]``."""
    shift: Array
    """``[d]``."""


Visit: TypeAlias = Callable[[int, TokenMoments], "MatrixMove | None"]  # a block, and moments of tokens that leave it


@runtime_checkable
class BlockEngine(Engine, Protocol):
    """An engine that can stop between blocks."""

    def walk(self, batch: Batch, visit: Visit) -> Taps:
        """Run one pass over the whole batch block by block, and report ``POOLED`` and ``LOGITS``.

        After each block ``visit`` gets the moments of all tokens of all images, and returns a move or ``None``.
        """
