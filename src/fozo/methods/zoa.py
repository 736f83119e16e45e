"""ZOA: test-time model adaptation for quantized neural networks (Deng et al., 2025, arXiv:2508.02180).

The LayerNorms of blocks 1-8 (of 12) are W = W0 + sum_i softmax(10 a)_i D_i + e: the source's, a mixture of what was
learned on earlier domains, and what is being learned on this one. One-sided SPSA learns e and the mixture a from one
perturbed pass; the plain pass before it gives the prediction, shifted as in FOA. When the patch embedding's statistics
jump, the domain has changed: what was learned is stored as a new D, and the bank drops one of its two most alike.

What differs from the authors' program: three slips of it that the preset ``official`` has and the default does not,
``stale_table``, ``observe_passes`` and ``stale_shift`` of :class:`Options`. A batch of one has no standard deviation
and borrows the features of the images before it, as in FOZO.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from fozo.core.domains import DomainWatch, KnowledgeBank
from fozo.core.noise import Noise, generator
from fozo.core.objective import Objective, entropies
from fozo.core.shift import ActivationShift
from fozo.core.statistics import Moments, SourceStatistics, Window
from fozo.engines.base import Engine, Floats, Taps, Tokens
from fozo.errors import FozoError
from fozo.methods.base import Method, State
from fozo.methods.layernorm import LayerNorms, all_or_nothing, lower_blocks, torch_engine
from fozo.methods.presets import pick, positive
from fozo.methods.registry import MethodInfo, register

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Options:
    """Everything about ZOA that can be chosen. The defaults are the FOZO paper's."""

    rate: float = 5e-4
    """Learning rate of e."""
    decay: float = 0.4
    """Weight decay of e."""
    reach: float = 0.02
    """How far e is perturbed."""
    mixture_rate: float = 0.01
    mixture_decay: float = 0.1
    mixture_reach: float = 0.05
    sharpness: float = 10.0
    """Factor inside the mixture's softmax."""
    samples: int = 1
    """Perturbations that a gradient is averaged over."""
    weight: float = 30.0
    """Of the feature statistics against the entropy."""
    bank: int = 32
    """N: how many domains are remembered."""
    threshold: float = 0.1
    """Distance of the embedding's statistics from their average that makes a new domain."""
    memory: float = 0.8
    """Weight of the past in that average."""
    smallest: int = 64
    """Batches with fewer images are too small to tell whether the domain has changed."""
    window: int = 64
    """Images over which the statistics of a batch of one are taken: itself and those just before it."""
    stale_table: bool = False
    """Whether the similarity table keeps its places when an entry leaves the bank."""
    observe_passes: bool = False
    """Whether the embedding's statistics enter their average once for each pass instead of once for each batch."""
    stale_shift: bool = False
    """Whether the batch that reveals a new domain is still shifted for the old one."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        positive("zoa", reach=self.reach, mixture_reach=self.mixture_reach, samples=self.samples)


PRESETS = {"paper": Options(), "official": Options(stale_table=True, observe_passes=True, stale_shift=True)}


class SignedUniform:
    """The standard draws: uniform in [0.5, 1] with a random sign, so that dividing by them is safe."""

    PURPOSE = 5

    def __init__(self, seed: int) -> None:
        generator(seed, self.PURPOSE)  # refuses a bad seed now
        self.seed = seed

    def __call__(self, step: int, shape: tuple[int, ...]) -> Array:
        """Return the draws of ``step``."""
        numbers = generator(self.seed, self.PURPOSE, step)
        signs: Array = numbers.choice(np.array([-1.0, 1.0]), shape)
        return numbers.uniform(0.5, 1.0, shape) * signs


@register(
    MethodInfo(
        name="zoa",
        summary="zeroth-order descent on LayerNorms with a bank of domain knowledge",
        needs_gradient=False,
        needs_source=True,
        passes="2k",
        adapts="LayerNorm weights and biases of the lower blocks",
        paper="Deng et al., 2025",
    )
)
class ZOA(Method):
    """Adapts LayerNorms by one-sided SPSA, ``passes`` forward passes for each batch."""

    def __init__(
        self,
        engine: Engine,
        source: SourceStatistics | None = None,
        *,
        passes: int = 2,
        seed: int = 0,
        preset: str = "paper",
        noise: Noise | None = None,
        **switches: object,
    ) -> None:
        """Prepare to adapt.

        Args:
            engine: a torch engine.
            source: its statistics on clean data.
            passes: forward passes for each batch: ``1 + samples`` for each step, so an even number by default.
            seed: of every perturbation.
            preset: ``paper`` or ``official``.
            noise: draws to use instead of the seeded ones: even steps are the mixture's, odd ones those of e.
            switches: any field of :class:`Options` that should differ from the preset.
        """
        self.choices = pick("zoa", PRESETS, preset, switches)
        super().__init__(engine, source)
        assert source is not None
        each = 1 + self.choices.samples
        if passes < each or passes % each:
            raise FozoError(f"ZOA with {each - 1} samples takes a multiple of {each} passes, not {passes}")
        self.steps, self.passes, self.seed = passes // each, passes, seed
        self.spent = float(passes)
        need = "to change LayerNorm parameters"
        self.norms = LayerNorms(
            torch_engine(engine, "zoa", need, gradients=False), lower_blocks(engine.spec.depth, first=1)
        )
        self.noise: Noise = noise or SignedUniform(seed)
        self.source = source
        self.objective = Objective()
        self._begin()

    def _begin(self) -> None:
        """Set up everything that adaptation changes."""
        c = self.choices
        size, parts = len(self.norms), len(self.norms.names)
        self.learning: Array = np.zeros(size)  # e
        self.bank = KnowledgeBank(size, parts, room=c.bank, sharpness=c.sharpness, stale_table=c.stale_table)
        self.watch = DomainWatch(c.threshold, c.memory)
        self.draws = 0
        self.shift = ActivationShift()
        self.window = Window(c.window)
        self.loss: float | None = None
        self.norms.assign(self.norms.start)

    @property
    def parameters(self) -> int:
        """How many numbers are adapted: e, and the mixture of a full bank."""
        return len(self.norms) + self.choices.bank + 1

    def telling(self) -> dict[str, float]:
        """Return the loss of the plain pass, and how many domains are remembered."""
        return {} if self.loss is None else {"loss": self.loss, "bank": float(len(self.bank))}

    def adapt(self, tokens: Tokens) -> Floats:
        """The plain pass gives prediction and loss; each step then compares perturbed passes with a plain one."""
        with all_or_nothing(self):
            changed = self._observe(tokens)
            loss, taps = self._pass(tokens, self.bank.mixture, self.learning)
            self.loss = loss
            pooled = taps.pooled[0]
            shift = self.shift.vector(self.source.pooled.mean)
            if changed:
                self.shift = ActivationShift()
            if shift is not None and (not changed or self.choices.stale_shift):
                pooled = (pooled + shift).astype(pooled.dtype)
            logits = self.engine.logits(pooled)
            self.shift.observe(taps.pooled[0].mean(axis=0, dtype=np.float64))
            for step in range(self.steps):
                if step:
                    loss, _ = self._pass(tokens, self.bank.mixture, self.learning)
                self._descend(tokens, loss)
            if self.choices.observe_passes:
                for _ in range(self.passes - 1):
                    self._observe(tokens)
            self.window.push(taps.features[0])
            self.norms.assign(self._weights(self.bank.mixture, self.learning))
        return logits

    def _weights(self, mixture: Array, learning: Array) -> Array:
        return self.norms.start + self.bank.mixed(mixture) + learning

    def _pass(self, tokens: Tokens, mixture: Array, learning: Array) -> tuple[float, Taps]:
        """Run the model with these parameters: its loss, and what it reported."""
        self.norms.assign(self._weights(mixture, learning))
        taps = self.norms.engine.run(tokens)
        features = taps.features[0]
        moments = self.window.moments(features) if len(features) < 2 else Moments.of(features)
        misalignment = self.objective.misalignment(self.source.features, moments) / self.source.features.mean.size
        unsure = entropies(self.engine.logits(taps.pooled[0])).mean()
        loss = float(self.choices.weight * misalignment + unsure)
        if not np.isfinite(loss):
            raise FozoError(f"the loss {loss} is not finite; nothing was changed")
        return loss, taps

    def _descend(self, tokens: Tokens, loss: float) -> None:
        """One step of one-sided SPSA: g = (L(x + c z) - L(x)) / (c z), averaged over the samples."""
        c, mixture = self.choices, self.bank.mixture
        mixture_gradient, gradient = np.zeros_like(mixture), np.zeros_like(self.learning)
        for _ in range(c.samples):
            mixture_move = c.mixture_reach * self.noise(2 * self.draws, mixture.shape)
            move = c.reach * self.noise(2 * self.draws + 1, self.learning.shape)
            self.draws += 1
            rise = self._pass(tokens, mixture + mixture_move, self.learning + move)[0] - loss
            mixture_gradient += rise / mixture_move / c.samples
            gradient += rise / move / c.samples
        self.learning = self.learning - c.rate * (gradient + c.decay * self.learning)
        if len(self.bank):
            # AdamW without a past, as the authors clear it every time: nearly the sign of the gradient.
            sign = mixture_gradient / (np.abs(mixture_gradient) + 1e-8)
            self.bank.mixture = mixture * (1 - c.mixture_rate * c.mixture_decay) - c.mixture_rate * sign

    def _observe(self, tokens: Tokens) -> bool:
        """Watch the patch tokens that enter the first block; return whether the domain has changed.

        If so, what was learned becomes a new D, and e what then keeps the model as it is.
        """
        from fozo.engines.torch_engine import TorchTokens

        if not isinstance(tokens, TorchTokens) or tokens.batch < self.choices.smallest:
            return False
        patches = tokens.x[:, -self.engine.spec.patches :].flatten(0, 1).double()
        if not self.watch.observe(patches.mean(dim=0).cpu().numpy(), patches.var(dim=0).cpu().numpy()):
            return False
        offset = self.bank.mixed(self.bank.mixture) + self.learning
        self.bank.store(offset)
        self.learning = offset - self.bank.mixed(self.bank.mixture)
        return True

    def reset(self) -> None:
        """Forget everything adapted."""
        self._begin()

    def state(self) -> State:
        """What is being learned, the bank and its mixture, and the averages."""
        state = self.bank.state()
        state["learning"] = self.learning
        state["draws"] = np.array([self.draws], dtype=np.float64)
        optional = {"domain": self.watch.average, "shift": self.shift.average, "window": self.window.rows}
        return state | {name: value for name, value in optional.items() if value is not None}

    def restore_state(self, state: State) -> None:
        """Continue from a state."""
        if state["learning"].shape != (len(self.norms),):
            raise FozoError(f"the state is not of {len(self.norms)} LayerNorm parameters; save the state again")
        self._begin()
        self.bank.restore(state)
        self.learning = state["learning"].copy()
        self.draws = int(state["draws"][0])
        self.watch.average = state.get("domain")
        self.shift.average = state.get("shift")
        self.window.rows = state.get("window")
        self.norms.assign(self._weights(self.bank.mixture, self.learning))

    def options(self) -> dict[str, object]:
        """Everything that has to be the same for a state to be continued."""
        return {**asdict(self.choices), "passes": self.passes, "seed": self.seed}
