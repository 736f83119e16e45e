"""ZOA: test-time model adaptation for quantized neural networks (Deng et al., 2025, arXiv:2508.02180).

The LayerNorms of blocks 1-8 (of 12) are W = W0 + sum_i softmax(10 a)_i D_i + e: the source's, a mixture of what was
learned on earlier domains, and what is being learned on this one. One-sided SPSA learns e and the mixture a from one
perturbed pass; the plain pass before it gives the prediction, shifted as in FOA. When the patch embedding's statistics
jump, the domain has changed: what was learned is stored as a new D, and the bank drops one of its two most similar.

What differs from the authors' program: three slips of it that the preset ``official`` has and the default does not,
``stale_table``, ``observe_passes`` and ``stale_shift`` of :class:`ZOAConfig`. A batch of one has no standard deviation
and borrows the features of the images before it, as in FOZO.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import softmax

from fozo.core.noise import Noise, SignedUniform
from fozo.core.objective import Objective, entropies
from fozo.core.spsa import OneSidedSPSA
from fozo.errors import FozoError
from fozo.methods.common.layernorm import LayerNorms, lower_blocks
from fozo.methods.common.matching import ActivationShift, MatchingMethod, MovingAverage
from fozo.methods.common.options import positive, sweep
from fozo.methods.registry import register
from fozo.types import Array, Batch, Floats, State, Tap, Taps


@dataclass(frozen=True)
class ZOAConfig:
    """Everything about ZOA that can be chosen. The defaults are the FOZO paper's."""

    passes: int = 2  # Forward passes for each batch: ``1 + samples`` for each step, so an even number by default
    rate: float = 5e-4  # Learning rate of e
    decay: float = 0.4  # Weight decay of e
    c: float = 0.02  # How far e is perturbed
    mixture_rate: float = 0.01
    mixture_decay: float = 0.1
    mixture_c: float = 0.05
    inverse_temperature: float = 10.0  # Factor inside the mixture's softmax
    samples: int = 1  # Perturbations that a gradient is averaged over
    weight: float = 30.0  # Of the feature statistics against the entropy
    capacity: int = 32  # N: how many domains are remembered
    threshold: float = 0.1  # Distance of the embedding's statistics from their average that makes a new domain
    ema_decay: float = 0.8  # Weight of the past in that average
    min_batch: int = 64  # Batches with fewer images are too small to detect whether the domain has changed
    window: int = 64  # Images over which the statistics of a batch of one are taken: itself and those just before it
    stale_table: bool = False  # Whether the similarity table keeps its places when an entry leaves the bank
    observe_passes: bool = False  # Whether the embedding's statistics enter their average in each pass, not each batch
    stale_shift: bool = False  # Whether the batch that reveals a new domain is shifted for the old one

    def __post_init__(self) -> None:
        positive("zoa", c=self.c, mixture_c=self.mixture_c, samples=self.samples)
        if self.capacity < 2:
            raise FozoError(f"zoa: capacity must be at least 2 domains, not {self.capacity}")
        each = 1 + self.samples
        if self.passes < each or self.passes % each:
            raise FozoError(f"zoa with {each - 1} samples takes a multiple of {each} passes, not {self.passes}")


@register(
    "zoa", passes="2k", adapts="LayerNorm weights and biases of the lower blocks", paper="Deng et al., 2025",
    needs={"source", "tokens", "torch"}, draws=True, compared={"passes": 2},
    tuning=sweep("rate", 5e-4, 3.125e-5, 1.25e-4, 2e-3),
)  # fmt: skip
class ZOA(MatchingMethod[ZOAConfig]):
    """Zeroth-order descent on LayerNorms with a bank of domain knowledge.

    ``noise`` gives draws to use instead of the seeded ones: even steps are the mixture's, odd ones those of e.
    """

    EXTRAS: ClassVar = ("noise",)
    SHARES_PREPARED = False
    STATE: ClassVar = ("search", "bank", "shift", "window", "watch")
    VARIABLE_LENGTH: ClassVar = {
        **MatchingMethod.VARIABLE_LENGTH, "point": "coordinates", "offsets": "domains", "domain": "averages",
    }  # fmt: skip
    PRESETS: ClassVar = {
        "paper": ZOAConfig(),
        "official": ZOAConfig(stale_table=True, observe_passes=True, stale_shift=True),
    }

    def prepare(self) -> None:
        self.norms = LayerNorms(self.engine, lower_blocks(self.engine.spec.depth, first=1))
        self.noise: Noise = self.extras["noise"] or SignedUniform(self.seed)
        self.objective = Objective()
        self.passes_per_image = float(self.config.passes)
        self.parameters = len(self.norms) + self.config.capacity + 1  # e, and the mixture of a full bank

    def begin(self) -> None:
        c = self.config
        size = len(self.norms)
        self.bank = KnowledgeBank(size, len(self.norms.names), c)
        # What is searched: the mixture a, one number for each offset of the bank, and then e.
        self.search = OneSidedSPSA(np.zeros(1 + size), self._descend, self._moves, samples=c.samples)
        self.watch = DomainWatch(self.engine.spec.dim, c.threshold, c.ema_decay)
        self.begin_matching(c.window, scale=1.0)

    def _parts(self, point: Array) -> tuple[Array, Array]:
        return point[: -len(self.norms)], point[-len(self.norms) :]

    def _moves(self, draw: int, size: int) -> Array:
        """How far the mixture and e are perturbed in one draw."""
        length = len(self.norms)
        mixture = self.config.mixture_c * self.noise(2 * draw, (size - length,))
        return np.concatenate([mixture, self.config.c * self.noise(2 * draw + 1, (length,))])

    def _descend(self, point: Array, gradient: Array) -> Array:
        """SGD with weight decay for e; for the mixture, once there is something to mix, AdamW without a past."""
        c = self.config
        mixture, learned = self._parts(point)
        mixture_gradient, learned_gradient = self._parts(gradient)
        learned = learned - c.rate * (learned_gradient + c.decay * learned)
        if len(self.bank):
            # The authors clear AdamW's moments every time, which leaves nearly the sign of the gradient.
            sign = mixture_gradient / (np.abs(mixture_gradient) + 1e-8)
            mixture = mixture * (1 - c.mixture_rate * c.mixture_decay) - c.mixture_rate * sign
        return np.concatenate([mixture, learned])

    def step(self, batch: Batch) -> Floats:
        """The plain pass gives prediction and loss; each step then compares perturbed passes with a plain one."""
        c = self.config
        changed = self._observe(batch)
        for turn in range(c.passes // (1 + c.samples)):
            losses = []
            for k, point in enumerate(self.search.ask()):
                loss, taps = self._run(batch, point)
                losses.append(loss)
                if turn == k == 0:
                    logits = self._predict(taps, changed)
                    features = taps[Tap.FEATURES][0]
                    self.report(loss=loss, bank=float(len(self.bank)))
            self.search.tell(losses)
        if c.observe_passes:
            for _ in range(c.passes - 1):
                self._observe(batch)
        self.window.push(features)
        return logits

    def _predict(self, taps: Taps, changed: bool) -> Floats:
        """Shift what the head reads as in FOA, but not by what was learned on another domain."""
        pooled = plain = taps[Tap.POOLED][0]
        if not changed or self.config.stale_shift:
            pooled = self.shifted(plain)
        if changed:
            self.shift = ActivationShift(self.engine.spec.head_width, scale=1.0)
        self.shift.observe(plain.mean(axis=0, dtype=np.float64))
        return self.engine.head()(pooled)

    def _weights(self, point: Array) -> Array:
        mixture, learned = self._parts(point)
        return self.norms.start + self.bank.mixed(mixture) + learned

    def _run(self, batch: Batch, point: Array) -> tuple[float, Taps]:
        self.norms.assign(self._weights(point))
        taps = self.norms.engine.run(batch, taps=(Tap.FEATURES, Tap.POOLED))
        moments = self.moments(taps[Tap.FEATURES][0])
        misalignment = self.objective.misalignment(self.source.features, moments) / self.source.features.mean.size
        entropy = entropies(self.engine.head()(taps[Tap.POOLED][0])).mean()
        return float(self.config.weight * misalignment + entropy), taps

    def _observe(self, batch: Batch) -> bool:
        """Watch the patch tokens that enter the first block; return whether the domain has changed.

        If so, what was learned becomes a new D, and e what then keeps the model as it is.
        """
        from fozo.engines.torch_engine import TorchBatch

        if not isinstance(batch, TorchBatch) or len(batch) < self.config.min_batch:
            return False
        patches = batch.tokens[:, -self.engine.spec.patches :].flatten(0, 1).double()
        if not self.watch.observe(patches.mean(dim=0).cpu().numpy(), patches.var(dim=0).cpu().numpy()):
            return False
        mixture, learned = self._parts(self.search.point)
        offset = self.bank.mixed(mixture) + learned
        mixture = self.bank.store(offset, mixture)
        self.search.point = np.concatenate([mixture, offset - self.bank.mixed(mixture)])
        return True

    def pooled(self, batch: Batch) -> Floats:
        self.norms.assign(self._weights(self.search.point))
        pooled: Floats = self.norms.engine.run(batch, taps=(Tap.POOLED,))[Tap.POOLED][0]
        return pooled

    def assign(self, variables: State) -> None:
        if len(variables["point"]) != len(variables["offsets"]) + len(self.norms):
            raise FozoError(f"the state is not of {len(self.norms)} LayerNorm parameters; save it again")
        super().assign(variables)


class DomainWatch(MovingAverage):
    """Follows the mean and variance ``[2, d]`` of a stream's features and says when they jump."""

    def __init__(self, width: int, threshold: float, decay: float) -> None:
        """``threshold`` is the distance that makes a new domain, ``decay`` the past's weight in the average."""
        super().__init__("domain", (2, width), decay)
        self.threshold = threshold

    def observe(self, mean: Array, variance: Array) -> bool:
        """Take in a batch's statistics ``[d]``; return whether they are a new domain's, and follow that one then."""
        changed = self.average is not None and self.distance(mean, variance) > self.threshold
        if changed:
            self.average = None
        self.update(np.stack([mean, variance]))
        return changed

    def distance(self, mean: Array, variance: Array) -> float:
        """Half the sum of the two Kullback-Leibler divergences between gaussians, averaged over the features."""
        assert self.average is not None
        past_mean, past_variance = self.average
        squares = (mean - past_mean) ** 2
        ratios = (variance + squares) / (past_variance + 1e-8) + (past_variance + squares) / (variance + 1e-8)
        return float((ratios / 2 - 1).mean())


class KnowledgeBank:
    """Parameter offsets D_i learned on earlier domains, mixed by a softmax; D_0 = 0 is the source.

    ``parts`` is how many equally long vectors an offset consists of; similarity is the mean cosine over them.
    """

    def __init__(self, size: int, parts: int, config: ZOAConfig) -> None:
        self.parts, self.config = parts, config
        self.offsets: Array = np.zeros((1, size))
        self.similarity: Array = np.zeros((config.capacity, config.capacity))  # Of D_i+1 and D_j+1, where i < j

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def mixed(self, mixture: Array) -> Array:
        offset: Array = softmax(self.config.inverse_temperature * mixture) @ self.offsets
        return offset

    def store(self, offset: Array, mixture: Array) -> Array:
        """Remember a domain, and return the mixture with it: it gets as large a share as the largest."""
        if len(self) == self.config.capacity:
            mixture = np.delete(mixture, self._drop())
        last = len(self)
        self.similarity = self.similarity.copy()
        self.similarity[:last, last] = [self._cosine(old, offset) for old in self.offsets[1:]]
        self.offsets = np.concatenate([self.offsets, offset[None]])
        return np.append(mixture, mixture.max())

    def _cosine(self, one: Array, other: Array) -> float:
        a, b = one.reshape(self.parts, -1), other.reshape(self.parts, -1)
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        return float(((a * b).sum(axis=1) / np.maximum(lengths, 1e-12)).mean())

    def _drop(self) -> int:
        """Forget the older of the two most similar, and return its index among the offsets.

        The authors' table keeps its places when an entry leaves, so that its rows soon speak of other entries, and
        a pair counts as similar with 0 where there is no pair.
        """
        pairs = np.triu(np.ones_like(self.similarity), 1) > 0
        table = self.similarity if self.config.stale_table else np.where(pairs, self.similarity, -np.inf)
        out = int(np.unravel_index(table.argmax(), table.shape)[0])
        self.offsets = np.delete(self.offsets, out + 1, axis=0)
        if not self.config.stale_table:
            kept = np.delete(np.delete(self.similarity, out, axis=0), out, axis=1)
            self.similarity = np.pad(kept, ((0, 1), (0, 1)))
        return out + 1

    def state(self) -> State:
        return {"offsets": self.offsets, "similarity": self.similarity}

    def load_state(self, state: State) -> None:
        domains, capacity = len(state["offsets"]) - 1, self.config.capacity
        if domains > capacity:
            raise FozoError(f"the state remembers {domains} domains, but capacity is {capacity}")
        self.offsets, self.similarity = (np.array(state[name], np.float64) for name in ("offsets", "similarity"))
