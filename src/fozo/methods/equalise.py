"""Equalise: what fozo does for a black-box model, on the images alone.

The half of :mod:`Align <fozo.methods.align>` that needs no model: every image is described by its bands of spatial
frequency, earlier images of the same domain are found, and what that domain lacks of clean images (contrast, light,
detail) or has too much (noise) :mod:`~fozo.methods.align.equaliser` restores before the model sees it. Images of
domains that look clean are passed on unchanged.

The model is called once a batch, on all of it, whatever it returns. Nothing is learnt from its answers: a detector's
boxes are as good as logits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fozo.core.descriptor import Single
from fozo.errors import FozoError
from fozo.methods.align.equaliser import PROFILES, ImageRestorer
from fozo.methods.align.memory import DomainEstimate, RetrievalConfig
from fozo.methods.common.options import one_of
from fozo.methods.common.wrapper import Forward, Wrapper
from fozo.methods.method import Result
from fozo.methods.registry import register
from fozo.state import State, ragged
from fozo.types import Array, Batch, Floats


@dataclass(frozen=True)
class EqualiseConfig:
    """Everything about Equalise that can be chosen."""

    strength: float = 0.7
    """Part of the way that bands of spatial frequency are moved to their clean energy, 0 being none of it."""
    profile: str = "detector"
    """``"detector"`` restores local contrast too, ``"tokens"`` is what Align does before a ViT."""
    retrieval: RetrievalConfig = field(default_factory=RetrievalConfig)

    def __post_init__(self) -> None:
        one_of("equalise", PROFILES, profile=self.profile)
        if not 0 <= self.strength <= 1:
            raise FozoError(f"equalise: strength is {self.strength}; give a part from 0 (none) to 1 (all the way)")


@dataclass(frozen=True)
class Retrieved:
    """How much each remembered image counts for each of n domains."""

    rows: DomainEstimate  # the images remembered, the oldest first
    shares: Array  # [n, remembered]; rows add up to 1, unless nothing is of the domain
    samples: Array  # effective sample size of averages by these shares (Kish), [n]

    def posterior(self, domains: DomainEstimate) -> DomainEstimate:
        """Sharpen estimates by the descriptors of the images retrieved, each an observation of variance 1."""
        descriptor = np.einsum("mn,nf->mf", self.shares, self.rows.descriptor)
        return domains.sharpened(descriptor, self.samples[:, None])


@dataclass(frozen=True)
class Memory(State):
    """Domain estimates and descriptors of the most recent images, the oldest first."""

    mean: Single = ragged("images")
    variance: Single = ragged("images")
    descriptor: Single = ragged("images")

    def __post_init__(self) -> None:
        """Refuse variances that no estimate has."""
        if self.variance.min(initial=1) <= 0:
            raise ValueError("it remembers variances that are not positive")

    @classmethod
    def empty(cls, features: int) -> Memory:
        """Nothing, for descriptors of ``features`` numbers."""
        nothing = np.zeros((0, features), np.float32)
        return cls(nothing, nothing, nothing)

    def add(self, domains: DomainEstimate, capacity: int) -> Memory:
        """Remember images, and forget the oldest beyond ``capacity``."""

        def joined(known: Single, new: Floats) -> Single:
            rows: Single = np.concatenate([known, new.astype(np.float32)])[-capacity:].copy()
            return rows

        return Memory(
            mean=joined(self.mean, domains.mean),
            variance=joined(self.variance, domains.variance),
            descriptor=joined(self.descriptor, domains.descriptor),
        )


def retrieve(memory: Memory, domains: DomainEstimate, config: RetrievalConfig) -> Retrieved:
    """Weigh each remembered image for each of ``domains``.

    With D the mean over features of (difference of means)^2 / (sum of variances), which is 1 on average for two
    estimates of one domain, whatever the sizes of their batches, an image weighs

        exp(-dimensions / 2 max(D - 1, 0)) 0.5^(newer / half_life),    newer: later images, weighted by the first
    """
    remembered = DomainEstimate(memory.mean, memory.variance, memory.descriptor)
    distance = np.empty((len(domains.mean), len(remembered.mean)))
    for row, (mean, variance) in enumerate(zip(domains.mean, domains.variance, strict=True)):
        squared: Array = np.square(remembered.mean - mean) / (remembered.variance + variance)
        distance[row] = squared.mean(axis=1)
    agreement = np.exp(-config.dimensions / 2 * np.maximum(distance - 1, 0))
    newer = agreement.sum(axis=1, keepdims=True) - np.cumsum(agreement, axis=1)
    weights = agreement * 0.5 ** (newer / config.half_life)
    total = weights.sum(axis=1)
    # Kish's effective sample size; the total weight caps it, so that distant images do not count for many.
    kish = total**2 / np.maximum(np.square(weights).sum(axis=1), 1e-300)
    shares = weights / np.maximum(total, 1e-300)[:, None]
    return Retrieved(remembered, shares, np.minimum(kish, total))


@dataclass(frozen=True)
class EqualiseState(State):
    """Descriptors of recent images, and what the inner method has learnt."""

    memory: Memory
    inner: State


@register("equalise", passes="1", adapts="image bands", paper="fozo, docs/models.md", needs={"statistics"})
class Equalise(Wrapper[EqualiseConfig, EqualiseState]):
    """Images equalised by domain, and nothing else: for models that show no tokens.

    Examples:
        >>> detector = fozo.load_engine(lambda images: [f"boxes of image {i}" for i in range(len(images))])
        >>> Equalise(detector, fozo.calibrate(detector, frames))(frames)[:2]
        ['boxes of image 0', 'boxes of image 1']
        >>> Equalise.around(fozo.FOZO(model, statistics), strength=0.5).config
        EqualiseConfig(strength=0.5, profile='detector', ...)

    ``inner`` is a method that gets the equalised images instead of the plain model, see :meth:`around`.
    """

    PRESETS: ClassVar = {"default": EqualiseConfig()}

    if TYPE_CHECKING:

        def __call__(self, images: object = None, *, pixel_values: object = None) -> Any:  # noqa: ANN401 - the model decides
            """Adapt to images and return what the model returns for them."""

    def prepare(self) -> None:
        super().prepare()
        config = self.config
        self.equaliser = ImageRestorer(self.statistics, self.engine, config.strength, config.retrieval, config.profile)
        spectra = self.equaliser.spectra
        self.parameter_count += spectra.channels * spectra.bands  # a gain for each band of each channel

    def init(self) -> EqualiseState:
        return EqualiseState(Memory.empty(self.equaliser.std.size), self.inner.init())

    def wrap(self, state: EqualiseState, batch: Batch, forward: Forward) -> Result[EqualiseState]:
        """Equalise images and run the model; those that cannot be pictures are left as they are."""
        coefficients, descriptors, is_picture = self.equaliser.describe(batch.images)
        equalised = batch
        memory = state.memory
        samples = 0.0
        last_input = None
        if is_picture.any():
            domains = self.equaliser.domains(descriptors[is_picture], memory.descriptor)
            merged = domains.same_domain()
            retrieved = retrieve(memory, merged, self.config.retrieval)
            samples = float(retrieved.samples.mean())
            plan = self.equaliser.plan(retrieved.posterior(merged))
            if plan:
                restored = self.equaliser.restore(batch.images[is_picture], coefficients[is_picture], plan)
                images = np.array(batch.images)
                images[is_picture] = self._in_range(restored)
                equalised = batch.with_images(images)
                last_input = images[-1]
            memory = memory.add(domains, self.config.retrieval.capacity)
        inner = forward(equalised)
        metrics = {
            "shift": self.equaliser.shift(descriptors[is_picture]),
            "effective_sample_size": samples,
            "skipped": float((~is_picture).sum()),
        }
        return Result(
            logits=inner.logits,
            state=EqualiseState(memory, inner.state),
            metrics=metrics,
            passes=inner.passes,
            descriptors=descriptors,
            last_input=inner.last_input if last_input is None else last_input,
            inner=(equalised, inner),
        )

    def _in_range(self, images: Floats) -> Floats:
        """Keep pixels within what a camera gives, where the normalisation is known or seen: a model may count on it."""
        if self.equaliser.normalisation is None:
            return images
        mean, std = self.equaliser.normalisation
        return np.clip(images, -mean / std, (1 - mean) / std)
