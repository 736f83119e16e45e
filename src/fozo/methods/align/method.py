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

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fozo.core.descriptor import Single, spectra
from fozo.core.statistics import SourceStatistics
from fozo.errors import FozoError
from fozo.methods.align.alignment import TokenStatistics, block_updates, plan
from fozo.methods.align.equaliser import energy_deficit, equalise
from fozo.methods.align.lesson import Lesson
from fozo.methods.align.retrieval import DomainEstimate, Memory, RetrievalConfig, Retrieved
from fozo.methods.align.targets import REFERENCE_IMAGES, Reference, Targets
from fozo.methods.base import Method, positive
from fozo.methods.journal import Journal, read_journal
from fozo.methods.registry import register
from fozo.types import Array, Batch, Engine, Floats, Knobs, State, Tap

AUTO = "auto"
MOST_PASSES = 1000
"""Each costs as much as the first, and from the third on they change nothing."""
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
        if self.passes != AUTO and (type(self.passes) is not int or not 1 <= self.passes <= MOST_PASSES):
            raise FozoError(
                f"align takes a whole number of passes from 1 to {MOST_PASSES}, or 'auto', not {self.passes!r}"
            )
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
    """Images equalised and tokens aligned with clean ones of the same content, by domain.

    Beside what every :class:`fozo.Method` takes:

    Args:
        journal: file to append what each batch taught to; see :meth:`replay`.
    """

    PRESETS: ClassVar = {"default": AlignConfig()}
    LENGTHS: ClassVar = dict.fromkeys(("mean", "variance", "descriptor", "updates"), "images")

    def __init__(
        self,
        engine: Engine,
        source: SourceStatistics | None = None,
        config: AlignConfig | None = None,
        *,
        preset: str | None = None,
        seed: int = 0,
        journal: str | os.PathLike[str] | None = None,
        **options: object,
    ) -> None:
        self.journal: Journal | None = None
        super().__init__(engine, source, config, preset=preset, seed=seed, **options)
        if journal is not None:
            self.journal = Journal(journal, self._header())

    def prepare(self) -> None:
        """Read the targets from the source statistics."""
        source, spec = self.source, self.engine.spec
        self.targets = Targets(source, self.engine.head(), spec.depth, self.config.content_strength, self.config.doubt)
        self.width = TokenStatistics.width(spec.depth, spec.dim)
        self.descriptor_std = np.maximum(source.descriptor.std, 1e-6)
        self.spectra = spectra(*spec.image_shape)

    def begin(self) -> None:
        """Begin with an empty memory."""
        self._forget()
        self.credit, self.batches = BURST, 0
        self.passes_per_image = 1.0
        self._rewind()

    def _forget(self) -> None:
        contents = self.targets.vectors.shape[1]
        self.memory = Memory(self.descriptor_std.size, self.width + contents, self.config.retrieval)
        self.reference = self.targets.no_reference(self.engine.spec.dim)

    def step(self, batch: Batch) -> Floats:
        """Adapt to images and predict them; those that cannot be pictures are predicted by the plain model."""
        with np.errstate(over="ignore", invalid="ignore"):  # what cannot be described is told apart
            coefficients = self.spectra.transform(batch.images)
            descriptors = self.spectra.describe(coefficients)
        sound = self.spectra.sound(descriptors)
        self.lessons: list[Lesson | None] = []
        self.passes_per_image = 1.0
        if sound.all():
            logits = self._adapt(batch, coefficients, descriptors)
        else:
            plain = self._plain(batch.with_images(batch.images[~sound]))
            logits = np.empty((len(batch), plain.shape[1]), dtype=plain.dtype)
            logits[~sound] = plain
            if sound.any():
                some = batch.with_images(batch.images[sound])
                logits[sound] = self._adapt(some, coefficients[sound], descriptors[sound])
        learnt = [len(lesson.values) for lesson in self.lessons if lesson is not None]
        unlearnt, healed = len(batch) - sum(learnt), len(self.lessons) - len(learnt)
        self.report(**self.metrics(), unlearnt=float(unlearnt), healed=float(healed))
        if self.journal is not None:
            self.journal.append(self.batches, self._record())  # if it cannot be recorded, the transaction undoes all
        self.batches += 1
        return logits

    def _adapt(self, batch: Batch, coefficients: Single, descriptors: Array) -> Floats:
        """Adapt to described images group by group, so that early ones teach late ones."""
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
        logits = self._plain(batch)
        self._forget()
        self.lessons.append(None)
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
            lesson = self._lesson(domains, block_updates(taps, knobs), logits, 1 - drifted)
            self.memory.domains, self.memory.values = before  # what the pass before saw of these images is out of date
            self.memory.add(lesson.domains, lesson.values)
        self._learn_reference(lesson)
        self.lessons.append(lesson)
        return logits, passes, samples

    def _lesson(self, domains: DomainEstimate, updates: TokenStatistics, logits: Floats, clean: Array) -> Lesson:
        """Say what is to be remembered of images; nothing of those whose tokens are beyond belief."""
        with np.errstate(over="ignore"):
            values = np.concatenate([updates.flat(), self.targets.offsets(logits)], axis=1).astype(np.float16)
        sound = self.targets.plausible(updates) & np.isfinite(values).all(axis=1)
        return Lesson(domains.part(sound), values[sound], np.broadcast_to(clean, len(sound))[sound])

    def _learn_reference(self, lesson: Lesson) -> None:
        """Take images as the camera's reference as far as they look clean."""
        if self.config.own_reference:
            spec, values = self.engine.spec, lesson.values.astype(np.float64)
            updates = TokenStatistics.of_flat(values[:, : self.width], spec.depth, spec.dim)
            offsets = values[:, self.width :]
            self.reference = self.reference.learn(offsets, self.targets.residuals(updates, offsets), lesson.clean)

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
            (self.config.cls_strength if spec.class_token else 0.0) * part * believed.cls,
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
            "batches": np.array(self.batches),
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
        self.memory.values = variables["updates"].astype(np.float16)
        self.reference = Reference(
            reference_images,
            variables["reference_offset"].astype(np.float64),
            variables["reference_residual"].astype(np.float64),
        )
        self.credit, self.batches = float(variables["credit"]), int(variables["batches"])
        self._rewind()

    def _rewind(self) -> None:
        """Let the journal, where there is one, note that the run went back."""
        if self.journal is not None:
            self.journal.rewind(self.batches)

    def _header(self) -> dict[str, object]:
        """Say whose a journal is. What is learnt depends on the clean statistics too, so they are told by checksum."""
        facts = (self.targets.average, self.targets.scale, self.targets.weights)
        crc = zlib.crc32(b"".join(part.flat().tobytes() for part in facts))
        return {**self._owner(), "model": self.engine.spec.name, "source": crc}

    def _record(self) -> dict[str, object]:
        """Make a journal's line of the latest batch."""
        lessons = [None if lesson is None else lesson.encode() for lesson in self.lessons]
        return {"lessons": lessons, "credit": self.credit, "led_to": self._checksum()}

    def _checksum(self) -> int:
        """CRC-32 of what is learnt beyond the memory, which is told by the lessons themselves."""
        return zlib.crc32(self.reference.offset.tobytes() + self.reference.residual.tobytes())

    def replay(self, journal: str | os.PathLike[str], batches: int | None = None) -> None:
        """Continue from where a journal leads, exactly, without any image: after all its batches, or the first few.

        That is how an adaptation is continued after a crash, audited, and undone to any batch. The journal has to be of
        the same model, statistics and config. If it is refused, nothing is changed.
        """
        file, other = read_journal(journal), self.clone()
        file.check(self._header())
        for line in file.lines(batches):
            other._follow(line, f"batch {line['index']} of the journal {file.path}")
        self.load_state(other.state())

    def _follow(self, line: Mapping[str, object], what: str) -> None:
        """Learn again what a line of a journal says."""
        lessons, credit = line.get("lessons"), line.get("credit")
        if not isinstance(lessons, list) or type(credit) is not float or not 0 <= credit <= BUCKET:
            raise FozoError(f"{what} tells no lessons, or no credit; use a copy from before")
        for each in lessons:
            if each is None:
                self._forget()
            else:
                lesson = Lesson.decode(each, self.descriptor_std.size, self.memory.values.shape[1])
                self.memory.add(lesson.domains, lesson.values)
                self._learn_reference(lesson)
        self.credit, self.batches = credit, self.batches + 1
        if line.get("led_to") != self._checksum():
            raise FozoError(f"replaying {what} leads elsewhere; use the NumPy version of the original run")
