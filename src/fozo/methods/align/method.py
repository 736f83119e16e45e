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
from fozo.methods.align.equaliser import ImageRestorer
from fozo.methods.align.memory import DomainEstimate, RetrievalConfig
from fozo.methods.align.slots import HALF_LIFE, Slot, Visit, owners, visits, with_heavy_room, with_room
from fozo.methods.align.tokens import CleanTokens, Moves
from fozo.methods.common.content_shift import ContentShift, ContentSums
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
class Adapted:
    """What became of some images."""

    logits: Floats
    samples: float = 0.0
    """Effective images that the moves of the last ones rest on."""
    learnt: int = 0
    fell_back: bool = False
    last_input: Floats | None = None
    """The last image as the model read it, if it was changed."""


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
        self.equaliser = ImageRestorer(self.statistics, self.engine, config.equaliser_strength, RetrievalConfig())
        self._clean = CleanTokens(self.statistics, head, spec)
        if "matrices" not in self.engine.abilities or not config.covariance_strength:
            self._clean.moments = None
        self._centre = ContentShift(self.statistics, head, config.centre_images or 1.0)
        self.parameter_count = (2 * spec.depth + spec.head_width) * spec.dim

    def init(self) -> AlignState:
        return AlignState(np.zeros((0, self.equaliser.std.size), np.float32))

    def check_state(self, state: AlignState) -> None:
        clean = self.equaliser.mean[None]
        light = self._new_slot(DomainEstimate(clean, np.ones_like(clean), clean))
        heavy = replace(light, covariances=self._clean.no_covariances())
        for slot in state.slots:
            like = light if slot.covariances is None else heavy
            rebuild(like, dict(leaves(slot)), "a slot of the state")

    def journaled(self, state: AlignState) -> AlignState:
        """All but covariances, which are a hundred times as large as the rest: after a replay they begin again."""
        slots = [replace(slot, covariances=None) for slot in state.slots]
        return replace(state, slots=tuple(slots))

    def _new_slot(self, domain: DomainEstimate) -> Slot:
        spec = self.engine.spec
        return Slot(
            images=0.0,
            domain_mean=domain.mean[0].astype(np.float32),
            domain_variance=domain.variance[0].astype(np.float32),
            descriptor=np.zeros(domain.mean.shape[1], np.float32),
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
        passes = 0
        groups: list[Adapted] = []
        logits: list[Floats] = []
        descriptors: list[Array] = []
        pictures: list[npt.NDArray[np.bool_]] = []
        for part in _parts(len(batch), LARGEST_PART):
            images = batch.part(part)
            (coefficients, described, is_picture) = self.equaliser.describe(images.images)
            descriptors.append(described)
            pictures.append(is_picture)
            if not is_picture.all():
                logits.append(self._plain_logits(images))
                groups.append(Adapted(logits[-1]))
                passes += len(images)
                images = images.with_images(images.images[is_picture])
            if is_picture.any():
                (state, adapted) = self._adapt(state, images, coefficients[is_picture], described[is_picture])
                adapted_logits = np.concatenate([group.logits for group in adapted])
                passes += len(images) + sum(len(group.logits) for group in adapted if group.fell_back)
                if is_picture.all():
                    logits.append(adapted_logits)
                    groups += adapted
                else:
                    logits[-1][is_picture] = adapted_logits
                    groups += [replace(group, last_input=None) for group in adapted]  # may not be of the last image

        all_descriptors = np.concatenate(descriptors)
        metrics = {
            "shift": self.equaliser.shift(all_descriptors[np.concatenate(pictures)]),
            "effective_sample_size": groups[-1].samples,
            "skipped": float(len(batch) - sum(group.learnt for group in groups)),
            "fallbacks": float(sum(group.fell_back for group in groups)),
        }
        return Result(
            logits=np.concatenate(logits),
            state=state,
            metrics=metrics,
            passes=passes / len(batch),
            descriptors=all_descriptors,
            last_input=groups[-1].last_input,
        )

    def _adapt(
        self, state: AlignState, batch: Batch, coefficients: Single, descriptors: Array
    ) -> tuple[AlignState, list[Adapted]]:
        """Adapt group by group, so that late images profit from early ones."""
        domains = self.equaliser.domains(descriptors, state.recent)
        recent = np.concatenate([state.recent, domains.descriptor.astype(np.float32)])
        state = replace(state, recent=recent[-self.equaliser.retrieval.context :].copy())
        groups: list[Adapted] = []
        for start in range(0, len(batch), GROUP):
            part = slice(start, start + GROUP)
            (state, group) = self._adapt_group(state, batch.part(part), coefficients[part], domains.part(part))
            groups.append(group)
        return state, groups

    def _adapt_group(
        self, state: AlignState, plain: Batch, coefficients: Single, domains: DomainEstimate
    ) -> tuple[AlignState, Adapted]:
        """Restore images, run the model once under the moves of their slots, and remember what was seen."""
        (visited, others) = self._visits(state, domains)
        noise = haar_noise(plain.images)
        (batch, last_input) = self._restored(plain, coefficients, visited, noise)
        config = self.config
        strengths = (config.mean_strength, config.cls_strength, config.covariance_strength)
        moves = [self._clean.moves(visit.slot, *strengths) for visit in visited]
        heavy = any(visit.slot.covariances is not None for visit in visited)
        wanted = (*TAPS, Tap.PATCH_MOMENTS) if heavy else TAPS
        taps = self.engine.run(batch, self._clean.knobs(moves, owners(visited)), wanted)
        pass_taps = {tap: values[0] for tap, values in taps.items()}
        (heads, logits) = self._predicted(visited, pass_taps[Tap.POOLED])
        images_before = visited[-1].slot.images
        if not np.isfinite(logits).all():  # adaptation has broken predictions: forget everything
            fallen = Adapted(self._plain_logits(plain), images_before, fell_back=True)
            return replace(self.init(), recent=state.recent), fallen

        plausible = self._clean.plausible(pass_taps[Tap.PATCH_MEAN])
        learnt = int(plausible.sum())
        adapted = Adapted(logits, images_before, learnt, last_input=last_input)
        offsets = contents(logits, self._clean.class_content)
        slots = []
        for visit, slot_moves, head in zip(visited, moves, heads, strict=True):
            good = visit.rows[plausible[visit.rows]]
            if len(good):
                seen = {tap: values[good] for tap, values in pass_taps.items()}
                slot = self._remembered(visit, slot_moves, seen, offsets[good], noise[visit.rows])
                slots.append(replace(slot, head=head, last=state.seen + learnt))
            elif visit.slot.images:
                slots.append(visit.slot)
        kept = (*others, *slots)[-self.config.slots :]
        return (replace(state, seen=state.seen + learnt, slots=kept) if learnt else state), adapted

    def _visits(self, state: AlignState, domains: DomainEstimate) -> tuple[list[Visit], tuple[Slot, ...]]:
        """The slots of a group's images, their maps up to date, and the other slots that there is room for."""
        (visited, others) = visits(state.slots, domains, self._new_slot)
        others = with_room(others, max(0, self.config.slots - len(visited)))
        ready: list[Visit] = []
        for index, visit in enumerate(visited):
            slot = visit.slot
            known = slot.images + len(visit.rows) >= GROUP
            if self._clean.moments is not None and slot.covariances is None and known:
                in_use = [other.slot for other in (*ready, *visited[index:])]
                room = with_heavy_room(others, in_use, state.seen)
                if room is not None:
                    others = room
                    slot = replace(slot, covariances=self._clean.no_covariances())
            ready.append(replace(visit, slot=self._clean.mapped(slot)))
        return ready, others

    def _restored(
        self, plain: Batch, coefficients: Single, visited: list[Visit], noise: Array
    ) -> tuple[Batch, Floats | None]:
        """The images as the model reads them, and the last of them if any was changed."""
        images: Floats | None = None
        for visit in visited:
            slot = visit.slot
            domain = visit.domain.sharpened(slot.descriptor, slot.images)
            restoration = self.equaliser.plan(domain, self._noise_excess(slot, noise[visit.rows]))
            if not restoration:
                continue
            if len(visited) == 1:
                images = self.equaliser.restore(plain.images, coefficients, restoration)
                continue
            if images is None:
                images = plain.images.astype(np.float32)
            rows = visit.rows
            images[rows] = self.equaliser.restore(plain.images[rows], coefficients[rows], restoration)
        return (plain, None) if images is None else (plain.with_images(images), images[-1])

    def _noise_excess(self, slot: Slot, noise: Array) -> float | None:
        """How much noisier the domain is than clean images, where that is known."""
        if self.statistics.noise is None:
            return None
        count = len(noise)
        return float((slot.images * slot.noise + noise.sum()) / (slot.images + count)) - self.statistics.noise

    def _predicted(self, visited: list[Visit], pooled: Floats) -> tuple[list[ContentSums], Floats]:
        """Re-centre what the head reads, by slot: what each has then summed up, and the logits of all images."""
        heads = [visit.slot.head for visit in visited]
        if self.config.centre_images:
            pooled = pooled.copy()
            for index, visit in enumerate(visited):
                heads[index] = self._centre.take(heads[index], pooled[visit.rows].astype(np.float64))
                pooled[visit.rows] = pooled[visit.rows] + self._centre.vector(heads[index])
        return heads, self.engine.head()(pooled)

    def _remembered(
        self, visit: Visit, moves: Moves | None, taps: dict[Tap, Floats], offsets: Array, noise: Array
    ) -> Slot:
        """The slot once it has taken in what a pass has shown of images of its domain."""
        slot = visit.slot
        count = len(offsets)
        before = slot.images * 0.5 ** (count / HALF_LIFE)
        total = before + count

        def average(past: Floats, now: Floats) -> Array:
            mean: Array = (before * past + count * now) / total
            return mean

        means = taps[Tap.PATCH_MEAN].mean(axis=0, dtype=np.float64)
        cls = taps[Tap.CLS].mean(axis=0, dtype=np.float64)
        (mean_update, cls_update) = self._clean.added(moves, means, cls)
        covariances = slot.covariances
        if covariances is not None:
            covariances = self._clean.with_moments(covariances, taps[Tap.PATCH_MOMENTS])
        return replace(
            slot.joined(visit.domain),
            images=total,
            descriptor=average(slot.descriptor, visit.domain.descriptor[0]).astype(np.float32),
            noise=float(average(np.array(slot.noise), noise.mean())),
            content=average(slot.content, offsets.mean(axis=0)),
            mean_update=average(slot.mean_update, mean_update).astype(np.float32),
            cls_update=average(slot.cls_update, cls_update).astype(np.float32),
            covariances=covariances,
        )

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
