"""Align: images are restored, tokens aligned with clean ones of the same content, and what the head reads re-centred.

One forward pass an image, no gradient, no prompt, no random number. For each group of images of one domain:

1. **describe** them by their bands of spatial frequency (:mod:`fozo.core.descriptor`), and choose the **slot** of their
   domain (:mod:`~fozo.methods.align.slots`);
2. **restore** contrast, light and detail, and remove noise (:mod:`~fozo.methods.align.equaliser`);
3. **align** tokens: run the model under the moves that the slot's earlier images call for
   (:mod:`~fozo.methods.align.tokens`);
4. **re-centre** what the head reads, this group included (:mod:`~fozo.methods.common.content_shift`);
5. **remember** in the slot what was seen.

Each of the three ideas can be switched off by its strength. Only what is finite and plausible is remembered:
``metrics()`` counts the images of a batch that were predicted but not learnt from (``skipped``). Should adaptation ever
break predictions all the same, those of the plain model are returned and all slots are forgotten (``fallbacks``).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fozo.core.content import contents
from fozo.core.descriptor import Single, haar_noise
from fozo.errors import FozoError
from fozo.methods.align.equaliser import Equaliser
from fozo.methods.align.memory import DomainEstimate, RetrievalConfig
from fozo.methods.align.slots import HALF_LIFE, Slot, by_domain, nearest, with_heavy_room, with_room
from fozo.methods.align.tokens import CleanTokens
from fozo.methods.common.content_shift import ContentShift
from fozo.methods.common.options import positive
from fozo.methods.method import Method, Result
from fozo.methods.registry import register
from fozo.state import State, leaves, ragged, rebuild
from fozo.types import NO_KNOBS, Array, Batch, Floats, Tap

GROUP = 8  # images that go through the model together and see the same moves
LARGEST_PART = 32  # images that are described together: bounds the memory that they take
TAPS = (Tap.CLS, Tap.PATCH_MEAN, Tap.POOLED)


@dataclass(frozen=True)
class AlignConfig:
    """Everything about Align that can be chosen. One setting serves all models: nothing has a unit.

    Examples:
        >>> fozo.Align(model, statistics, slots=2).config
        AlignConfig(..., slots=2)
    """

    equaliser_strength: float = 0.7
    """Part of the way that bands of spatial frequency are moved to their clean energy; 0 leaves images as they are."""
    mean_strength: float = 0.15
    """Part of the way that the mean of the patch tokens is moved before each block."""
    cls_strength: float = 0.3
    """Part of the way that the CLS token is, in the first half of the model."""
    covariance_strength: float = 0.3
    """Part of the way that patch tokens are moved along the map to clean covariances, in the first half."""
    centre_images: float = 40.0
    """Images that the re-centring of what the head reads remembers; 0 switches it off."""
    slots: int = 12
    """Domains remembered; of four of them, covariances."""

    def __post_init__(self) -> None:
        for name in ("equaliser_strength", "mean_strength", "cls_strength", "covariance_strength"):
            if not 0 <= getattr(self, name) <= 1:
                raise FozoError(f"align: {name} is {getattr(self, name)}; give a part from 0 (none) to 1 (all the way)")
        if not 0 <= self.centre_images < np.inf:
            raise FozoError(f"align: centre_images is {self.centre_images}; give a number of images from 0 up")
        positive("align", slots=self.slots)


@dataclass(frozen=True)
class AlignState(State):
    """What Align has learnt."""

    recent: Single = ragged("images")
    """Standardised descriptors of the latest images, ``[at most 16, f]``."""
    seen: int = 0
    """Images that were remembered."""
    slots: tuple[Slot, ...] = ()
    """The domains, the last used at the end."""


@dataclass(frozen=True)
class Group:
    """What became of some images."""

    logits: Floats
    samples: float = 0.0  # effective images that their moves rest on
    passes: int = 0  # of all images together
    learnt: int = 0
    fell_back: bool = False
    last_input: Floats | None = None  # the last image as the model read it, if it was changed


@register(
    "align", passes="1", adapts="image bands and token moves", paper="fozo, docs/method.md",
    needs={"statistics", "tokens"},
)  # fmt: skip
class Align(Method[AlignConfig, AlignState]):
    """Images restored and tokens aligned with clean ones of the same content, by domain.

    Examples:
        >>> method = fozo.Align(model, statistics)
        >>> logits = method(batch)
        >>> method.metrics()
        {'shift': 0.65..., 'effective_sample_size': ..., 'skipped': 0.0, 'fallbacks': 0.0}
    """

    PRESETS: ClassVar = {"default": AlignConfig()}
    CHANGEABLE: ClassVar = frozenset({"slots"})

    def prepare(self) -> None:
        config = self.config
        head = self.engine.head()
        spec = self.engine.spec
        self.equaliser = Equaliser(self.statistics, self.engine, config.equaliser_strength, RetrievalConfig())
        self._clean = CleanTokens(self.statistics, head, spec)
        if "matrices" not in self.engine.abilities or not config.covariance_strength:
            self._clean.moments = None
        self._centre = ContentShift(self.statistics, head, config.centre_images or 1.0)
        self.parameters = (2 * spec.depth + spec.head_width) * spec.dim

    def init(self) -> AlignState:
        return AlignState(np.zeros((0, self.equaliser.std.size), np.float32))

    def check_state(self, state: AlignState) -> None:
        light = self._new_slot(self.equaliser.mean, self.equaliser.std)
        heavy = replace(light, covariances=self._clean.no_covariances())
        for slot in state.slots:
            like = light if slot.covariances is None else heavy
            rebuild(like, dict(leaves(slot)), "a slot of the state")

    def journaled(self, state: AlignState) -> AlignState:
        """All but covariances, which are a hundred times as large as the rest: after a replay they begin again."""
        slots = [replace(slot, covariances=None) for slot in state.slots]
        return replace(state, slots=tuple(slots))

    def _new_slot(self, mean: Array, variance: Array) -> Slot:
        spec = self.engine.spec
        return Slot(
            images=0.0,
            domain_mean=mean.astype(np.float32),
            domain_variance=variance.astype(np.float32),
            descriptor=np.zeros(len(mean), np.float32),
            noise=0.0,
            content=np.zeros(self._clean.class_content.shape[1]),
            mean_update=np.zeros((spec.depth, spec.dim), np.float32),
            cls_update=np.zeros_like(self._clean.cls.mean, np.float32),
            head=self._centre.init(),
            last=0,
            covariances=None,
        )

    def step(self, state: AlignState, batch: Batch) -> Result[AlignState]:
        """Adapt to images and predict them; those that cannot be pictures are predicted by the plain model."""
        images = len(batch)
        groups: list[Group] = []
        logits: list[Floats] = []
        descriptors: list[Array] = []
        pictures: list[npt.NDArray[np.bool_]] = []
        for part in _parts(images, LARGEST_PART):
            some = batch.part(part)
            coefficients, described, is_picture = self.equaliser.describe(some.images)
            descriptors.append(described)
            pictures.append(is_picture)
            if is_picture.all():
                state, part_logits, adapted = self._adapt(state, some, coefficients, described)
                groups += adapted
            else:
                part_logits = self._plain_logits(some)
                groups.append(Group(part_logits, passes=len(some)))
                if is_picture.any():
                    good = some.with_images(some.images[is_picture])
                    state, adapted_logits, adapted = self._adapt(
                        state, good, coefficients[is_picture], described[is_picture]
                    )
                    groups += [replace(group, last_input=None) for group in adapted]  # may not be of the last image
                    part_logits[is_picture] = adapted_logits
            logits.append(part_logits)

        all_descriptors = np.concatenate(descriptors)
        metrics = {
            "shift": self.equaliser.shift(all_descriptors[np.concatenate(pictures)]),
            "effective_sample_size": groups[-1].samples,
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
    ) -> tuple[AlignState, Floats, list[Group]]:
        """Adapt group by group, so that late images profit from early ones."""
        domains = self.equaliser.domains(descriptors, state.recent)
        recent = np.concatenate([state.recent, domains.descriptor.astype(np.float32)])
        state = replace(state, recent=recent[-self.equaliser.retrieval.context :].copy())
        logits: Floats | None = None
        groups: list[Group] = []
        for start in range(0, len(batch), GROUP):
            together = domains.part(slice(start, start + GROUP))
            for subset in by_domain(state.slots, together):
                rows = [start + image for image in subset]
                images = batch.part(slice(rows[0], rows[-1] + 1))
                if len(images) != len(rows):
                    images = batch.with_images(batch.images[rows])
                estimate = domains.part(np.isin(np.arange(len(batch)), rows))
                state, group = self._adapt_group(state, images, coefficients[rows], estimate)
                if logits is None:
                    logits = np.empty((len(batch), group.logits.shape[1]), group.logits.dtype)
                logits[rows] = group.logits
                if rows[-1] != len(batch) - 1:
                    group = replace(group, last_input=None)
                groups.append(group)
        assert logits is not None
        groups.sort(key=lambda group: group.last_input is not None)  # that of the last image at the end
        return state, logits, groups

    def _adapt_group(
        self, state: AlignState, plain: Batch, coefficients: Single, domains: DomainEstimate
    ) -> tuple[AlignState, Group]:
        """Restore images of one domain, run the model under the moves of its slot, and remember what was seen."""
        mean = domains.mean.mean(axis=0)
        variance = domains.variance.mean(axis=0)
        slot, others = self._slot_of(state, mean, variance, len(plain))

        batch = plain
        last_input = None
        noise = haar_noise(plain.images)
        group_domain = DomainEstimate(mean[None], variance[None], slot.descriptor[None])
        domain = group_domain.sharpened(slot.descriptor, slot.images)
        restoration = self.equaliser.plan(domain, self._noise_excess(slot, noise))
        if restoration:
            restored = self.equaliser.restore(plain.images, coefficients, restoration)
            batch = plain.with_images(restored)
            last_input = restored[-1]

        slot = self._clean.mapped(slot)
        config = self.config
        knobs = self._clean.knobs(slot, config.mean_strength, config.cls_strength, config.covariance_strength)
        taps = self.engine.run(batch, knobs, TAPS if slot.covariances is None else (*TAPS, Tap.PATCH_MOMENTS))
        pooled = taps[Tap.POOLED][0]
        head = slot.head
        if config.centre_images:
            head = self._centre.take(head, pooled.astype(np.float64))
            pooled = (pooled + self._centre.vector(head)).astype(pooled.dtype)
        logits = self.engine.head()(pooled)
        if not np.isfinite(logits).all():  # adaptation has broken predictions: forget everything
            fallen = Group(self._plain_logits(plain), slot.images, 2 * len(plain), fell_back=True)
            return replace(self.init(), recent=state.recent), fallen

        plausible = self._clean.plausible(taps[Tap.PATCH_MEAN][0])
        count = int(plausible.sum())
        group = Group(logits, slot.images, len(plain), count, last_input=last_input)
        if not count:
            return state, group
        images_before = slot.images * 0.5 ** (count / HALF_LIFE)
        total = images_before + count

        def average(before: Floats, now: Floats) -> Array:
            mean: Array = (images_before * before + count * now) / total
            return mean

        means = taps[Tap.PATCH_MEAN][0][plausible].mean(axis=0, dtype=np.float64)
        cls = taps[Tap.CLS][0][plausible].mean(axis=0, dtype=np.float64)
        mean_update, cls_update = self._clean.added(knobs, means, cls)
        covariances = slot.covariances
        if covariances is not None:
            covariances = self._clean.with_moments(covariances, taps[Tap.PATCH_MOMENTS][0][plausible])
        offset = contents(logits[plausible], self._clean.class_content).mean(axis=0)
        learnt = replace(
            slot.joined(mean, variance),
            images=total,
            descriptor=average(slot.descriptor, domains.descriptor.mean(axis=0)).astype(np.float32),
            noise=float(average(np.array(slot.noise), noise.mean())),
            content=average(slot.content, offset),
            mean_update=average(slot.mean_update, mean_update).astype(np.float32),
            cls_update=average(slot.cls_update, cls_update).astype(np.float32),
            head=head,
            last=state.seen + count,
            covariances=covariances,
        )
        return replace(state, seen=state.seen + count, slots=(*others, learnt)), group

    def _slot_of(self, state: AlignState, mean: Array, variance: Array, count: int) -> tuple[Slot, tuple[Slot, ...]]:
        """The slot of a group of ``count`` images, or a new one, and the others."""
        index = nearest(state.slots, mean, variance)
        if index is None:
            slot = self._new_slot(mean, variance)
            others = with_room(state.slots, self.config.slots)
        else:
            slot = state.slots[index]
            others = state.slots[:index] + state.slots[index + 1 :]
        if self._clean.moments is None or slot.covariances is not None or slot.images + count < GROUP:
            return slot, others
        room = with_heavy_room(others, state.seen)
        if room is None:
            return slot, others
        return replace(slot, covariances=self._clean.no_covariances()), room

    def _noise_excess(self, slot: Slot, noise: Array) -> float | None:
        """How much noisier the domain is than clean images, where that is known."""
        if self.statistics.noise is None:
            return None
        count = len(noise)
        return float((slot.images * slot.noise + noise.sum()) / (slot.images + count)) - self.statistics.noise

    def _plain_logits(self, batch: Batch) -> Floats:
        """Predict images without adaptation; logits that are not finite even then are refused."""
        logits: Floats = np.array(self.engine.run(batch, NO_KNOBS)[Tap.LOGITS][0])
        if not np.isfinite(logits).all():
            raise FozoError("the model's logits are not all finite; nothing was changed: check its weights")
        return logits

    def _journal_header(self) -> dict[str, object]:
        """What is learnt depends on the clean statistics too, so their checksum has to be the same."""
        clean = self._clean.patches
        statistics = b"".join(array.tobytes() for array in (clean.mean, clean.std, clean.weights))
        return {**super()._journal_header(), "source": zlib.crc32(statistics)}


def _parts(images: int, largest: int) -> list[slice]:
    """Cut a batch into parts of equal size, none above ``largest``."""
    count = -(-images // largest)
    edges = [images * index // count for index in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]
