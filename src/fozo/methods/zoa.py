"""ZOA: test-time model adaptation for quantized neural networks (Deng et al., 2025, arXiv:2508.02180).

The LayerNorms of blocks 1-8 (of 12) are W = W0 + sum_i softmax(10 a)_i D_i + e: the source's, a mixture of what was
learned on earlier domains, and what is being learned on this one. One-sided SPSA learns e and the mixture a from one
perturbed pass; the plain pass before it gives the prediction, shifted as in FOA. When the patch embedding's statistics
jump, the domain has changed: what was learned is stored as a new D, and the bank drops one of its two most similar.

What differs from the authors' program: three slips of it that the preset ``official`` has and the default does not,
``stale_table``, ``observe_passes`` and ``stale_shift`` of :class:`ZOAConfig`. A batch of one has no standard deviation
and borrows the features of the images before it, as in FOZO.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
from scipy.special import softmax

from fozo.core.moments import MovingAverage, Window
from fozo.core.noise import Noise, SignedUniform
from fozo.core.objective import Objective, entropies
from fozo.core.one_sided import OneSidedSPSA, OneSidedState
from fozo.errors import FozoError
from fozo.methods.common.layernorm import LayerNorms, lower_blocks
from fozo.methods.common.matching import SHIFT_DECAY, shifted
from fozo.methods.common.options import positive, sweep
from fozo.methods.common.twin import PerThread, torch_batch
from fozo.methods.method import Method, Result
from fozo.methods.registry import register
from fozo.state import State, ragged
from fozo.types import Array, Batch, Floats, Tap, Taps


@dataclass(frozen=True)
class ZOAConfig:
    """Everything about ZOA that can be chosen. The defaults are the FOZO paper's."""

    passes: int = 2
    """Forward passes for each batch: ``1 + samples`` for each step, so an even number by default."""
    rate: float = 5e-4
    """Learning rate of e."""
    decay: float = 0.4
    """Weight decay of e."""
    c: float = 0.02
    """How far e is perturbed."""
    mixture_rate: float = 0.01
    """Learning rate of the mixture a."""
    mixture_decay: float = 0.1
    """Weight decay of the mixture."""
    mixture_c: float = 0.05
    """How far the mixture is perturbed."""
    inverse_temperature: float = 10.0
    """Factor inside the mixture's softmax."""
    samples: int = 1
    """Perturbations that a gradient is averaged over."""
    weight: float = 30.0
    """Weight of the feature statistics against the entropy."""
    capacity: int = 32
    """N: how many domains are remembered."""
    threshold: float = 0.1
    """Distance of the embedding's statistics from their average that makes a new domain."""
    ema_decay: float = 0.8
    """Weight of the past in that average."""
    min_batch: int = 64
    """Batches with fewer images are too small to detect whether the domain has changed."""
    window: int = 64
    """Images over which the statistics of a batch of one are taken: itself and those just before it."""
    stale_table: bool = False
    """Whether the similarity table keeps its places when an entry leaves the bank."""
    observe_passes: bool = False
    """Whether the embedding's statistics enter their average in each pass, not each batch."""
    stale_shift: bool = False
    """Whether the batch that reveals a new domain is shifted for the old one."""

    def __post_init__(self) -> None:
        positive("zoa", c=self.c, mixture_c=self.mixture_c, samples=self.samples)
        if self.capacity < 2:
            raise FozoError(f"zoa: capacity must be at least 2 domains, not {self.capacity}")
        if self.window < 2:
            raise FozoError(f"zoa: window must be at least 2 images, not {self.window}")
        step_passes = 1 + self.samples
        if self.passes < step_passes or self.passes % step_passes:
            raise FozoError(
                f"zoa with {self.samples} samples takes a multiple of {step_passes} passes, not {self.passes}"
            )


@dataclass(frozen=True)
class Knowledge(State):
    """Parameter offsets D_i learned on earlier domains; D_0 = 0 is the source."""

    similarity: Array
    """``[capacity, capacity]``: of D_i+1 and D_j+1, where i < j."""
    offsets: Array = ragged("offsets")
    """``[1 + domains, size]``."""

    def __post_init__(self) -> None:
        """Refuse a bank without the source, or with more domains than it has room for."""
        capacity = len(self.similarity)
        if not 0 <= self.domains <= capacity:
            raise ValueError(f"it remembers {self.domains} domains, but capacity is {capacity}")

    @property
    def domains(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True)
class ZOAState(State):
    """What is searched, what is remembered of earlier domains, and the averages of this one."""

    search: OneSidedState
    """The mixture a, one number for each offset of the bank, and then e."""
    knowledge: Knowledge
    domain: MovingAverage
    """Mean and variance ``[2, d]`` of the embedding."""
    shift: MovingAverage
    """What the head reads ``[h]``."""
    window: Window

    def __post_init__(self) -> None:
        """Refuse a point that is not of this bank."""
        count, size = self.knowledge.offsets.shape
        if len(self.search.point) != count + size:
            raise ValueError(f"its point is not of {count} offsets and {size} LayerNorm parameters")


@register(
    "zoa", passes="2k", adapts="LayerNorm weights and biases of the lower blocks", paper="Deng et al., 2025",
    needs={"statistics", "tokens", "torch"}, draws=True, compared={"passes": 2},
    tuning=sweep("rate", 5e-4, 3.125e-5, 1.25e-4, 2e-3),
)  # fmt: skip
class ZOA(Method[ZOAConfig, ZOAState]):
    """Zeroth-order descent on LayerNorms with a bank of domain knowledge.

    ``noise`` gives draws to use instead of the seeded ones: even steps are the mixture's, odd ones those of e.
    """

    EXTRAS: ClassVar = ("noise",)
    PRESETS: ClassVar = {
        "paper": ZOAConfig(),
        "official": ZOAConfig(stale_table=True, observe_passes=True, stale_shift=True),
    }

    def prepare(self) -> None:
        config = self.config
        engine = self.engine
        blocks = lower_blocks(engine.spec.depth, first=1)
        self._twins = PerThread(partial(LayerNorms, engine, blocks))
        norms = self._twins()
        self._start: Array = norms.values().astype(np.float64)
        self._noise: Noise = self._extras["noise"] or SignedUniform(self.seed)
        self._bank = KnowledgeBank(self._start.size, len(norms.names), config)
        self._detector = DomainDetector(config.threshold, config.ema_decay)
        self._spsa = OneSidedSPSA(self._descend, self._moves, config.samples)
        self._objective = Objective()
        self.parameter_count = self._start.size + config.capacity + 1  # e, and the mixture of a full bank

    def init(self) -> ZOAState:
        spec = self.engine.spec
        return ZOAState(
            search=OneSidedState(np.zeros(1 + self._start.size)),
            knowledge=self._bank.init(),
            domain=MovingAverage.empty((2, spec.dim)),
            shift=MovingAverage.empty((spec.head_width,)),
            window=Window.empty((spec.depth, spec.dim)),
        )

    def step(self, state: ZOAState, batch: Batch) -> Result[ZOAState]:
        """The plain pass gives prediction and loss; each step then compares perturbed passes with a plain one."""
        config = self.config
        state, changed = self._observed(state, batch)
        search = state.search
        plain_passes: list[tuple[float, Taps]] = []
        for _ in range(config.passes // (1 + config.samples)):
            evaluated = [self._evaluate(state, batch, point) for point in self._spsa.ask(search)]
            search = self._spsa.tell(search, [loss for loss, _ in evaluated])
            plain_passes.append(evaluated[0])
        loss, taps = plain_passes[0]
        pooled = taps[Tap.POOLED][0]
        logits = self._predicted(pooled, state.shift, stale=changed and not config.stale_shift)
        past_shift = MovingAverage.empty(state.shift.average.shape) if changed else state.shift
        learnt = replace(
            state,
            search=search,
            shift=past_shift.update(pooled.mean(axis=0, dtype=np.float64), SHIFT_DECAY),
            window=state.window.push(taps[Tap.FEATURES][0], config.window),
        )
        if config.observe_passes:
            for _ in range(config.passes - 1):
                learnt, _ = self._observed(learnt, batch)
        metrics = {"loss": loss, "bank": float(state.knowledge.domains)}
        return Result(logits, learnt, metrics, passes=float(config.passes))

    def predict_step(self, state: ZOAState, batch: Batch) -> Result[ZOAState]:
        norms = self._written(state, state.search.point)
        pooled = norms.engine.run(batch, taps=(Tap.POOLED,))[Tap.POOLED][0]
        return Result(self._predicted(pooled, state.shift), state)

    def _predicted(self, pooled: Floats, shift: MovingAverage, *, stale: bool = False) -> Floats:
        """Shift what the head reads as in FOA, but not by what was learned on another domain."""
        head = self.engine.head()
        return head(pooled if stale else shifted(pooled, self.statistics.pooled.mean, shift))

    def _evaluate(self, state: ZOAState, batch: Batch, point: Array) -> tuple[float, Taps]:
        norms = self._written(state, point)
        taps = norms.engine.run(batch, taps=(Tap.FEATURES, Tap.POOLED))
        moments = state.window.moments(taps[Tap.FEATURES][0], self.config.window)
        clean = self.statistics.features
        misalignment = self._objective.misalignment(clean, moments) / clean.mean.size
        entropy = entropies(self.engine.head()(taps[Tap.POOLED][0])).mean()
        return float(self.config.weight * misalignment + entropy), taps

    def _written(self, state: ZOAState, point: Array) -> LayerNorms:
        """The twin of this thread with the LayerNorms of a point."""
        norms = self._twins()
        norms.write(self._weights(state.knowledge, point))
        return norms

    def _weights(self, knowledge: Knowledge, point: Array) -> Array:
        mixture, learned = self._parts(point)
        return self._start + self._bank.mixed(knowledge, mixture) + learned

    def _parts(self, point: Array) -> tuple[Array, Array]:
        """The mixture a, and e."""
        size = self._start.size
        return point[:-size], point[-size:]

    def _moves(self, draw: int, size: int) -> Array:
        """How far the mixture and e are perturbed in one draw."""
        length = self._start.size
        mixture = self.config.mixture_c * self._noise(2 * draw, (size - length,))
        learned = self.config.c * self._noise(2 * draw + 1, (length,))
        return np.concatenate([mixture, learned])

    def _descend(self, point: Array, gradient: Array) -> Array:
        """SGD with weight decay for e; for the mixture, once there is something to mix, AdamW without a past."""
        config = self.config
        mixture, learned = self._parts(point)
        mixture_gradient, learned_gradient = self._parts(gradient)
        learned = learned - config.rate * (learned_gradient + config.decay * learned)
        if len(mixture) > 1:
            # The authors clear AdamW's moments every time, which leaves nearly the sign of the gradient.
            sign = mixture_gradient / (np.abs(mixture_gradient) + 1e-8)
            mixture = mixture * (1 - config.mixture_rate * config.mixture_decay) - config.mixture_rate * sign
        return np.concatenate([mixture, learned])

    def _observed(self, state: ZOAState, batch: Batch) -> tuple[ZOAState, bool]:
        """Watch the patch tokens that enter the first block; return whether the domain has changed.

        If so, what was learned becomes a new D, and e what then keeps the model as it is.
        """
        if len(batch) < self.config.min_batch:
            return state, False
        patches = torch_batch(batch).tokens[:, -self.engine.spec.patches :].flatten(0, 1).double()
        mean = patches.mean(dim=0).cpu().numpy()
        variance = patches.var(dim=0).cpu().numpy()
        domain, changed = self._detector.update(state.domain, mean, variance)
        if not changed:
            return replace(state, domain=domain), False
        mixture, learned = self._parts(state.search.point)
        offset = self._bank.mixed(state.knowledge, mixture) + learned
        knowledge, mixture = self._bank.store(state.knowledge, offset, mixture)
        point = np.concatenate([mixture, offset - self._bank.mixed(knowledge, mixture)])
        search = replace(state.search, point=point)
        return replace(state, domain=domain, knowledge=knowledge, search=search), True


@dataclass(frozen=True)
class DomainDetector:
    """Follows the mean and variance ``[2, d]`` of a stream's features and says when they jump."""

    threshold: float
    """Distance that makes a new domain."""
    decay: float
    """The past's weight in the average."""

    def update(self, domain: MovingAverage, mean: Array, variance: Array) -> tuple[MovingAverage, bool]:
        """Take in a batch's statistics ``[d]``; return whether they are a new domain's, and follow that one then."""
        statistics = np.stack([mean, variance])
        changed = domain.count > 0 and self.distance(domain, mean, variance) > self.threshold
        past = MovingAverage.empty(statistics.shape) if changed else domain
        return past.update(statistics, self.decay), changed

    def distance(self, domain: MovingAverage, mean: Array, variance: Array) -> float:
        """Half the sum of the two Kullback-Leibler divergences between gaussians, averaged over the features."""
        past_mean, past_variance = domain.average
        squares = (mean - past_mean) ** 2
        ratios = (variance + squares) / (past_variance + 1e-8) + (past_variance + squares) / (variance + 1e-8)
        return float((ratios / 2 - 1).mean())


@dataclass(frozen=True)
class KnowledgeBank:
    """How :class:`Knowledge` is mixed by a softmax, and how it takes in a domain."""

    size: int
    """Numbers of an offset."""
    parts: int
    """How many equally long vectors an offset consists of; similarity is the mean cosine over them."""
    config: ZOAConfig

    def init(self) -> Knowledge:
        capacity = self.config.capacity
        return Knowledge(similarity=np.zeros((capacity, capacity)), offsets=np.zeros((1, self.size)))

    def mixed(self, knowledge: Knowledge, mixture: Array) -> Array:
        offset: Array = softmax(self.config.inverse_temperature * mixture) @ knowledge.offsets
        return offset

    def store(self, knowledge: Knowledge, offset: Array, mixture: Array) -> tuple[Knowledge, Array]:
        """Remember a domain, and return the mixture with it: it gets as large a share as the largest."""
        if knowledge.domains == self.config.capacity:
            oldest = self._oldest_of_most_similar(knowledge)
            mixture = np.delete(mixture, 1 + oldest)
            knowledge = self._without(knowledge, oldest)
        last = knowledge.domains
        similarity = knowledge.similarity.copy()
        similarity[:last, last] = [self._cosine(old, offset) for old in knowledge.offsets[1:]]
        offsets = np.concatenate([knowledge.offsets, offset[None]])
        return Knowledge(similarity, offsets), np.append(mixture, mixture.max())

    def _cosine(self, one: Array, other: Array) -> float:
        one_parts = one.reshape(self.parts, -1)
        other_parts = other.reshape(self.parts, -1)
        lengths = np.linalg.norm(one_parts, axis=1) * np.linalg.norm(other_parts, axis=1)
        return float(((one_parts * other_parts).sum(axis=1) / np.maximum(lengths, 1e-12)).mean())

    def _oldest_of_most_similar(self, knowledge: Knowledge) -> int:
        """Return the index among the domains of the older of the two most similar.

        The authors' table keeps its places when an entry leaves, so that its rows soon speak of other entries, and
        a pair counts as similar with 0 where there is no pair.
        """
        table = knowledge.similarity
        if not self.config.stale_table:
            is_pair = np.triu(np.ones_like(table), 1) > 0
            table = np.where(is_pair, table, -np.inf)
        row, _ = np.unravel_index(table.argmax(), table.shape)
        return int(row)

    def _without(self, knowledge: Knowledge, index: int) -> Knowledge:
        offsets = np.delete(knowledge.offsets, 1 + index, axis=0)
        if self.config.stale_table:
            return Knowledge(knowledge.similarity, offsets)
        kept = np.delete(np.delete(knowledge.similarity, index, axis=0), index, axis=1)
        return Knowledge(np.pad(kept, ((0, 1), (0, 1))), offsets)
