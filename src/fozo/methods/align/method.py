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

import zlib
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar, cast

import numpy as np
import numpy.typing as npt

from fozo.core.content import contents
from fozo.core.descriptor import Single
from fozo.errors import FozoError
from fozo.methods.align.equaliser import Equaliser, Restoration
from fozo.methods.align.memory import (
    REPLAN,
    DomainEstimate,
    Memory,
    RetrievalConfig,
    Retrieved,
    Rows,
    kept_images,
    retrieve,
)
from fozo.methods.align.moves import BlockUpdates, Targets, layer_counts, plan
from fozo.methods.common.options import positive
from fozo.methods.method import Method, Result
from fozo.methods.registry import register
from fozo.state import State, derived
from fozo.types import NO_KNOBS, Array, Batch, Floats, Knobs, Tap

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


@dataclass(frozen=True)
class CachedCorrection:
    """A correction that the images of one domain share for a while."""

    correction: Correction
    domain: DomainEstimate
    seen: int  # images remembered when it was made


@dataclass(frozen=True)
class AlignState(State):
    """What Align has learnt."""

    memory: Memory
    credit: float = BURST
    """Second passes in the token bucket of ``passes="auto"``."""
    cached: CachedCorrection | None = derived()
    """It follows from the memory, and travels with it."""


@dataclass(frozen=True)
class Group:
    """What became of some images."""

    logits: Floats
    samples: float | None = None  # effective samples that their correction rests on, if there was one
    passes: int = 0  # of all images together
    learnt: int = 0  # images that are remembered
    fell_back: bool = False
    last_input: Floats | None = None  # the last image as the model read it, if it was changed


@register(
    "align", passes="1 or more", adapts="image bands and token moves", paper="fozo, docs/method.md",
    needs={"source", "tokens"},
)  # fmt: skip
class Align(Method[AlignConfig, AlignState]):
    """Images equalised and tokens aligned with clean ones of the same content, by domain.

    Examples:
        >>> method = fozo.Align(model, source, passes="auto")
        >>> logits = method(batch)
        >>> method.metrics()
        {'shift': 0.65..., 'effective_sample_size': ..., 'skipped': 0.0, 'fallbacks': 0.0}
    """

    PRESETS: ClassVar = {"default": AlignConfig()}

    def prepare(self) -> None:
        source = self.source
        spec = self.engine.spec
        config = self.config
        self.equaliser = Equaliser(source, self.engine, config.equaliser_strength, config.retrieval)
        self.targets = Targets(source, self.engine.head(), spec.depth, config.content_strength, config.content_error)
        counts = layer_counts(spec.depth)
        self._shape = (sum(counts), spec.dim, self.targets.offsets.shape[1])  # of what is remembered of an image
        self.parameters = self._shape[0] * self._shape[1]  # of the moves of one image
        cls_strength = config.cls_strength if spec.class_token else 0.0
        self._strengths = np.repeat([config.mean_strength, config.std_strength, cls_strength], counts)[:, None]
        self._capacity = kept_images(config.retrieval)
        # A correction rests on at most as many samples as weights that fall by half over a half-life add up to.
        most_samples = 1 / (1 - 0.5 ** (1 / config.retrieval.half_life))
        self._most_cached = PART * most_samples if config.passes == 1 else 0.0

    def init(self) -> AlignState:
        return AlignState(Memory.empty(self.equaliser.std.size, self._shape))

    def step(self, state: AlignState, batch: Batch) -> Result[AlignState]:
        """Adapt to images and predict them; those that cannot be pictures are predicted by the plain model."""
        images = len(batch)
        groups: list[Group] = []
        logits: list[Floats] = []
        descriptors: list[Array] = []
        pictures: list[Mask] = []
        for part in _parts(images, LARGEST_GROUP):
            some = batch.part(part)
            coefficients, described, is_picture = self.equaliser.describe(some.images)
            if is_picture.all():
                state, adapted = self._adapt(state, some, coefficients, described)
                groups += adapted
                logits += [group.logits for group in adapted]
            else:
                part_logits = self._plain(some)
                groups.append(Group(part_logits, passes=len(some)))
                if is_picture.any():
                    good = some.with_images(some.images[is_picture])
                    state, adapted = self._adapt(state, good, coefficients[is_picture], described[is_picture])
                    groups += [replace(group, last_input=None) for group in adapted]  # may not be of the last image
                    part_logits[is_picture] = np.concatenate([group.logits for group in adapted])
                logits.append(part_logits)
            descriptors.append(described)
            pictures.append(is_picture)

        all_descriptors = np.concatenate(descriptors)
        samples = [group.samples for group in groups if group.samples is not None]
        metrics = {
            "shift": self.equaliser.shift(all_descriptors[np.concatenate(pictures)]),
            "effective_sample_size": samples[-1] if samples else 0.0,
            "skipped": float(images - sum(group.learnt for group in groups)),
            "fallbacks": float(sum(group.fell_back for group in groups)),
        }
        return Result(
            logits=np.concatenate(logits),
            state=state,
            metrics=metrics,
            passes=sum(group.passes for group in groups) / images,
            descriptors=all_descriptors,
            last_input=groups[-1].last_input,
        )

    def _adapt(
        self, state: AlignState, batch: Batch, coefficients: Single, descriptors: Array
    ) -> tuple[AlignState, list[Group]]:
        """Adapt group by group, so that late images profit from early ones."""
        domains = self.equaliser.domains(descriptors, state.memory)
        groups: list[Group] = []
        start = 0
        while start < len(descriptors):
            state, images, correction = self._next_group(state, domains, start)
            state, group = self._predict(
                state, batch.part(images), coefficients[images], domains.part(images), correction
            )
            groups.append(group)
            start = images.stop
        return state, groups

    def _next_group(
        self, state: AlignState, domains: DomainEstimate, start: int
    ) -> tuple[AlignState, slice, Correction]:
        """Choose the images that go through the model next: few, but all where the memory is rich for all of them."""
        count = len(domains.mean)
        few = slice(start, min(start + self.config.group_size, count))
        rest = slice(start, count)
        state = self._with_cached(state, count - start)
        if state.cached is not None and self._is_cached_for(state, domains.part(rest)):
            return state, rest, state.cached.correction

        domain = domains.part(few).same_domain()
        retrieved = self._retrieve(state, domain)
        if few != rest and retrieved.samples.min() >= RICH:
            domain_of_rest = domains.part(rest).same_domain()
            retrieved_for_rest = self._retrieve(state, domain_of_rest)
            if retrieved_for_rest.samples.min() >= RICH:
                return state, rest, self._correct(domain_of_rest, retrieved_for_rest)
        return state, few, self._correct(domain, retrieved)

    def _with_cached(self, state: AlignState, images: int) -> AlignState:
        """Cache the correction of the latest sixteenth image, where the next ``images`` are few beside those before.

        A correction hardly changes until a quarter as many images have come as it rests on. So one is made for the
        domain of every sixteenth image, from the images up to it.
        """
        memory = state.memory
        newest = memory.seen % REPLAN
        if newest + images > min(self._most_cached, PART * memory.seen):
            return replace(state, cached=None)
        if state.cached is not None and state.cached.seen == memory.seen - newest:
            return state
        last = len(memory) - newest
        sixteenth = memory.rows(last - 1, last)
        correction = self._correct(sixteenth, self._retrieve(state, sixteenth, newest))
        return replace(state, cached=CachedCorrection(correction, sixteenth, memory.seen - newest))

    def _is_cached_for(self, state: AlignState, domains: DomainEstimate) -> bool:
        """Whether images are of the domain of the cached correction, and still few beside those it rests on."""
        cached = cast("CachedCorrection", state.cached)
        waiting = state.memory.seen - cached.seen + len(domains.mean)
        domain = domains.same_domain()
        if len(domain.mean) > 1 or waiting > PART * cached.correction.samples[0]:
            return False
        distance = np.square(domain.mean - cached.domain.mean) / (domain.variance + cached.domain.variance)
        return bool(distance.mean() <= 1)  # what two estimates of one domain differ by

    def _retrieve(self, state: AlignState, domains: DomainEstimate, newest: int = 0) -> Retrieved:
        return retrieve(state.memory, domains, self.config.retrieval, newest)

    def _correct(self, domains: DomainEstimate, retrieved: Retrieved) -> Correction:
        """Decide what is done to images of ``domains``."""
        restoration = self.equaliser.plan(domains, retrieved)
        knobs = self._plan(retrieved)
        return Correction(restoration, knobs, BlockUpdates(knobs, self.targets), retrieved.samples)

    def _plan(self, retrieved: Retrieved) -> Knobs:
        """Decide the moves from what the blocks added to images of the same domain, and from their content."""
        vectors, content = retrieved.rows.average(retrieved.shares)
        updates, target, believed = self.targets.find(vectors, content, retrieved.samples)
        if not believed.any():
            return NO_KNOBS
        return plan(updates, target, self._strengths * believed, self.targets.depth)

    def _predict(
        self, state: AlignState, plain: Batch, coefficients: Single, domains: DomainEstimate, correction: Correction
    ) -> tuple[AlignState, Group]:
        """Equalise images, run the model under the moves, and remember what its blocks added."""
        batch = plain
        last_input = None
        if correction.restoration:
            restored = self.equaliser.restore(plain.images, coefficients, correction.restoration)
            batch = plain.with_images(restored)
            last_input = restored[-1]
        samples = float(correction.samples.mean())
        passes, credit = self._spend(state.credit, len(batch), samples)

        knobs = correction.knobs
        reader = correction.updates
        for done in range(1, passes + 1):
            taps = self.engine.run(batch, knobs, TAPS)
            logits: Floats = taps[Tap.LOGITS][0]
            if not np.isfinite(logits).all():  # adaptation has broken predictions: forget everything
                fresh = replace(self.init(), credit=credit)
                passed = (done + 1) * len(batch)
                return fresh, Group(self._plain(plain), samples, passed, fell_back=True, last_input=last_input)
            vectors = reader(taps)
            content = contents(logits, self.targets.offsets)
            sound = self.targets.plausible(vectors)
            learnt = Rows.pack(domains.part(sound), vectors[sound], content[sound])
            memory = state.memory.add(learnt, self._capacity)
            if done < passes:  # the next pass is planned with these images in the memory, and takes their place there
                knobs = self._plan(retrieve(memory, domains.same_domain(), self.config.retrieval))
                reader = BlockUpdates(knobs, self.targets)
        group = Group(logits, samples, passes * len(batch), int(sound.sum()), last_input=last_input)
        return AlignState(memory, credit, state.cached), group

    def _spend(self, credit: float, images: int, samples: float) -> tuple[int, float]:
        """Passes that the next images get, and what is left in the token bucket of ``auto``."""
        passes = self.config.passes
        if isinstance(passes, int):
            return passes, credit
        return self.config.spend(images, samples, credit)

    def _plain(self, batch: Batch) -> Floats:
        """Predict images without adaptation; logits that are not finite even then are refused."""
        logits: Floats = np.array(self.engine.run(batch)[Tap.LOGITS][0])
        if not np.isfinite(logits).all():
            raise FozoError("the model's logits are not all finite; nothing was changed: check its weights")
        return logits

    def _journal_header(self) -> dict[str, object]:
        """What is learnt depends on the clean statistics too, so their checksum has to be the same."""
        arrays = (self.targets.average, self.targets.scale, self.targets.weights)
        return {**super()._journal_header(), "source": zlib.crc32(b"".join(array.tobytes() for array in arrays))}


def _parts(images: int, largest: int) -> list[slice]:
    """Cut a batch into parts of equal size, none above ``largest``."""
    count = -(-images // largest)
    edges = [images * index // count for index in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]
