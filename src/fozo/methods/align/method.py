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
predicted but not learnt from (``skipped``). Should adaptation ever break predictions all the same, those of the plain
model are returned and the memory is begun anew (``fallbacks``).
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fozo.core.descriptor import Single, spectra
from fozo.errors import FozoError
from fozo.methods.align.alignment import TokenStatistics, joined, plan
from fozo.methods.align.config import BUCKET, BURST, AlignConfig
from fozo.methods.align.correction import Correction, correction_of, correction_state
from fozo.methods.align.equaliser import band_gains, energy_deficit, equalise
from fozo.methods.align.retrieval import DomainEstimate, Memory, Retrieved, Stored
from fozo.methods.align.targets import CameraBaseline, Targets
from fozo.methods.align.update import Update
from fozo.methods.base import Method
from fozo.methods.registry import register
from fozo.types import NO_KNOBS, Array, Batch, Floats, Knobs, State, Tap

if TYPE_CHECKING:
    from typing_extensions import Self

RICH = 32.0
"""Where every image has retrieved so many effective samples, those of its own batch would hardly add to them."""
LARGEST_GROUP = 64
"""Images that go through the model together at most, which bounds the memory that their taps take."""
NEGLIGIBLE = 1e-6
"""A part of a move, or of an image, that is as good as none."""
PLANNED = 8
"""Rows that are planned at a time, to stay in the cache."""
TAPS = (Tap.LOGITS, Tap.CLS, Tap.PATCH_MEAN, Tap.PATCH_VARIANCE)


@register(
    "align", passes="1 or more", adapts="image bands and token moves", paper="fozo, docs/method.md",
    needs={"source", "tokens"},
)  # fmt: skip
class Align(Method[AlignConfig]):
    """Images equalised and tokens aligned with clean ones of the same content, by domain."""

    PRESETS: ClassVar = {"default": AlignConfig()}
    VARIABLE_LENGTH: ClassVar = dict.fromkeys(
        ("mean", "variance", "descriptor", "codes", "scales", "contents"), "images"
    )

    def prepare(self) -> None:
        """Read the targets from the source statistics."""
        source, spec = self.source, self.engine.spec
        self.targets = Targets(
            source, self.engine.head(), spec.depth, self.config.content_strength, self.config.content_error
        )
        self.width = TokenStatistics.width(spec.depth, spec.dim)
        self.descriptor_std = np.maximum(source.descriptor.std, 1e-6)
        self.spectra = spectra(*spec.image_shape)
        self.form = (self.width // spec.dim, spec.dim, self.targets.vectors.shape[1])
        self._gains: tuple[Array, Single] | None = None
        self._room = np.empty((0, *spec.image_shape), dtype=np.float32)

    def begin(self) -> None:
        """Begin with an empty memory."""
        self._forget()
        self.credit, self.batches = BURST, 0
        self.planned: list[DomainEstimate | bool] = []
        self.passes_per_image = 1.0

    def _forget(self) -> None:
        self.memory = self._empty()
        self.baseline = self.targets.no_baseline(self.engine.spec.dim)
        self.correction: Correction | None = None

    def _empty(self) -> Memory:
        return Memory(self.descriptor_std.size, self.form, self.config.retrieval)

    def step(self, batch: Batch) -> Floats:
        """Adapt to images and predict them; those that cannot be pictures are predicted by the plain model."""
        room, threads = self._space(len(batch)), self.engine.threads
        coefficients, descriptors = self.spectra.transform(batch.images, room, threads)
        self.descriptors = descriptors
        sound = self.spectra.sound(descriptors)
        self.updates: list[Update | None] = []
        self.planned = []
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
            self.last_input = None  # it may be of another image than the last
        learnt = [len(update) for update in self.updates if update is not None]
        skipped, fallbacks = len(batch) - sum(learnt), len(self.updates) - len(learnt)
        self.report(**self._metrics, skipped=float(skipped), fallbacks=float(fallbacks))
        self.batches += 1
        return logits

    def _space(self, images: int) -> Single:
        """Where coefficients and then equalised images go: always the same memory, because fresh pages cost time."""
        if len(self._room) < images:
            self._room = np.empty((images, *self._room.shape[1:]), dtype=np.float32)
        return self._room[:images]

    def _adapt(self, batch: Batch, coefficients: Single, descriptors: Array) -> Floats:
        """Adapt to described images group by group, so that early ones teach late ones."""
        descriptors = (descriptors - self.source.descriptor.mean) / self.descriptor_std
        domains = self.config.retrieval.estimate(descriptors, self.memory.latest(self.config.retrieval.context))
        logits, spent, samples, start = list[Floats](), 0, 0.0, 0
        while start < len(batch):
            some, correction = self._next(domains, start)
            samples = float(correction.samples.mean())
            passes, self.credit = self.config.spend(some.stop - start, samples, self.credit)
            group, passes = self._group(batch.part(some), coefficients[some], domains.part(some), correction, passes)
            logits.append(group)
            spent += passes * len(group)
            start = some.stop
        self.passes_per_image = spent / len(batch)
        # About 1 for clean images, whatever the size of the batch.
        shift = len(descriptors) * float(np.square(np.add.reduce(descriptors) / len(descriptors)).mean())
        self.report(shift=shift, effective_sample_size=samples)
        return logits[0] if len(logits) == 1 else np.concatenate(logits)

    def _next(self, domains: DomainEstimate, start: int) -> tuple[slice, Correction]:
        """Choose the images that go through the model next, and decide their correction.

        Early images of a domain teach the next ones, so groups are small. Where the memory is rich for all, they are
        large.
        """
        count = len(domains.mean)
        few = slice(start, min(start + self.config.group_size, count))
        many = slice(start, min(start + max(LARGEST_GROUP, self.config.group_size), count))
        if self.correction is not None and self.correction.serves(domains.part(many)):
            self.planned.append(True)
            return many, self.correction
        own = domains.part(few).same_domain()
        retrieved = self.memory.retrieve(own)
        if few != many and retrieved.effective_sample_size.min() >= RICH:
            all_of_them = domains.part(many).same_domain()
            theirs = self.memory.retrieve(all_of_them)
            if theirs.effective_sample_size.min() >= RICH:
                few, own, retrieved = many, all_of_them, theirs
        return few, self._treat(own, retrieved)

    def _treat(self, domains: DomainEstimate, retrieved: Retrieved) -> Correction:
        """Decide what is done to images of ``domains``, and keep it for more of them if there is but one."""
        posterior = self.config.retrieval.posterior(domains, retrieved)
        drifted = 1 - self.config.retrieval.clean_weight(posterior, self.spectra.brightness)
        deficit = drifted[:, None, None] * energy_deficit(self.spectra, posterior, self.descriptor_std)
        knobs = self._plan(retrieved, drifted)
        made = Correction(drifted, deficit, knobs, retrieved.effective_sample_size, domains)
        self.correction = made.kept() if self.config.passes == 1 else None
        self.planned.append(domains if self.correction is not None else False)
        return made

    def _plain(self, batch: Batch) -> Floats:
        """Predict images as if nothing had been adapted; what is not finite even then is refused."""
        logits: Floats = self.engine.run(batch)[Tap.LOGITS][0]
        if not np.isfinite(logits).all():
            raise FozoError("the model's logits are not all finite; nothing was changed: check its weights")
        return logits

    def _heal(self, batch: Batch) -> Floats:
        """Adaptation has broken predictions: if the plain model's are sound, they count, and all memories go."""
        # What is remembered is checked, so this should not happen; if it does, it must not happen for ever.
        logits = self._plain(batch)
        self._forget()
        self.updates.append(None)
        return logits

    def _group(
        self, batch: Batch, coefficients: Single, domains: DomainEstimate, correction: Correction, passes: int
    ) -> tuple[Floats, int]:
        """Move, predict and remember a few images. Return logits and passes made."""
        before, knobs = self.memory.mark(), correction.knobs
        plain, batch = batch, self._equalised(batch, coefficients, correction.deficit)
        self.last_input = None if batch is plain else batch.images[-1]
        for again in range(passes):
            if again:
                knobs = self._plan(self.memory.retrieve(domains.same_domain()), correction.drifted)
            taps = self.engine.run(batch, knobs, TAPS)
            logits: Floats = taps[Tap.LOGITS][0]
            if not np.isfinite(logits).all():
                return self._heal(plain), again + 2
            update = self._update(domains, self.targets.read(taps, knobs), logits, 1 - correction.drifted)
            self.memory.rollback(before)  # what the pass before saw of these images is out of date
            self.memory.add(update.domains, update.stored)
        self._learn_baseline(update)
        self.updates.append(update)
        if self.correction is not None:
            self.correction = self.correction.used(len(batch))
        return logits, passes

    def _update(self, domains: DomainEstimate, vectors: Single, logits: Floats, clean: Array) -> Update:
        """Say what is to be remembered of images; nothing of those whose tokens are beyond belief."""
        clean = clean.repeat(len(logits) // len(clean))
        contents = self.targets.offsets(logits)
        if not self.targets.ordinary(vectors):
            sound = self.targets.plausible(vectors)
            domains, vectors, contents, clean = domains.part(sound), vectors[sound], contents[sound], clean[sound]
        return Update(domains, Stored.of(vectors, contents), clean)

    def _learn_baseline(self, update: Update) -> None:
        """Take images as the camera's baseline as far as they look clean."""
        weight = float(update.clean.sum())
        if self.config.camera_baseline and weight > NEGLIGIBLE:
            # All is linear in what is remembered, so the average image has the average residual.
            vectors, contents = update.stored.average(update.clean[None] / weight)
            offset = contents.astype(np.float64)
            residual = self.targets.residuals(self.targets.decode(vectors), offset)
            self.baseline = self.baseline.learn(offset, residual, np.array([weight]))

    def _equalised(self, batch: Batch, coefficients: Single, deficit: Array) -> Batch:
        """Give images back the detail that their domains lack."""
        if self._gains is None or self._gains[0] is not deficit:  # a correction that is kept has them already
            strength = self.config.equaliser_strength
            if not strength or not deficit.any():
                return batch
            if len(deficit) > 1:
                return batch.with_images(equalise(self.spectra, coefficients, deficit, strength, self.engine.threads))
            self._gains = deficit, band_gains(self.spectra, deficit[0], strength)
        return batch.with_images(self.spectra.inverse(coefficients, self._gains[1], self.engine.threads))

    def _plan(self, retrieved: Retrieved, drifted: Array) -> Knobs:
        """Decide the moves from what the blocks added to images of the same domain, and what those showed.

        Where nothing has ``drifted`` (0 to 1, ``[B or 1]``), nothing is moved.
        """
        if drifted.max() <= NEGLIGIBLE:
            return NO_KNOBS
        rows = len(drifted)
        parts = [
            self._plan_rows(retrieved.part(slice(start, start + PLANNED)), drifted[start : start + PLANNED])
            for start in range(0, rows, PLANNED)
        ]
        return parts[0] if len(parts) == 1 else joined(parts)

    def _plan_rows(self, retrieved: Retrieved, drifted: Array) -> Knobs:
        vectors, contents = self.memory.average(retrieved)
        updates = self.targets.decode(vectors)
        target, believed = self.targets.find(
            updates, contents.astype(np.float64), retrieved.effective_sample_size, self.baseline
        )
        part = drifted[:, None, None]
        strengths = TokenStatistics(
            self.config.mean_strength * part * believed.mean,
            self.config.std_strength * part * believed.log_variance,
            (self.config.cls_strength if self.engine.spec.class_token else 0.0) * part * believed.cls,
        )
        return plan(updates, target, strengths)

    @property
    def parameters(self) -> int:
        """How many numbers the moves of one image consist of."""
        return self.width

    def checkpoint(self) -> Callable[[], None]:
        """Mark where the memory is, instead of copying it."""
        memory, before = self.memory, (self.baseline, self.correction, self.credit, self.batches)
        memory.commit()

        def undo() -> None:
            memory.rollback(0)
            self.memory = memory
            self.baseline, self.correction, self.credit, self.batches = before

        return undo

    def variables(self) -> State:
        """The memory, the camera's baseline, and the token bucket of ``auto``."""
        return {
            **self.memory.state(),
            **self._correction_state(),
            **self.baseline.state(),
            "credit": np.array(self.credit),
            "batches": np.array(self.batches),
        }

    def _correction_state(self) -> State:
        spec, bands = self.engine.spec, (self.spectra.channels, self.spectra.bands)
        return correction_state(self.correction, spec.depth, spec.dim, self.descriptor_std.size, bands)

    def assign(self, variables: State) -> None:
        """Continue from a memory."""
        baseline = CameraBaseline.of_state(variables)
        memory, correction = self._empty(), correction_of(variables, NEGLIGIBLE)
        memory.load(variables)
        self.memory, self.correction, self.baseline = memory, correction, baseline
        self.credit, self.batches = float(variables["credit"]), int(variables["batches"])

    def sibling(self) -> Self:
        made = super().sibling()
        made.targets = copy.copy(self.targets)  # which keep what they computed last
        made._gains, made._room = None, self._room[:0].copy()
        return made

    def release(self) -> None:
        super().release()
        with self.lock:
            self._gains, self._room = None, self._room[:0].copy()

    @property
    def journal_index(self) -> int:
        return self.batches

    def journal_header(self) -> dict[str, object]:
        """Say whose a journal is. What is learnt depends on the clean statistics too, so they are told by checksum."""
        facts = (self.targets.average, self.targets.scale, self.targets.weights)
        crc = zlib.crc32(b"".join(part.flat().tobytes() for part in facts))
        return {**super().journal_header(), "source": crc}

    def record(self) -> dict[str, object]:
        """Make a journal's line of the latest batch: of each group its update, and where its correction comes from.

        That is an estimate of its domain, where the correction was made for it and kept, else whether one was kept from
        before.
        """
        updates = [None if update is None else update.encode() for update in self.updates]
        corrections = [each if isinstance(each, bool) else each.encode() for each in self.planned]
        left = 0 if self.correction is None else self.correction.left
        facts = {"updates": updates, "corrections": corrections, "left": left, "credit": self.credit}
        return {**facts, "led_to": self._checksum()}

    def _checksum(self) -> int:
        """CRC-32 of what is learnt beyond the memory, which is told by the updates themselves."""
        learnt = (self.baseline.offset, self.baseline.residual, *self._correction_state().values())
        return zlib.crc32(b"".join(array.tobytes() for array in learnt))

    def follow(self, line: Mapping[str, object]) -> None:
        """Learn again what a line of a journal says."""
        updates, corrections = line.get("updates"), line.get("corrections")
        credit, left = line.get("credit"), line.get("left")
        if not isinstance(updates, list) or type(credit) is not float or not 0 <= credit <= BUCKET:
            raise FozoError("it has no memory updates, or no credit; restore it from a backup")
        if not isinstance(corrections, list) or len(corrections) != len(updates) or type(left) is not int or left < 0:
            raise FozoError("it has no corrections; restore it from a backup")
        for each, origin in zip(updates, corrections, strict=True):
            if isinstance(origin, str):
                domains = DomainEstimate.decode(origin, self.descriptor_std.size)
                self._treat(domains, self.memory.retrieve(domains))
            elif origin is not True:
                self.correction = None
            if each is None:
                self._forget()
            else:
                update = Update.decode(each, self.descriptor_std.size, self.form)
                self.memory.add(update.domains, update.stored)
                self._learn_baseline(update)
        self.memory.commit()
        self.correction = None if self.correction is None or not left else replace(self.correction, left=left)
        self.credit, self.batches = credit, self.batches + 1
        if line.get("led_to") != self._checksum():
            raise FozoError("it leads elsewhere; use the NumPy version of the original run")
