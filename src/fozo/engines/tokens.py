"""What tokens mean, found by running a model: for graphs and modules that nobody described to fozo."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fozo.errors import FozoError
from fozo.types import Batch, Engine, Floats, Knobs, Move, Tap, Taps

LEAST_CHANGE = 1e-3
"""What a change of the input moves by less than this part of the largest change counts as unchanged: where INT8 ranges
are measured in every call, everything moves a little."""
PIXELS = 8  # drawn at random, beside the corners


NOT_A_TRANSFORMER = "so it is not a transformer"
"""In the reasons for models that have no tokens to be found: another file of them would not have any either."""


class NoTokensError(FozoError):
    """Why the tokens of a model were not found."""


class NotRunError(NoTokensError):
    """The model raised an error of its own."""


@dataclass(frozen=True)
class Layout:
    """Which token shows which patch of the image."""

    prefix: int
    """How many tokens stand before the patches."""
    grid: tuple[int, int]
    """Rows and columns of patches."""
    tokens: Floats
    """``[B, T, d]`` of the first image."""


def find_layout(tokens_of: Callable[[Floats], Floats], image: Floats, other: Floats) -> Layout:
    """Find where patches are, by changing single pixels: each has to change exactly one token.

    Args:
        tokens_of: gives the tokens that enter the first block.
        image: a batch ``[B, channels, height, width]``, of which the first image is looked at.
        other: another one, to which the tokens before the patches have to be the same.
    """
    tokens = tokens_of(image)
    height, width = image.shape[2:]

    def touched(row: int, column: int) -> int:
        different = image.copy()
        different[0, :, row, column] -= 2 * np.sign(different[0, :, row, column])
        indices = _changed(tokens_of(different)[0], tokens[0])
        if len(indices) != 1:
            raise NoTokensError(f"one pixel changes {len(indices)} of the tokens that enter its first block, not one")
        return indices[0]

    prefix = touched(0, 0)
    columns = touched(0, width - 1) - prefix + 1
    count = len(tokens[0]) - prefix
    rows = count // columns if columns > 0 else 0
    if rows < 1 or rows * columns != count or height % rows or width % columns:
        raise NoTokensError(f"its {count} patches are not a grid over images of {height}x{width}")
    numbers = np.random.Generator(np.random.Philox(1))
    pixels = numbers.integers(0, (height, width), (PIXELS, 2)).tolist()
    for row, column in [*pixels, (height - 1, width - 1), (height - 1, 0)]:
        expected = prefix + row * rows // height * columns + column * columns // width
        if touched(row, column) != expected:
            raise NoTokensError("its tokens are not the patches of the image, row by row")
    if _changed(tokens_of(other)[0], tokens[0]) != list(range(prefix, len(tokens[0]))):
        raise NoTokensError("its tokens before the patches depend on the image")
    return Layout(prefix, (rows, columns), tokens)


def check_reach(engine: Engine, batch: Batch, taps: Taps) -> None:
    """Raise :class:`NoTokensError` unless a move reaches exactly the blocks after it; ``taps`` are without moves."""
    depth = engine.spec.depth
    dim = engine.spec.dim
    deviations = np.sqrt(taps[Tap.PATCH_VARIANCE][0, 0].mean(axis=-1))
    numbers = np.random.Generator(np.random.Philox(4))
    shift = np.zeros((depth, 1, depth, dim), np.float32)
    for block in range(depth):
        shift[block, 0, block] = deviations[block] * numbers.standard_normal(dim)
    moved = engine.run(batch, Knobs(patches=Move(np.ones_like(shift), shift)), (Tap.PATCH_MEAN,))[Tap.PATCH_MEAN]
    difference = np.abs(moved - taps[Tap.PATCH_MEAN])[:, 0].max(axis=-1)  # [moved block, tap]
    if not np.array_equal(difference > LEAST_CHANGE * deviations, np.triu(np.ones((depth, depth), bool), 1)):
        raise NoTokensError("a move does not reach exactly the blocks after it")


def _changed(tokens: Floats, before: Floats) -> list[int]:
    """Which of ``[T, d]`` changed."""
    difference = np.abs(tokens.astype(np.float64) - before).max(axis=1)
    return [int(index) for index in np.flatnonzero(difference > LEAST_CHANGE * max(difference.max(), 1e-12))]
