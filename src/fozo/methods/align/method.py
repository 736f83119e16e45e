"""Align: images given back what their domain lacks, patch tokens moved towards their clean statistics.

One forward pass an image, no gradient, no prompt, no random number. The stream is worked through in groups of a few
images. For each of them, :mod:`~fozo.methods.align.retrieval` finds the earlier images of the same domain. Where bands
of spatial frequency are weaker in that domain than on clean images, :mod:`~fozo.methods.align.equaliser` amplifies
them. What the blocks added to images of that domain is what they are expected to add to this one, and
:mod:`~fozo.methods.align.alignment` turns that into moves before every block, shrunk the more the fewer images they
rest on.

With more passes, images are run again once they are in the memory themselves: the moves then rest on what the blocks
really added to them, which matters most where little else is remembered. ``passes="auto"`` makes a second pass just
there, within a budget, and one everywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fozo.core.descriptor import Single, spectra
from fozo.errors import FozoError
from fozo.methods.align.alignment import PatchStatistics, block_updates, plan
from fozo.methods.align.equaliser import energy_deficit, equalise
from fozo.methods.align.retrieval import DomainEstimate, Memory, RetrievalConfig, Retrieved
from fozo.methods.base import Method, positive
from fozo.methods.registry import register
from fozo.types import Batch, Floats, Knobs, Move, State, Tap

AUTO = "auto"
ESS_THRESHOLD = 8.0
"""``auto`` makes a second pass where fewer effective samples than this have been retrieved."""
BURST = 16.0
"""Second passes in the token bucket of ``auto`` at the beginning: two groups, where a stream begins."""
BUCKET = 64.0
"""Second passes that the bucket holds at most, so that a long quiet time is not followed by a long burst."""
TAPS = (Tap.LOGITS, Tap.PATCH_MEAN, Tap.PATCH_VARIANCE)


@dataclass(frozen=True)
class AlignConfig:
    """Everything about Align that can be chosen. One setting serves all models: nothing has a unit."""

    passes: int | str = 1
    """Forward passes for each image, or ``"auto"``: two after a change of domain, else one."""
    mean_strength: float = 0.15
    """Part of the way that the mean of the patch tokens is moved before each block."""
    std_strength: float = 0.2
    """Part of the way that their standard deviation is, on a logarithmic scale."""
    equaliser_strength: float = 0.7
    """Part of the way that weak bands of the image's spatial frequencies are amplified to their clean energy."""
    shrinkage: float = 4.0
    """Pseudo-count of the prior that nothing has to be moved: n effective samples count n / (n + shrinkage)."""
    group_size: int = 8
    """Images that go through the model together, and see the same memories (a micro-batch)."""
    budget: float = 1.1
    """For ``passes="auto"``: passes an image, on average over the stream."""
    retrieval: RetrievalConfig = field(default_factory=RetrievalConfig)

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.passes != AUTO and (type(self.passes) is not int or self.passes < 1):
            raise FozoError(f"align takes a whole number of passes from 1 up, or 'auto', not {self.passes!r}")
        for name in ("mean_strength", "std_strength", "equaliser_strength"):
            if not 0 <= getattr(self, name) <= 1:
                raise FozoError(f"align: {name} is {getattr(self, name)}; give a part from 0 (none) to 1 (all the way)")
        if not self.shrinkage >= 0:
            raise FozoError(f"align: shrinkage is {self.shrinkage}; give a number of images from 0 up")
        if not self.budget >= 1:
            raise FozoError(f"align: budget is {self.budget}; give an average number of passes from 1 up")
        positive("align", group_size=self.group_size)


@register(
    "align", passes="1 or more", adapts="image bands and patch token moves", paper="fozo, docs/method.md",
    needs={"source", "tokens"},
)  # fmt: skip
class Align(Method[AlignConfig]):
    """Images equalised and patch tokens aligned with clean statistics, by domain."""

    PRESETS: ClassVar = {"default": AlignConfig()}
    LENGTHS: ClassVar = dict.fromkeys(("mean", "variance", "descriptor", "updates"), "images")

    def prepare(self) -> None:
        """Read the targets from the source statistics."""
        source = self.source
        self.target = PatchStatistics(source.patch_mean.mean, source.patch_log_variance.mean)
        self.descriptor_std = np.maximum(source.descriptor.std, 1e-6)
        self.spectra = spectra(*self.engine.spec.image_shape)

    def begin(self) -> None:
        """Begin with an empty memory."""
        self.memory = Memory(self.descriptor_std.size, 2 * self.target.mean.size, self.config.retrieval)
        self.credit = BURST
        self.passes_per_image = 1.0

    def step(self, batch: Batch) -> Floats:
        """Describe all images, then adapt to them group by group, so that early ones teach late ones."""
        coefficients = self.spectra.transform(batch.images)
        descriptors = self.spectra.describe(coefficients)
        descriptors = (descriptors - self.source.descriptor.mean) / self.descriptor_std
        domains = self.config.retrieval.estimate(descriptors, self.memory.domains.descriptor)
        size, logits, spent, samples = self.config.group_size, [], 0, 0.0
        for start in range(0, len(batch), size):
            some = slice(start, start + size)
            group, passes, samples = self._group(batch.part(some), coefficients[some], domains.part(some))
            logits.append(group)
            spent += passes * len(group)
        self.passes_per_image = spent / len(batch)
        # About 1 for clean images, whatever the size of the batch.
        shift = len(descriptors) * float(np.square(descriptors.mean(axis=0)).mean())
        self.report(shift=shift, effective_sample_size=samples)
        return np.concatenate(logits)

    def _group(self, batch: Batch, coefficients: Single, domains: DomainEstimate) -> tuple[Floats, int, float]:
        """Move, predict and remember a few images. Return logits, passes, and the effective sample size at first."""
        before = self.memory.domains, self.memory.values
        retrieved = self.memory.retrieve(domains)
        samples = float(retrieved.effective_sample_size.mean())
        batch = self._equalised(batch, coefficients, domains, retrieved)
        passes = self._passes(len(batch), samples)
        for again in range(passes):
            if again:
                retrieved = self.memory.retrieve(domains)
            move = self._plan(retrieved)
            taps = self.engine.run(batch, Knobs(patches=move), TAPS)
            logits: Floats = taps[Tap.LOGITS][0]
            if not np.isfinite(logits).all():
                raise FozoError("the model's logits are not all finite; nothing was changed: check its weights")
            updates = block_updates(taps, move)
            self.memory.domains, self.memory.values = before  # what the pass before saw of these images is out of date
            values = np.concatenate([updates.mean, updates.log_variance], axis=1)
            self.memory.add(domains, values.reshape(len(batch), -1))
        return logits, passes, samples

    def _equalised(self, batch: Batch, coefficients: Single, domains: DomainEstimate, retrieved: Retrieved) -> Batch:
        """Give images back the detail that their domains lack."""
        posterior = self.config.retrieval.posterior(domains.distinct(), retrieved)
        deficit = energy_deficit(self.spectra, posterior, self.descriptor_std)
        if not self.config.equaliser_strength or not deficit.any():
            return batch
        return batch.with_images(equalise(self.spectra, coefficients, deficit, self.config.equaliser_strength))

    def _passes(self, images: int, samples: float) -> int:
        """How many passes the next images get; for ``auto`` by a token bucket."""
        if isinstance(self.config.passes, int):
            return self.config.passes
        self.credit = min(self.credit + (self.config.budget - 1) * images, BUCKET)
        if samples >= ESS_THRESHOLD or self.credit < images:
            return 1
        self.credit -= images
        return 2

    def _plan(self, retrieved: Retrieved) -> Move:
        """Decide the moves from what the blocks added to images of the same domain."""
        depth, dim = self.target.mean.shape
        expected = retrieved.values.reshape(-1, 2, depth, dim)
        samples = retrieved.effective_sample_size
        trust = samples / np.maximum(samples + self.config.shrinkage, 1e-300)
        strengths = np.array([self.config.mean_strength, self.config.std_strength]) * trust[:, None]
        return plan(PatchStatistics(expected[:, 0], expected[:, 1]), self.target, strengths)

    @property
    def parameters(self) -> int:
        """How many numbers the moves of one image consist of."""
        return 2 * self.target.mean.size

    def variables(self) -> State:
        """The memory, and the token bucket of ``auto``."""
        domains = self.memory.domains
        return {
            "mean": domains.mean,
            "variance": domains.variance,
            "descriptor": domains.descriptor,
            "updates": self.memory.values,
            "credit": np.array(self.credit),
        }

    def assign(self, variables: State) -> None:
        """Continue from a memory."""
        mean, variance, descriptor = (variables[name].astype(np.float64) for name in ("mean", "variance", "descriptor"))
        if len(mean) > self.config.retrieval.capacity or not (variance > 0).all():
            raise FozoError(
                f"the state remembers {len(mean)} images, of {self.config.retrieval.capacity} at most, or variances "
                f"that are not positive; save the state again"
            )
        self.memory.domains = DomainEstimate(mean, variance, descriptor)
        self.memory.values = variables["updates"].astype(np.float32)
        self.credit = float(variables["credit"])
