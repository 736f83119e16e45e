"""DeYO: entropy is not enough, destroy your object (Lee et al., ICLR 2024).

Besides having low entropy, a prediction must rest on the object's shape: shuffling the image's patches has to lower its
probability (PLPD, the pseudo-label probability difference). Both measures also weigh the images. LayerNorms of all
but the last quarter of the blocks (0-8 of 12) are adapted.

What differs from the authors' program: the FOZO paper, whose values are the defaults here, states the two entropy
margins the other way round and another learning rate; the preset ``official`` has the authors' values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from fozo.core.noise import Purpose, generator
from fozo.errors import FozoError
from fozo.methods.common.layernorm import Descent, GradientMethod, entropy
from fozo.methods.common.options import positive, sweep
from fozo.methods.registry import register

if TYPE_CHECKING:
    from torch import Tensor

Permutations = Callable[[int, int, int], npt.NDArray[np.int64]]  # of (step, images, pieces): new piece k is old p[k]


@dataclass(frozen=True)
class DeYOConfig(Descent):
    """Everything about DeYO that can be chosen. The defaults are the FOZO paper's."""

    rate: float = 2.5e-4
    e_margin: float = 0.4  # tau_Ent of Eq. 6 as a share of ln(classes): images of lower entropy are kept
    e_reference: float = 0.5  # Ent_0 of Eq. 8 as a share of ln(classes): images of lower entropy weigh more
    plpd_threshold: float = 0.2  # tau_PLPD of Eq. 6: how much probability the shuffle has to take away
    pieces: int = 4  # The image is cut into this many pieces each way

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("deyo", e_margin=self.e_margin, e_reference=self.e_reference, pieces=self.pieces)


@register(
    "deyo", passes="2, and 1 backward", adapts="LayerNorm weights and biases of the lower blocks",
    paper="Lee et al., ICLR 2024", needs={"torch", "gradient"}, draws=True,
    tuning=sweep("rate", 2.5e-4, 6.25e-5, 1e-3, 4e-3),
)  # fmt: skip
class DeYO(GradientMethod[DeYOConfig]):
    """Entropy minimisation on predictions that rest on the object's shape.

    ``permutations`` gives shuffles to use instead of seeded ones.
    """

    EXTRAS: ClassVar = ("permutations",)
    STATE: ClassVar = ("index",)
    PRESETS: ClassVar = {"paper": DeYOConfig(), "official": DeYOConfig(rate=1e-3, e_margin=0.5, e_reference=0.4)}
    LOWER_BLOCKS = True
    passes_per_image = 2.0

    def prepare(self) -> None:
        spec, pieces = self.engine.spec, self.config.pieces
        if min(spec.image_size) < pieces:
            raise FozoError(f"deyo: an image of {spec.image_size} has no {pieces} pieces each way; use fewer")
        super().prepare()
        generator(self.seed, Purpose.SHUFFLES)  # refuses a bad seed now
        self.permutations: Permutations = self.extras["permutations"] or self._permutations
        self.margin = self.entropy_share(self.config.e_margin)
        self.reference = self.entropy_share(self.config.e_reference)

    def _permutations(self, step: int, images: int, pieces: int) -> npt.NDArray[np.int64]:
        order = generator(self.seed, Purpose.SHUFFLES, step).random((images, pieces)).argsort(axis=1)
        return order.astype(np.int64)

    def learn(self, images: Tensor) -> Tensor:
        import torch

        logits = self.norms.logits(images)
        entropies = entropy(logits)
        order = self.permutations(self.index, len(images), self.config.pieces**2)
        self.index += 1
        kept = (entropies < self.margin).nonzero()[:, 0]
        if not len(kept):
            return logits
        with torch.no_grad():
            destroyed = shuffle(images[kept], torch.from_numpy(order).to(kept)[kept], self.config.pieces)
            label = logits[kept].argmax(dim=1, keepdim=True)
            before = logits[kept].softmax(dim=1).gather(1, label)[:, 0]
            after = self.norms.logits(destroyed).softmax(dim=1).gather(1, label)[:, 0]
            difference = before - after  # Eq. 3: PLPD
        chosen = difference > self.config.plpd_threshold
        if not bool(chosen.any()):
            return logits
        selected = entropies[kept[chosen]]  # Eq. 6
        weight = (self.reference - selected.detach()).exp() + difference[chosen].exp()  # Eq. 8
        self.descend(self.gradients((weight * selected).mean()))  # Eq. 7
        return logits

    def begin(self) -> None:
        super().begin()
        self.index = 0


def shuffle(images: Tensor, order: Tensor, pieces: int) -> Tensor:
    """Reorder the ``pieces * pieces`` pieces of each image ``[B, c, h, w]`` by ``order`` ``[B, pieces^2]``.

    A size that cannot be cut evenly is scaled down a little for it and back up again, as in the authors' program.
    """
    from torch.nn.functional import interpolate

    batch, channels, height, width = images.shape
    tall, wide = height // pieces, width // pieces
    even = (tall * pieces, wide * pieces)
    if even != (height, width):
        images = interpolate(images, even, mode="bilinear", antialias=True)
    cut = images.reshape(batch, channels, pieces, tall, pieces, wide).permute(0, 2, 4, 1, 3, 5)
    cut = cut.reshape(batch, pieces * pieces, channels, tall, wide)
    index = order[:, :, None, None, None].expand(-1, -1, channels, tall, wide)
    mixed = cut.gather(1, index).reshape(batch, pieces, pieces, channels, tall, wide).permute(0, 3, 1, 4, 2, 5)
    mixed = mixed.reshape(batch, channels, *even)
    return mixed if even == (height, width) else interpolate(mixed, (height, width), mode="bilinear", antialias=True)
