"""Align: weak spatial frequencies are restored, and tokens moved towards those of clean images of the same content.

One forward pass an image, no gradient, no prompt, no random number. The stream is worked through in groups of a few
images. For each of them, :mod:`~fozo.methods.align.retrieval` finds the earlier images of the same domain. Where bands
of spatial frequency are weaker in that domain than on clean images, :mod:`~fozo.methods.align.equaliser` amplifies
them. What the blocks added to images of that domain is what they are expected to add to this one.
:mod:`~fozo.methods.align.targets` says where the tokens of clean images with that content would be, and how much of the
difference can be believed to be drift; :mod:`~fozo.methods.align.alignment` turns that into moves before every block.

With more passes, images are run again once they are in the memory themselves: the moves then rest on what the blocks
really added to them, which matters most where little else is remembered. ``passes="auto"`` makes a second pass just
there, within a budget, and one everywhere else.

Only what is finite and plausible is remembered: ``metrics()`` counts the images of a batch that were predicted but not
learnt from (``skipped``). Should adaptation ever break predictions all the same, those of the plain model are returned
and the memory starts again (``fallbacks``).
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fozo.core.content import contents
from fozo.core.descriptor import Single, spectra
from fozo.errors import FozoError
from fozo.methods.align.alignment import BlockUpdates, joined, layer_counts, plan
from fozo.methods.align.config import BUCKET, BURST, AlignConfig
from fozo.methods.align.correction import NEGLIGIBLE, PART, Correction
from fozo.methods.align.equaliser import equalise, log_gains
from fozo.methods.align.retrieval import DomainEstimate, Memory, Retrieved, Rows
from fozo.methods.align.targets import CameraBaseline, Targets
from fozo.methods.base import Method
from fozo.methods.common.journal import apply_changes, changes
from fozo.methods.registry import register
from fozo.types import NO_KNOBS, Array, Batch, Floats, Knobs, State, Tap, Taps

if TYPE_CHECKING:
    from typing_extensions import Self

RICH = 32.0
"""Where every image has retrieved this many effective samples, those of its own batch would hardly add to them."""
LARGEST_GROUP = 64
"""Images that go through the model together at most, which bounds the memory that their taps take."""
PLANNED = 8
"""Rows that are planned at a time, to stay in the cache."""
TAPS = (Tap.LOGITS, Tap.CLS, Tap.PATCH_MEAN, Tap.PATCH_VARIANCE)
Update = tuple[Rows, Array]
"""What a group of images adds to the memory, and how clean each of them looks, 0 to 1."""


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
        source, spec, config = self.source, self.engine.spec, self.config
        self.targets = Targets(source, self.engine.head(), spec.depth, config.content_strength, config.content_error)
        self.descriptor_mean, self.descriptor_std = source.descriptor.mean, np.maximum(source.descriptor.std, 1e-6)
        self.spectra = spectra(*spec.image_shape)
        counts = layer_counts(spec.depth)
        self.shape = (sum(counts), spec.dim, self.targets.vectors.shape[1])
        """Layers, width and contents of what is remembered of an image."""
        self.parameters = self.shape[0] * self.shape[1]  # of the moves of one image
        cls_strength = config.cls_strength if spec.class_token else 0.0
        self.strengths = np.repeat([config.mean_strength, config.std_strength, cls_strength], counts)[:, None]

    def begin(self) -> None:
        self._forget()
        self.credit, self.batches = BURST, 0
        self.updates: list[Update | None] = []
        """Of each group of the latest batch, ``None`` for a fallback."""
        self.origins: list[DomainEstimate | bool] = []
        """Where its correction comes from: made for a domain and cached, else whether it was cached before."""
        self.passes_per_image = 1.0
        self._reader: tuple[Knobs, BlockUpdates] | None = None
        self._free()

    def _forget(self) -> None:
        self.memory = self._empty()
        self.baseline = self.targets.no_baseline()
        self.correction = Correction.none(self.descriptor_std.size, (self.spectra.channels, self.spectra.bands))

    def _empty(self) -> Memory:
        return Memory(self.descriptor_std.size, self.shape, self.config.retrieval)

    def _free(self) -> None:
        self._gains: tuple[Array, Single] | None = None
        self._buffer = np.empty((0, *self.engine.spec.image_shape), dtype=np.float32)

    def step(self, batch: Batch) -> Floats:
        """Adapt to images and predict them; those that cannot be pictures are predicted by the plain model."""
        if len(self._buffer) < len(batch):  # for coefficients, then equalised images: fresh pages would cost time
            self._buffer = np.empty(batch.images.shape, dtype=np.float32)
        buffer = self._buffer[: len(batch)]
        coefficients, descriptors = self.spectra.transform(batch.images, buffer, self.engine.threads)
        self.descriptors = descriptors
        self.updates, self.origins, self.passes_per_image = [], [], 1.0
        sound = (np.abs(descriptors) <= self.spectra.limits).all(axis=1)  # False for NaN
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
        skipped, fallbacks = len(logits), 0
        for update in self.updates:
            skipped -= 0 if update is None else len(update[1])
            fallbacks += update is None
        self.report(**self._metrics, skipped=float(skipped), fallbacks=float(fallbacks))
        self.batches += 1
        return logits

    def _adapt(self, batch: Batch, coefficients: Single, descriptors: Array) -> Floats:
        """Adapt group by group, so that late images profit from early ones."""
        descriptors = (descriptors - self.descriptor_mean) / self.descriptor_std
        domains = self.config.retrieval.estimate(descriptors, self.memory.latest(self.config.retrieval.context))
        logits, spent, samples, start = list[Floats](), 0, 0.0, 0
        while start < len(descriptors):
            some, correction = self._next_group(domains, start)
            samples = float(correction.samples.mean())
            passes, self.credit = self.config.spend(some.stop - start, samples, self.credit)
            group, passes = self._predict(batch.part(some), coefficients[some], domains.part(some), correction, passes)
            logits.append(group)
            spent += passes * len(group)
            start = some.stop
        self.passes_per_image = spent / len(descriptors)
        # About 1 for clean images, whatever the size of the batch.
        shift = len(descriptors) * float(np.square(np.add.reduce(descriptors) / len(descriptors)).mean())
        self.report(shift=shift, effective_sample_size=samples)
        return logits[0] if len(logits) == 1 else np.concatenate(logits)

    def _next_group(self, domains: DomainEstimate, start: int) -> tuple[slice, Correction]:
        """Choose the images that go through the model next, and their correction.

        Later images profit from the early ones of a domain, so groups are small. Where the memory is rich for all, they
        are large.
        """
        count = len(domains.mean)
        group = slice(start, min(start + self.config.group_size, count))
        large = slice(start, min(start + max(LARGEST_GROUP, self.config.group_size), count))
        if large.stop - start <= self.correction.left and self.correction.serves(domains.part(large)):
            self.origins.append(True)
            return large, self.correction
        own = domains.part(group).same_domain()
        retrieved = self.memory.retrieve(own)
        if group != large and retrieved.effective_sample_size.min() >= RICH:
            all_of_them = domains.part(large).same_domain()
            theirs = self.memory.retrieve(all_of_them)
            if theirs.effective_sample_size.min() >= RICH:
                group, own, retrieved = large, all_of_them, theirs
        return group, self._correct(own, retrieved)

    def _correct(self, domains: DomainEstimate, retrieved: Retrieved) -> Correction:
        """Decide what is done to images of ``domains``, and cache it if there is but one."""
        config, samples = self.config, retrieved.effective_sample_size
        posterior = config.retrieval.posterior(domains, retrieved)
        drifted = 1 - config.retrieval.clean_weight(posterior, self.spectra.brightness)
        gains = log_gains(self.spectra, posterior, drifted, self.descriptor_std, config.equaliser_strength)
        left = int(PART * samples[0]) if len(samples) == 1 and config.passes == 1 else 0
        correction = Correction(drifted, gains, self._plan(retrieved, drifted), samples, domains, left)
        if left:
            self.correction = correction
        else:
            self.correction = replace(self.correction, left=0)
        self.origins.append(domains if left else False)
        return correction

    def _plan(self, retrieved: Retrieved, drifted: Array) -> Knobs:
        """Decide the moves from what the blocks added to images of the same domain, and from their content.

        Where nothing has ``drifted`` (0 to 1, ``[B or 1]``), nothing is moved.
        """
        if drifted.max() <= NEGLIGIBLE:
            return NO_KNOBS
        parts = list[Knobs]()
        for start in range(0, len(drifted), PLANNED):
            some = slice(start, start + PLANNED)
            vectors, content = self.memory.rows.average(retrieved.shares[some])
            updates = self.targets.decode(vectors)
            target, believed = self.targets.find(
                updates, content.astype(np.float64), retrieved.effective_sample_size[some], self.baseline
            )
            strengths = self.strengths * drifted[some, None, None] * believed
            parts.append(plan(updates, target, strengths, self.targets.depth))
        return parts[0] if len(parts) == 1 else joined(parts)

    def _predict(
        self, batch: Batch, coefficients: Single, domains: DomainEstimate, correction: Correction, passes: int
    ) -> tuple[Floats, int]:
        """Equalise, move, predict and remember a group of images. Return logits and passes made."""
        knobs = correction.knobs
        plain, batch = batch, self._equalise(batch, coefficients, correction.log_gains)
        self.last_input = None if batch is plain else batch.images[-1]
        for left in range(passes - 1, -1, -1):
            taps = self.engine.run(batch, knobs, TAPS)
            logits: Floats = taps[Tap.LOGITS][0]
            if not np.isfinite(logits).all():
                return self._fall_back(plain), passes - left + 1
            rows, clean = self._observe(domains, taps, knobs, correction.drifted)
            if left:  # the next pass is planned with these images in the memory
                self.memory.add(rows)
                knobs = self._plan(self.memory.retrieve(domains.same_domain()), correction.drifted)
                self.memory.rollback(1)
        self._learn(rows, clean)
        self.updates.append((rows, clean))
        self.correction = replace(self.correction, left=max(self.correction.left - len(logits), 0))
        return logits, passes

    def _equalise(self, batch: Batch, coefficients: Single, gains: Array) -> Batch:
        """Restore the detail that the images' domains lack."""
        if not gains.any():
            return batch
        if len(gains) > 1:
            return batch.with_images(equalise(self.spectra, coefficients, gains, self.engine.threads))
        if self._gains is None or self._gains[0] is not gains:  # those of a cached correction are there already
            self._gains = gains, self.spectra.gains(gains[0])
        return batch.with_images(self.spectra.inverse(coefficients, self._gains[1], self.engine.threads))

    def _observe(self, domains: DomainEstimate, taps: Taps, knobs: Knobs, drifted: Array) -> Update:
        """Return what is to be remembered of images: nothing of those whose tokens are implausible."""
        if self._reader is None or self._reader[0] is not knobs:  # those of a cached correction stay the same
            self._reader = knobs, BlockUpdates(knobs, self.targets.centre, self.targets.unit, self.targets.depth)
        vectors = self._reader[1](taps)
        content = contents(taps[Tap.LOGITS][0], self.targets.offsets)
        clean = (1 - drifted).repeat(len(vectors) // len(drifted))
        sound = self.targets.plausible(vectors)
        if not sound.all():
            domains, vectors, content, clean = domains.part(sound), vectors[sound], content[sound], clean[sound]
        return Rows.of(domains, vectors, content), clean

    def _learn(self, rows: Rows, clean: Array) -> None:
        """Remember images, and take them as the camera's baseline in proportion to how clean they look."""
        self.memory.add(rows)
        weight = float(clean.sum())
        if self.config.camera_baseline and weight > NEGLIGIBLE:
            # All is linear in what is remembered, so the average image has the average residual.
            vectors, content = rows.average(clean[None] / weight)
            offset = content.astype(np.float64)
            residual = self.targets.residuals(self.targets.decode(vectors), offset)
            self.baseline = self.baseline.learn(weight, offset[0], residual[0])

    def _plain(self, batch: Batch) -> Floats:
        """Predict images without adaptation; logits that are not finite even then are refused."""
        logits: Floats = self.engine.run(batch)[Tap.LOGITS][0]
        if not np.isfinite(logits).all():
            raise FozoError("the model's logits are not all finite; nothing was changed: check its weights")
        return logits

    def _fall_back(self, batch: Batch) -> Floats:
        """Adaptation has broken predictions: return those of the plain model, and forget everything."""
        # What is remembered is checked, so this should not happen; if it does, it must not happen for ever.
        logits = self._plain(batch)
        self._forget()
        self.updates.append(None)
        return logits

    def checkpoint(self) -> Callable[[], None]:
        """Roll the memory back instead of copying it."""
        memory, before = self.memory, (self.baseline, self.correction, self.credit, self.batches)
        memory.commit()

        def undo() -> None:
            memory.rollback()
            self.memory = memory
            self.baseline, self.correction, self.credit, self.batches = before

        return undo

    def variables(self) -> State:
        return {
            **self.memory.state(),
            **self._derived(),
            "credit": np.array(self.credit),
            "batches": np.array(self.batches),
        }

    def _derived(self) -> State:
        """What is learnt beyond the memory, but for two counts."""
        spec = self.engine.spec
        return {**self.correction.state(spec.depth, spec.dim), **self.baseline.state()}

    def assign(self, variables: State) -> None:
        baseline, correction = CameraBaseline.of_state(variables), Correction.of_state(variables)
        credit, memory = float(variables["credit"]), self._empty()
        if not 0 <= credit <= BUCKET:
            raise FozoError(f"the state's credit is {credit:g}, of 0 to {BUCKET:g}; save the state again")
        memory.load(variables)
        self.memory, self.correction, self.baseline = memory, correction, baseline
        self.credit, self.batches = credit, int(variables["batches"])

    def sibling(self) -> Self:
        made = super().sibling()
        made.targets = copy.copy(self.targets)  # which cache what they computed last
        return made

    def release(self) -> None:
        super().release()
        with self.lock:
            self._free()

    @property
    def journal_index(self) -> int:
        return self.batches

    def journal_header(self) -> dict[str, object]:
        """What is learnt depends on the clean statistics too, so their checksum has to be the same."""
        arrays = (self.targets.average, self.targets.scale, self.targets.weights)
        return {**super().journal_header(), "source": zlib.crc32(b"".join(array.tobytes() for array in arrays))}

    def _no_update(self) -> State:
        return {**vars(Rows.empty(0, self.descriptor_std.size, self.shape)), "clean": np.zeros(0)}

    def record(self) -> dict[str, object]:
        """Encode the memory update of each group, and where its correction comes from: all else follows from these."""
        empty = self._no_update()
        updates, origins = list[object](), list[object]()
        for update, origin in zip(self.updates, self.origins, strict=True):
            updates.append(None if update is None else changes(empty, {**vars(update[0]), "clean": update[1]}))
            if isinstance(origin, bool):
                origins.append(origin)
            else:
                domain: State = {"mean": origin.mean, "variance": origin.variance}
                origins.append(changes(empty, domain))
        entry = {"updates": updates, "origins": origins, "left": self.correction.left, "credit": self.credit}
        return {**entry, "led_to": self._checksum()}

    def _checksum(self) -> int:
        return zlib.crc32(b"".join(array.tobytes() for array in self._derived().values()))

    def follow(self, entry: Mapping[str, Any]) -> None:
        empty = self._no_update()
        for encoded, origin in zip(entry["updates"], entry["origins"], strict=True):
            if isinstance(origin, bool):
                self.correction = replace(self.correction, left=self.correction.left if origin else 0)
            else:
                found: dict[str, Any] = apply_changes(empty, origin)
                domains = DomainEstimate(found["mean"], found["variance"], found["mean"])
                self._correct(domains, self.memory.retrieve(domains))
            if encoded is None:
                self._forget()
            else:
                update: dict[str, Any] = apply_changes(empty, encoded)
                if len({len(array) for array in update.values()}) > 1:
                    raise FozoError("its arrays are of different numbers of images; restore it from a backup")
                clean = update.pop("clean")
                self._learn(Rows(**update), clean)
        self.memory.commit()
        self.correction = replace(self.correction, left=int(entry["left"]))
        self.credit, self.batches = float(entry["credit"]), self.batches + 1
        if entry["led_to"] != self._checksum():
            raise FozoError("it leads to another state; use the NumPy version of the original run")
