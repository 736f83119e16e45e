"""Align: images given back what their domain lacks, tokens moved to where clean images of the same content have them.

One forward pass an image, no gradient, no prompt, no random number. The stream is worked through in groups of a few
images. For each of them, :mod:`~fozo.methods.align.retrieval` finds the earlier images of the same domain. Where bands
of spatial frequency are weaker in that domain than on clean images, :mod:`~fozo.methods.align.equaliser` amplifies
them. What the blocks added to images of that domain is what they are expected to add to this one.
:mod:`~fozo.methods.align.targets` says where the tokens of clean images with that content would be, and how much of the
difference can be believed to be drift; :mod:`~fozo.methods.align.alignment` turns that into moves before every block.

With more passes, images are run again once they are in the memory themselves: the moves then rest on what the blocks
really added to them, which matters most where little else is remembered. ``passes="auto"`` makes a second pass just
there, within a budget, and one everywhere else.

Nothing is remembered that is not finite and plausible: of each batch, ``metrics()`` counts the images that were
predicted but not learnt from (``unlearnt``). Should adaptation ever break predictions all the same, those of the plain
model are returned and the memory is begun anew (``healed``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fozo.core.descriptor import Single, spectra
from fozo.errors import FozoError
from fozo.methods.align.alignment import TokenStatistics, block_updates, plan
from fozo.methods.align.equaliser import energy_deficit, equalise
from fozo.methods.align.retrieval import DomainEstimate, Memory, RetrievalConfig, Retrieved
from fozo.methods.align.targets import REFERENCE_IMAGES, Reference, Targets
from fozo.methods.base import Method, positive
from fozo.methods.registry import register
from fozo.types import Array, Batch, Floats, Knobs, State, Tap

AUTO = "auto"
ESS_THRESHOLD = 8.0
"""``auto`` makes a second pass where fewer effective samples than this have been retrieved."""
BURST = 16.0
"""Second passes in the token bucket of ``auto`` at the beginning: two groups, where a stream begins."""
BUCKET = 64.0
"""Second passes that the bucket holds at most, so that a long quiet time is not followed by a long burst."""
TAPS = (Tap.LOGITS, Tap.CLS, Tap.PATCH_MEAN, Tap.PATCH_VARIANCE)


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
    """Part of the way that weak bands of the image's spatial frequencies are amplified to their clean energy."""
    content_strength: float = 1.0
    """Part of the way that targets follow the content of the stream; with 0 they are those of the average image."""
    doubt: float = 0.4
    """Squared error expected of content-conditioned targets, as a part of the squared correction for content."""
    own_reference: bool = True
    """Whether the stream's own images are learnt as this camera's reference while they look clean."""
    group_size: int = 8
    """Images that go through the model together, and see the same memories (a micro-batch)."""
    budget: float = 1.1
    """For ``passes="auto"``: passes an image, on average over the stream."""
    retrieval: RetrievalConfig = field(default_factory=RetrievalConfig)

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.passes != AUTO and (type(self.passes) is not int or self.passes < 1):
            raise FozoError(f"align takes a whole number of passes from 1 up, or 'auto', not {self.passes!r}")
        for name in ("mean_strength", "std_strength", "cls_strength", "equaliser_strength", "content_strength"):
            if not 0 <= getattr(self, name) <= 1:
                raise FozoError(f"align: {name} is {getattr(self, name)}; give a part from 0 (none) to 1 (all the way)")
        if not 0 <= self.doubt < np.inf:
            raise FozoError(f"align: doubt is {self.doubt}; give a number from 0 (content says all) up")
        if not self.budget >= 1:
            raise FozoError(f"align: budget is {self.budget}; give an average number of passes from 1 up")
        positive("align", group_size=self.group_size)


@register(
    "align", passes="1 or more", adapts="image bands and token moves", paper="fozo, docs/method.md",
    needs={"source", "tokens"},
)  # fmt: skip
class Align(Method[AlignConfig]):
    """Images equalised and tokens aligned with clean ones of the same content, by domain."""

    PRESETS: ClassVar = {"default": AlignConfig()}
    LENGTHS: ClassVar = dict.fromkeys(("mean", "variance", "descriptor", "updates"), "images")

    def prepare(self) -> None:
        """Read the targets from the source statistics."""
        source, spec = self.source, self.engine.spec
        self.targets = Targets(source, self.engine.head(), spec.depth, self.config.content_strength, self.config.doubt)
        self.width = TokenStatistics.width(spec.depth, spec.dim)
        self.descriptor_std = np.maximum(source.descriptor.std, 1e-6)
        self.spectra = spectra(*spec.image_shape)

    def begin(self) -> None:
        """Begin with an empty memory."""
        contents = self.targets.vectors.shape[1]
        self.memory = Memory(self.descriptor_std.size, self.width + contents, self.config.retrieval)
        self.reference = self.targets.no_reference(self.engine.spec.dim)
        self.credit = BURST
        self.passes_per_image = 1.0

    def step(self, batch: Batch) -> Floats:
        """Describe all images, then adapt to them group by group, so that early ones teach late ones."""
        with np.errstate(over="ignore", invalid="ignore"):  # what cannot be described is told below
            coefficients = self.spectra.transform(batch.images)
            descriptors = self.spectra.describe(coefficients)
        sound = self.spectra.sound(descriptors)
        if not sound.all():
            return self._sound_ones(batch, sound)
        descriptors = (descriptors - self.source.descriptor.mean) / self.descriptor_std
        self.unlearnt, self.healed = 0, 0
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
        self.report(shift=shift, effective_sample_size=samples, unlearnt=self.unlearnt, healed=self.healed)
        return np.concatenate(logits)

    def _sound_ones(self, batch: Batch, sound: npt.NDArray[np.bool_]) -> Floats:
        """Adapt to the images that can be pictures, as if they had come alone; the plain model predicts the others."""
        plain = self._plain(batch.with_images(batch.images[~sound]))
        logits = np.empty((len(batch), plain.shape[1]), dtype=plain.dtype)
        logits[~sound] = plain
        self.report(unlearnt=len(plain))
        if sound.any():
            logits[sound] = self.step(batch.with_images(batch.images[sound]))
            self.report(**self.metrics() | {"unlearnt": len(plain) + self.unlearnt})
        return logits

    def _plain(self, batch: Batch) -> Floats:
        """Predict images as if nothing had been adapted; what is not finite even then is refused."""
        logits: Floats = self.engine.run(batch)[Tap.LOGITS][0]
        if not np.isfinite(logits).all():
            raise FozoError("the model's logits are not all finite; nothing was changed: check its weights")
        return logits

    def _heal(self, batch: Batch) -> Floats:
        """Adaptation has broken predictions: if the plain model's are sound, they count, and all memories go.

        What is remembered is checked, so this should not happen; if it does, it must not happen for ever.
        """
        logits, credit = self._plain(batch), self.credit
        self.begin()
        self.credit, self.healed = credit, self.healed + 1
        return logits

    def _group(self, batch: Batch, coefficients: Single, domains: DomainEstimate) -> tuple[Floats, int, float]:
        """Move, predict and remember a few images. Return logits, passes, and the effective sample size at first."""
        before = self.memory.domains, self.memory.values
        retrieved = self.memory.retrieve(domains)
        samples = float(retrieved.effective_sample_size.mean())
        posterior = self.config.retrieval.posterior(domains.distinct(), retrieved)
        drifted = 1 - self.config.retrieval.looks_clean(posterior, self.spectra.brightness)
        plain, batch = batch, self._equalised(batch, coefficients, posterior, drifted)
        passes = self._passes(len(batch), samples)
        for again in range(passes):
            if again:
                retrieved = self.memory.retrieve(domains)
            knobs = self._plan(retrieved, drifted)
            taps = self.engine.run(batch, knobs, TAPS)
            logits: Floats = taps[Tap.LOGITS][0]
            if not np.isfinite(logits).all():
                return self._heal(plain), again + 2, samples
            updates, offsets = block_updates(taps, knobs), self.targets.offsets(logits)
            sound = self.targets.plausible(updates)
            self.memory.domains, self.memory.values = before  # what the pass before saw of these images is out of date
            self.memory.add(domains.part(sound), np.concatenate([updates.flat(), offsets], axis=1)[sound])
        self.unlearnt += len(sound) - int(sound.sum())
        if self.config.own_reference:
            weights = np.where(sound, 1 - drifted, 0)
            residuals = np.where(sound[:, None], self.targets.residuals(updates, offsets), 0)
            self.reference = self.reference.learn(offsets, residuals, weights)
        return logits, passes, samples

    def _equalised(self, batch: Batch, coefficients: Single, domains: DomainEstimate, drifted: Array) -> Batch:
        """Give images back the detail that their domains lack."""
        deficit = drifted[:, None, None] * energy_deficit(self.spectra, domains, self.descriptor_std)
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

    def _plan(self, retrieved: Retrieved, drifted: Array) -> Knobs:
        """Decide the moves from what the blocks added to images of the same domain, and what those showed.

        Where nothing has ``drifted`` (0 to 1, ``[B or 1]``), nothing is moved.
        """
        spec = self.engine.spec
        updates = TokenStatistics.of_flat(retrieved.values[:, : self.width], spec.depth, spec.dim)
        offsets, images = retrieved.values[:, self.width :], retrieved.effective_sample_size
        target, believed = self.targets.find(updates, offsets, images, self.reference)
        part = drifted[:, None, None]
        strengths = TokenStatistics(
            self.config.mean_strength * part * believed.mean,
            self.config.std_strength * part * believed.log_variance,
            self.config.cls_strength * part * believed.cls,
        )
        return plan(updates, target, strengths)

    @property
    def parameters(self) -> int:
        """How many numbers the moves of one image consist of."""
        return self.width

    def variables(self) -> State:
        """The memory, the camera's reference, and the token bucket of ``auto``."""
        domains = self.memory.domains
        return {
            "mean": domains.mean,
            "variance": domains.variance,
            "descriptor": domains.descriptor,
            "updates": self.memory.values,
            "reference_images": np.array(self.reference.images),
            "reference_offset": self.reference.offset,
            "reference_residual": self.reference.residual,
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
        reference_images = float(variables["reference_images"])
        if not 0 <= reference_images <= REFERENCE_IMAGES:
            raise FozoError(
                f"the state's reference rests on {reference_images:g} images, of {REFERENCE_IMAGES:g} at most; "
                f"save the state again"
            )
        self.memory.domains = DomainEstimate(mean, variance, descriptor)
        self.memory.values = variables["updates"].astype(np.float32)
        self.reference = Reference(
            reference_images,
            variables["reference_offset"].astype(np.float64),
            variables["reference_residual"].astype(np.float64),
        )
        self.credit = float(variables["credit"])
