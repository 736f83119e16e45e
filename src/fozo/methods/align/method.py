"""Align: images are restored, and tokens moved towards those of clean images of the same content.

One forward pass an image, no gradient, no prompt, no random number. For each group of images of a batch:

1. **describe** them by their bands of spatial frequency (:mod:`fozo.core.descriptor`);
2. **estimate** their domains and **retrieve** earlier images of these (:mod:`~fozo.methods.align.memory`);
3. **equalise**: restore contrast, light and detail, and remove noise (:mod:`~fozo.methods.align.equaliser`);
4. **plan**: blocks are expected to add to these images what they added to those retrieved. How far tokens are then from
   clean ones of that content, as far as it is drift (:class:`~fozo.methods.align.moves.Targets`), decides the moves
   before every block (:mod:`~fozo.methods.align.moves`);
5. **run** the model under these moves, and **remember** what its blocks added.

With more passes, images are run again once they are in the memory themselves: the moves then rest on what the blocks
really added to them, which matters most where little else is remembered. ``passes="auto"`` makes a second pass just
there, within a budget, and one everywhere else.

Only what is finite and plausible is remembered: ``metrics()`` counts the images of a batch that were predicted but not
learnt from (``skipped``). Should adaptation ever break predictions all the same, those of the plain model are returned
and the memory starts again (``fallbacks``).
"""

import copy
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fozo.core.content import contents
from fozo.core.descriptor import Single
from fozo.errors import FozoError
from fozo.methods.align.equaliser import Equaliser, Restoration
from fozo.methods.align.memory import REPLAN, DomainEstimate, RetrievalConfig, Retrieved, Rows
from fozo.methods.align.moves import BlockUpdates, Targets, layer_counts, plan
from fozo.methods.base import Method
from fozo.methods.common.options import positive
from fozo.methods.registry import register
from fozo.types import NO_KNOBS, Array, Batch, Floats, Knobs, State, Tap

AUTO = "auto"
MOST_PASSES = 1000  # each costs as much as the first, and from the third on they change nothing
ESS_THRESHOLD = 8.0  # ``auto`` makes a second pass where fewer effective samples than this have been retrieved
BURST = 16.0  # second passes in the token bucket of ``auto`` at the beginning: two groups
BUCKET = 64.0  # second passes that it holds at most, so that a long quiet time is not followed by a long burst
LARGEST_GROUP = 32  # images that are measured, and go through the model, together: bounds the memory that they take
RICH = 32.0  # effective samples beyond which those of an image's own batch would hardly add to them
PART = 0.25  # new images that a correction is cached for, as a part of the effective samples that it rests on
Mask = npt.NDArray[np.bool_]
TAPS = (Tap.LOGITS, Tap.CLS, Tap.PATCH_MEAN, Tap.PATCH_VARIANCE)


@dataclass(frozen=True)
class AlignConfig:
    """Everything about Align that can be chosen. One setting serves all models: nothing has a unit.

    Examples:
        >>> fozo.Align(model, source, passes=2, **{"retrieval.capacity": 256}).config
        AlignConfig(passes=2, ..., retrieval=RetrievalConfig(..., capacity=256))
    """

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


@dataclass(frozen=True)
class Correction:
    """What is done to images of one domain, or to each image of several: rows of both."""

    restoration: Restoration  # of the images
    knobs: Knobs
    updates: BlockUpdates  # reads what blocks add under these moves
    samples: Array  # effective samples that it rests on, [n or 1]


@register(
    "align", passes="1 or more", adapts="image bands and token moves", paper="fozo, docs/method.md",
    needs={"source", "tokens"},
)  # fmt: skip
class Align(Method[AlignConfig]):
    """Images equalised and tokens aligned with clean ones of the same content, by domain.

    Examples:
        >>> method = fozo.Align(model, source, passes="auto")
        >>> logits = method(batch)
        >>> method.metrics()
        {'shift': 0.65..., 'effective_sample_size': ..., 'skipped': 0.0, 'fallbacks': 0.0}
    """

    PRESETS: ClassVar = {"default": AlignConfig()}
    STATE: ClassVar = ("memory", "credit", "batches")
    VARIABLE_LENGTH: ClassVar = dict.fromkeys(
        ("mean", "variance", "descriptor", "codes", "scales", "contents"), "images"
    )

    def prepare(self) -> None:
        source, spec, config = self.source, self.engine.spec, self.config
        self.equaliser = Equaliser(source, self.engine, config.equaliser_strength, config.retrieval)
        self.targets = Targets(source, self.engine.head(), spec.depth, config.content_strength, config.content_error)
        counts = layer_counts(spec.depth)
        self.shape = (sum(counts), spec.dim, self.targets.offsets.shape[1])  # of what is remembered of an image
        self.parameters = self.shape[0] * self.shape[1]  # of the moves of one image
        cls_strength = config.cls_strength if spec.class_token else 0.0
        self.strengths = np.repeat([config.mean_strength, config.std_strength, cls_strength], counts)[:, None]
        # A correction rests on at most as many samples as weights that fall by half over a half-life add up to.
        self.cacheable = PART / (1 - 0.5 ** (1 / config.retrieval.half_life)) if config.passes == 1 else 0.0

    def begin(self) -> None:
        self.memory = self.equaliser.memory(self.shape)
        self.credit, self.batches = BURST, 0
        self._cached: tuple[int, DomainEstimate, Correction] | None = None

    def step(self, batch: Batch) -> Floats:
        """Adapt to images and predict them; those that cannot be pictures are predicted by the plain model."""
        self.passes_per_image = self.samples = 0.0
        self.counts = {"skipped": float(len(batch)), "fallbacks": 0.0}
        logits, features, pictures = list[Floats](), list[Array](), list[Mask]()
        parts = -(-len(batch) // LARGEST_GROUP)
        for start, stop in pairwise(len(batch) * part // parts for part in range(parts + 1)):
            some = batch.part(slice(start, stop))
            coefficients, descriptors, sound = self.equaliser.describe(some.images)
            if sound.all():
                logits.append(self._adapt(some, coefficients, descriptors))
            else:
                logits.append(self._plain(some))
                if sound.any():
                    good = some.with_images(some.images[sound])
                    logits[-1][sound] = self._adapt(good, coefficients[sound], descriptors[sound])
                self.last_input = None  # it may be of another image than the last
            features.append(descriptors)
            pictures.append(sound)
        self.descriptors = np.concatenate(features)
        self.passes_per_image /= len(batch)
        self.batches += 1
        shift = self.equaliser.shift(self.descriptors[np.concatenate(pictures)])
        self._metrics = {"shift": shift, "effective_sample_size": self.samples, **self.counts}
        return np.concatenate(logits)

    def _adapt(self, batch: Batch, coefficients: Single, descriptors: Array) -> Floats:
        """Adapt group by group, so that late images profit from early ones."""
        domains, logits, start = self.equaliser.domains(descriptors, self.memory), list[Floats](), 0
        while start < len(descriptors):
            group, correction = self._next_group(domains, start)
            logits.append(self._predict(batch.part(group), coefficients[group], domains.part(group), correction))
            start = group.stop
        return np.concatenate(logits)

    def _next_group(self, domains: DomainEstimate, start: int) -> tuple[slice, Correction]:
        """Choose the images that go through the model next: few, but all where the memory is rich for all of them."""
        count = len(domains.mean)
        group, rest = slice(start, min(start + self.config.group_size, count)), slice(start, count)
        cached = self._cached_correction(domains.part(rest))
        if cached is not None:
            return rest, cached
        own = domains.part(group).same_domain()
        retrieved = self.memory.retrieve(own)
        if group != rest and retrieved.samples.min() >= RICH:
            all_of_them = domains.part(rest).same_domain()
            theirs = self.memory.retrieve(all_of_them)
            if theirs.samples.min() >= RICH:
                group, own, retrieved = rest, all_of_them, theirs
        return group, self._correct(own, retrieved)

    def _cached_correction(self, domains: DomainEstimate) -> Correction | None:
        """Return the correction that few images share with those before them, if they are of the same domain.

        A correction hardly changes until a quarter as many images have come as it rests on. So one is made for the
        domain of every sixteenth image, from the images up to it: it follows from the memory, and is not state.
        """
        newest, count = self.memory.seen % REPLAN, len(domains.mean)
        if newest + count > min(self.cacheable, PART * self.memory.seen):
            return None
        if self._cached is None or self._cached[0] != self.memory.seen - newest:
            last = self.memory.latest(newest + 1).part(slice(0, 1))
            correction = self._correct(last, self.memory.retrieve(last, newest))
            self._cached = self.memory.seen - newest, last, correction
        _, domain, correction = self._cached
        own = domains.same_domain()
        if len(own.mean) > 1 or newest + count > PART * correction.samples[0]:
            return None
        distance = np.square(own.mean - domain.mean) / (own.variance + domain.variance)
        return correction if distance.mean() <= 1 else None  # what two estimates of one domain differ by

    def _correct(self, domains: DomainEstimate, retrieved: Retrieved) -> Correction:
        """Decide what is done to images of ``domains``."""
        restoration, knobs = self.equaliser.plan(domains, retrieved), self._plan(retrieved)
        return Correction(restoration, knobs, BlockUpdates(knobs, self.targets), retrieved.samples)

    def _plan(self, retrieved: Retrieved) -> Knobs:
        """Decide the moves from what the blocks added to images of the same domain, and from their content."""
        vectors, content = retrieved.rows.average(retrieved.shares)
        updates, target, believed = self.targets.find(vectors, content, retrieved.samples)
        return plan(updates, target, self.strengths * believed, self.targets.depth) if believed.any() else NO_KNOBS

    def _predict(self, plain: Batch, coefficients: Single, domains: DomainEstimate, correction: Correction) -> Floats:
        """Equalise images, run the model under the moves, and remember what its blocks added."""
        batch, knobs, reader = plain, correction.knobs, correction.updates
        self.last_input, self.samples = None, float(correction.samples.mean())
        if correction.restoration:
            batch = plain.with_images(self.equaliser.restore(plain.images, coefficients, correction.restoration))
            self.last_input = batch.images[-1]
        passes = self.config.passes
        if not isinstance(passes, int):
            passes, self.credit = self.config.spend(len(batch), self.samples, self.credit)
        for left in reversed(range(passes)):
            self.passes_per_image += len(batch)  # divided by the images of the whole batch in the end
            taps = self.engine.run(batch, knobs, TAPS)
            logits: Floats = taps[Tap.LOGITS][0]
            if not np.isfinite(logits).all():
                return self._fall_back(plain)
            vectors, content = reader(taps), contents(logits, self.targets.offsets)
            sound = self.targets.plausible(vectors)
            before = copy.copy(self.memory)
            self.memory.add(Rows.pack(domains.part(sound), vectors[sound], content[sound]))
            if left:  # the next pass is planned with these images in the memory, and takes their place there
                knobs = self._plan(self.memory.retrieve(domains.same_domain()))
                reader = BlockUpdates(knobs, self.targets)
                self.memory = before
        self.counts["skipped"] -= int(sound.sum())
        return logits

    def _plain(self, batch: Batch) -> Floats:
        """Predict images without adaptation; logits that are not finite even then are refused."""
        self.passes_per_image += len(batch)
        logits: Floats = np.array(self.engine.run(batch)[Tap.LOGITS][0])
        if not np.isfinite(logits).all():
            raise FozoError("the model's logits are not all finite; nothing was changed: check its weights")
        return logits

    def _fall_back(self, batch: Batch) -> Floats:
        """Adaptation has broken predictions: return those of the plain model, and forget everything."""
        logits = self._plain(batch)
        self.memory = self.equaliser.memory(self.shape)
        self._cached = None
        self.counts["fallbacks"] += 1
        return logits

    def checkpoint(self) -> Callable[[], None]:
        before = copy.copy(self.memory), self.credit, self.batches

        def undo() -> None:
            self.memory, self.credit, self.batches = before
            if self._cached is not None and self._cached[0] > self.memory.seen:
                self._cached = None

        return undo

    def assign(self, variables: State) -> None:
        super().assign(variables)
        self._cached = None

    def release(self) -> None:
        super().release()
        with self.lock:
            self._cached = None

    @property
    def journal_index(self) -> int:
        return self.batches

    def journal_header(self) -> dict[str, object]:
        """What is learnt depends on the clean statistics too, so their checksum has to be the same."""
        arrays = (self.targets.average, self.targets.scale, self.targets.weights)
        return {**super().journal_header(), "source": zlib.crc32(b"".join(array.tobytes() for array in arrays))}
