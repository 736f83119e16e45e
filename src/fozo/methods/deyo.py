"""DeYO: entropy is not enough, destroy your object (Lee et al., ICLR 2024).

Besides having low entropy, a prediction must rest on the object's shape: shuffling the image's patches has to lower its
probability (PLPD, the pseudo-label probability difference). Both measures also weigh the images. LayerNorms of all
but the last quarter of the blocks (0-8 of 12) are adapted.

What differs from the authors' program: the FOZO paper, whose values are the defaults here, states the two entropy
margins the other way round and another learning rate; the preset ``official`` has the authors' values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from fozo.core.noise import Purpose, check_seed, generator
from fozo.engines.blackbox import to_numpy
from fozo.errors import FozoError
from fozo.methods.common.layernorm import Descent, DescentState, GradientMethod, LayerNorms, entropy
from fozo.methods.common.options import positive, sweep
from fozo.methods.method import Result
from fozo.methods.registry import register

if TYPE_CHECKING:
    from torch import Tensor

Permutations = Callable[[int, int, int], npt.NDArray[np.int64]]  # of (step, images, pieces): new piece k is old p[k]


@dataclass(frozen=True)
class DeYOConfig(Descent):
    """Everything about DeYO that can be chosen. The defaults are the FOZO paper's."""

    rate: float = 2.5e-4
    """Learning rate for batches of 64."""
    e_margin: float = 0.4
    """tau_Ent of Eq. 6 as a share of ln(classes): images of lower entropy are kept."""
    e_reference: float = 0.5
    """Ent_0 of Eq. 8 as a share of ln(classes): images of lower entropy weigh more."""
    plpd_threshold: float = 0.2
    """tau_PLPD of Eq. 6: how much probability the shuffle has to take away."""
    pieces: int = 4
    """The image is cut into this many pieces each way."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("deyo", e_margin=self.e_margin, e_reference=self.e_reference, pieces=self.pieces)


@dataclass(frozen=True)
class DeYOState(DescentState):
    """Norms, momentum, and the number of batches, which is the address of the shuffles."""

    batches: int = 0


@register(
    "deyo", passes="2, and 1 backward", adapts="LayerNorm weights and biases of the lower blocks",
    paper="Lee et al., ICLR 2024", needs={"torch", "gradient"}, draws=True,
    tuning=sweep("rate", 2.5e-4, 6.25e-5, 1e-3, 4e-3),
)  # fmt: skip
class DeYO(GradientMethod[DeYOConfig, DeYOState]):
    """Entropy minimisation on predictions that rest on the object's shape.

    ``permutations`` gives shuffles to use instead of seeded ones.
    """

    EXTRAS: ClassVar = ("permutations",)
    PRESETS: ClassVar = {"paper": DeYOConfig(), "official": DeYOConfig(rate=1e-3, e_margin=0.5, e_reference=0.4)}
    LOWER_BLOCKS = True

    def prepare(self) -> None:
        image_size = self.engine.spec.image_size
        pieces = self.config.pieces
        if min(image_size) < pieces:
            raise FozoError(f"deyo: an image of {image_size} has no {pieces} pieces each way; use fewer")
        super().prepare()
        self._permutations: Permutations = self._extras["permutations"] or Shuffles(self.seed)
        self._margin = self._entropy_share(self.config.e_margin)
        self._reference = self._entropy_share(self.config.e_reference)

    def init(self) -> DeYOState:
        return DeYOState(norms=self._start, velocity=np.zeros_like(self._start))

    def learn(self, state: DeYOState, norms: LayerNorms, images: Tensor) -> Result[DeYOState]:
        import torch

        pieces = self.config.pieces
        logits = norms.logits(images)
        entropies = entropy(logits)
        order = self._permutations(state.batches, len(images), pieces**2)
        counted = replace(state, batches=state.batches + 1)
        nothing_learnt = Result(to_numpy(logits), counted, passes=2.0)
        kept = (entropies < self._margin).nonzero()[:, 0]
        if not len(kept):
            return nothing_learnt
        with torch.no_grad():
            shuffled = shuffle(images[kept], torch.from_numpy(order).to(kept)[kept], pieces)
            label = logits[kept].argmax(dim=1, keepdim=True)
            before = logits[kept].softmax(dim=1).gather(1, label)[:, 0]
            after = norms.logits(shuffled).softmax(dim=1).gather(1, label)[:, 0]
            difference = before - after  # Eq. 3: PLPD
        chosen = difference > self.config.plpd_threshold
        if not bool(chosen.any()):
            return nothing_learnt
        selected = entropies[kept[chosen]]  # Eq. 6
        weight = (self._reference - selected.detach()).exp() + difference[chosen].exp()  # Eq. 8
        loss = (weight * selected).mean()  # Eq. 7
        learnt = self._descend(counted, norms.gradients(loss))
        return Result(to_numpy(logits), learnt, {"loss": loss.item()}, passes=2.0)


class Shuffles:
    """The standard permutations: always the same for the same seed and batch."""

    def __init__(self, seed: int) -> None:
        check_seed(seed)
        self.seed = seed

    def __call__(self, step: int, images: int, pieces: int) -> npt.NDArray[np.int64]:
        order = generator(self.seed, Purpose.SHUFFLES, step).random((images, pieces)).argsort(axis=1)
        return order.astype(np.int64)


def shuffle(images: Tensor, order: Tensor, pieces: int) -> Tensor:
    """Reorder the ``pieces * pieces`` pieces of each image ``[B, c, h, w]`` by ``order`` ``[B, pieces^2]``.

    A size that cannot be cut evenly is scaled down a little for it and back up again, as in the authors' program.
    """
    from torch.nn.functional import interpolate

    batch, channels, height, width = images.shape
    piece_height = height // pieces
    piece_width = width // pieces
    even_size = (piece_height * pieces, piece_width * pieces)
    is_even = even_size == (height, width)
    if not is_even:
        images = interpolate(images, even_size, mode="bilinear", antialias=True)
    grid = images.reshape(batch, channels, pieces, piece_height, pieces, piece_width).permute(0, 2, 4, 1, 3, 5)
    rows = grid.reshape(batch, pieces * pieces, channels, piece_height, piece_width)
    index = order[:, :, None, None, None].expand(-1, -1, channels, piece_height, piece_width)
    mixed_grid = rows.gather(1, index).reshape(batch, pieces, pieces, channels, piece_height, piece_width)
    mixed = mixed_grid.permute(0, 3, 1, 4, 2, 5).reshape(batch, channels, *even_size)
    return mixed if is_even else interpolate(mixed, (height, width), mode="bilinear", antialias=True)
