"""What can be chosen about Align."""

from dataclasses import dataclass, field

import numpy as np

from fozo.errors import FozoError
from fozo.methods.align.memory import RetrievalConfig
from fozo.methods.common.options import positive

AUTO = "auto"
MOST_PASSES = 1000  # each costs as much as the first, and from the third on they change nothing
ESS_THRESHOLD = 8.0  # ``auto`` makes a second pass where fewer effective samples than this have been retrieved
BURST = 16.0  # second passes in the token bucket of ``auto`` at the beginning: two groups
BUCKET = 64.0  # second passes that it holds at most, so that a long quiet time is not followed by a long burst


@dataclass(frozen=True)
class AlignConfig:
    """Everything about Align that can be chosen. One setting serves all models: nothing has a unit."""

    passes: int | str = 1
    """Forward passes for each image, or ``"auto"``: two after a change of domain, else one."""
    mean_strength: float = 0.15
    """Part of the way that the mean of the patch tokens is moved before each block."""
    std_strength: float = 0.2
    """Part of the way that their standard deviation is, on a logarithmic scale."""
    cls_strength: float = 0.3
    """Part of the way that the CLS token is, in the first half of the model."""
    equaliser_strength: float = 0.7
    """Part of the way that bands of spatial frequency are moved to their clean energy, 0 being none of it."""
    content_strength: float = 1.0
    """Part of the way that targets follow the content of the stream; with 0 they are those of the average image."""
    content_error: float = 0.4
    """Squared error expected of content-conditioned targets, as a part of the squared correction for content."""
    group_size: int = 8
    """Images that go through the model together, and see the same memories (a micro-batch); more, up to 32, once the
    memory is rich for all of them."""
    budget: float = 1.1
    """For ``passes="auto"``: passes an image, on average over the stream."""
    retrieval: RetrievalConfig = field(default_factory=RetrievalConfig)

    def __post_init__(self) -> None:
        if self.passes != AUTO and (type(self.passes) is not int or not 1 <= self.passes <= MOST_PASSES):
            raise FozoError(
                f"align takes a whole number of passes from 1 to {MOST_PASSES}, or 'auto', not {self.passes!r}"
            )
        for name in ("mean_strength", "std_strength", "cls_strength", "equaliser_strength", "content_strength"):
            if not 0 <= getattr(self, name) <= 1:
                raise FozoError(f"align: {name} is {getattr(self, name)}; give a part from 0 (none) to 1 (all the way)")
        if not 0 <= self.content_error < np.inf:
            raise FozoError(f"align: content_error is {self.content_error}; give a number from 0 (content says all) up")
        if not self.budget >= 1:
            raise FozoError(f"align: budget is {self.budget}; give an average number of passes from 1 up")
        positive("align", group_size=self.group_size)

    def spend(self, images: int, samples: float, credit: float) -> tuple[int, float]:
        """With ``auto``, say how many passes the next images get, and what is left in its token bucket."""
        credit = min(credit + (self.budget - 1) * images, BUCKET)
        if samples >= ESS_THRESHOLD or credit < images:
            return 1, credit
        return 2, credit - images
