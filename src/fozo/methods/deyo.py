"""DeYO: entropy is not enough, destroy your object (Lee et al., ICLR 2024).

Besides being sure, a prediction must rest on the object's shape: shuffling the image's patches has to lower its
probability (PLPD, the pseudo-label probability difference). Both measures also weigh the images. LayerNorms of all
but the last quarter of the blocks (0-8 of 12) are adapted.

What differs from the authors' program: the FOZO paper, whose values are the defaults here, states the two entropy
margins the other way round and another learning rate; the preset ``official`` has the authors' values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fozo.core.noise import generator
from fozo.core.statistics import SourceStatistics
from fozo.engines.base import Engine
from fozo.errors import FozoError
from fozo.methods.base import State
from fozo.methods.layernorm import Descent, GradientMethod, entropy, lower_blocks
from fozo.methods.presets import pick, positive
from fozo.methods.registry import MethodInfo, register

if TYPE_CHECKING:
    from torch import Tensor

Permutations = Callable[[int, int, int], npt.NDArray[np.int64]]
"""``(step, images, pieces) -> [images, pieces]``: new piece k of an image is its old piece ``permutation[k]``."""

PURPOSE = 4
"""Place of these draws among the private random numbers, see :mod:`fozo.core.noise`."""


@dataclass(frozen=True)
class Options(Descent):
    """Everything about DeYO that can be chosen. The defaults are the FOZO paper's."""

    rate: float = 2.5e-4
    margin: float = 0.4
    """tau_Ent of Eq. 6 as a share of ln(classes): images of lower entropy are kept."""
    reference: float = 0.5
    """Ent_0 of Eq. 8 as a share of ln(classes): images of lower entropy weigh more."""
    drop: float = 0.2
    """tau_PLPD of Eq. 6: how much probability the shuffle has to take away."""
    pieces: int = 4
    """The image is cut into this many pieces each way."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        positive("deyo", margin=self.margin, reference=self.reference, pieces=self.pieces)


PRESETS = {"paper": Options(), "official": Options(rate=1e-3, margin=0.5, reference=0.4)}


@register(
    MethodInfo(
        name="deyo",
        summary="entropy minimization on predictions that rest on the object's shape",
        needs_gradient=True,
        needs_source=False,
        passes="2, and 1 backward",
        adapts="LayerNorm weights and biases of the lower blocks",
        paper="Lee et al., ICLR 2024",
    )
)
class DeYO(GradientMethod):
    """Minimise the entropy of sure, shape-based predictions."""

    spent = 2.0

    def __init__(
        self,
        engine: Engine,
        source: SourceStatistics | None = None,
        *,
        seed: int = 0,
        preset: str = "paper",
        permutations: Permutations | None = None,
        **switches: object,
    ) -> None:
        """Prepare to adapt.

        Args:
            engine: a torch engine.
            source: not needed.
            seed: of the shuffles.
            preset: ``paper`` or ``official``.
            permutations: shuffles to use instead of seeded ones.
            switches: any field of :class:`Options` that should differ from the preset.
        """
        self.choices = pick("deyo", PRESETS, preset, switches)
        if min(engine.spec.image_size) < self.choices.pieces:
            raise FozoError(
                f"deyo: an image of {engine.spec.image_size} has no {self.choices.pieces} pieces each way; use fewer"
            )
        super().__init__(engine, source, self.choices, lower_blocks(engine.spec.depth))
        generator(seed, PURPOSE)  # refuses a bad seed now
        self.seed = seed
        self.permutations = permutations or self._permutations
        self.index = 0
        scale = math.log(engine.spec.classes)
        self.margin, self.reference = self.choices.margin * scale, self.choices.reference * scale

    def _permutations(self, step: int, images: int, pieces: int) -> npt.NDArray[np.int64]:
        order = generator(self.seed, PURPOSE, step).random((images, pieces)).argsort(axis=1)
        return order.astype(np.int64)

    def learn(self, images: Tensor) -> Tensor:
        """Eq. 3-8 of the paper."""
        import torch

        logits = self.norms.logits(images)
        entropies = entropy(logits)
        order = self.permutations(self.index, len(images), self.choices.pieces**2)
        self.index += 1
        kept = (entropies < self.margin).nonzero()[:, 0]
        if not len(kept):
            return logits
        with torch.no_grad():
            destroyed = shuffle(images[kept], torch.from_numpy(order).to(kept)[kept], self.choices.pieces)
            label = logits[kept].argmax(dim=1, keepdim=True)
            before = logits[kept].softmax(dim=1).gather(1, label)[:, 0]
            after = self.norms.logits(destroyed).softmax(dim=1).gather(1, label)[:, 0]
            difference = before - after  # Eq. 3: PLPD
        chosen = difference > self.choices.drop
        if not bool(chosen.any()):
            return logits
        selected = entropies[kept[chosen]]  # Eq. 6
        weight = (self.reference - selected.detach()).exp() + difference[chosen].exp()  # Eq. 8
        self.descend(self.norms.gradients((weight * selected).mean()))  # Eq. 7
        return logits

    def reset(self) -> None:
        """Forget everything adapted."""
        super().reset()
        self.index = 0

    def state(self) -> State:
        """LayerNorms, momentum and the number of batches seen."""
        return {**super().state(), "index": np.array([self.index], dtype=np.float64)}

    def restore_state(self, state: State) -> None:
        """Continue from a state."""
        super().restore_state(state)
        self.index = int(state["index"][0])

    def options(self) -> dict[str, object]:
        """Everything that has to be the same for a state to be continued."""
        return {**asdict(self.choices), "seed": self.seed}


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
