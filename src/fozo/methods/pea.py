"""PEA: all tokens of every block brought to the source's mean and covariance, block by block (ICLR 2026).

A first, plain pass finds how far each block's CLS tokens are from the source: the distances, scaled to [0, 1] over the
blocks, are the blocks' weights. In the second pass, after each block, running statistics of the stream's tokens are
updated and the tokens are whitened by them and coloured by the source's: Y = (X - mu_t) S_t^-1/2 S_s^1/2 + mu_s, and
X + w (Y - X) enters the next block. So every block's statistics are of tokens that earlier blocks have corrected. When
predictions suddenly have a high entropy, everything is forgotten.

The preset ``official`` is the authors' program with its views switched off, ``views`` with its default, two further
views of each image. What it does that summaries of the paper do not say, and ``paper`` leaves out: a block whose mean
jumps is started again (``gamma``; with the published constants the second batch always counts as a jump), and after a
spike of the entropy the *next* batch begins the statistics, not this one (``restart``). Each group of views is an
update of its own. Distances are of CLS tokens to the source's mean over *all* tokens, in program and presets.
Source statistics are exact here. The program's are a few percent off and depend on the order of the images: it mistakes
the mean before a batch, so its variance counts differences between batches too often, and its covariance, taken about
each batch's own mean, leaves them out.

One image is fewer tokens than a covariance has dimensions: what lies outside them is stretched by 1/sqrt(1e-5), in the
authors' program as here. Batches of one image do badly, and may be refused because their logits are not finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fozo.core.moments import TokenMoments
from fozo.core.objective import entropies
from fozo.engines.walk import BlockEngine, MatrixMove
from fozo.errors import FozoError
from fozo.methods.common.info import NEEDS
from fozo.methods.common.measured import add_measurement
from fozo.methods.common.options import one_of, positive, share, sweep
from fozo.methods.method import Method, Result
from fozo.methods.registry import register
from fozo.state import Measured, State
from fozo.types import Array, Batch, Engine, Floats, Images, Spec, Tap, short

RIDGE = 1e-5  # Added to the diagonal of every covariance of the source, as in the authors' program
FLOOR = 1e-5  # The least eigenvalue of a covariance that is whitened by
STILL = 1e-6  # A smoothed drift below this has not begun yet
CROP = 0.9  # Of each side, which the cropped views show
NO_JUMP = 1e9  # A jump of the distances that none reaches


def measure_covariances(engine: Engine, batches: Iterable[Images]) -> Covariances:
    """Measure what PEA aligns to on clean, normalised batches: one pass an image, no labels; the paper takes 10,000."""
    if "blocks" not in engine.abilities or not isinstance(engine, BlockEngine):
        raise FozoError(f"token covariances need {NEEDS['blocks']}")
    spec = engine.spec
    nothing = TokenMoments(0, np.zeros(spec.dim), np.zeros((spec.dim, spec.dim)))
    by_layer = [nothing] * spec.depth

    def gather(layer: int, moments: TokenMoments) -> None:
        by_layer[layer] = by_layer[layer].merge(moments)

    for images in batches:
        engine.walk(engine.check(images), gather)
    if min(moments.count for moments in by_layer) < 2:
        raise FozoError("token covariances need at least one batch of clean images; give some")
    mean = np.stack([moments.mean for moments in by_layer])
    covariance = np.stack([moments.covariance for moments in by_layer])
    variance = covariance.diagonal(axis1=1, axis2=2).copy()
    return Covariances(spec.fingerprint, mean, variance, covariance + RIDGE * np.eye(spec.dim), spec.name)


@dataclass(frozen=True)
class PEAConfig:
    """Everything about PEA that can be chosen. The defaults are the authors' program's, without views."""

    passes: int = 2
    """Two for each view of an image: the image, its middle, its mirror image, the middle of that."""
    momentum: float = 0.02
    """Weight of a new batch in the running statistics."""
    smoothing: float = 0.2
    """Weight of a new value in the averages of drift and entropy (alpha)."""
    gamma: float = 4.0
    """A block whose mean moves by more than this many times its drift is started again; inf: never."""
    threshold: float = 1.0
    """Nats that the mean entropy may exceed its average by before everything is forgotten."""
    restart: str = "next"
    """Which batch begins the statistics after that: ``next``, or ``this``, at a pass more."""
    distances: str = "cls"
    """Tokens of the first pass that weights are of: ``cls``, or ``all``."""
    skip: float = 1e-3
    """Blocks of a smaller weight are left alone, and so are their statistics."""
    group: int = 768
    """Channels that are whitened together."""
    update_every: int = 1
    """Updates after which the whitening is computed again."""
    views_together: int = 1
    """Views that go through the second pass, and into the statistics, together."""

    def __post_init__(self) -> None:
        if self.passes not in (2, 4, 6, 8):
            raise FozoError(f"pea takes 2, 4, 6 or 8 passes, two for each view, not {self.passes}")
        one_of("pea", ("next", "this"), restart=self.restart)
        one_of("pea", ("cls", "all"), distances=self.distances)
        positive("pea", gamma=self.gamma, threshold=self.threshold, group=self.group)
        positive("pea", update_every=self.update_every, views_together=self.views_together)
        share("pea", momentum=self.momentum, smoothing=self.smoothing)


@dataclass(frozen=True)
class PEAState(State):
    """Running statistics of the tokens that leave each of L blocks, and of the predictions."""

    mean: Array  # [L, d]
    covariance: Array  # [L, d, d]
    drifts: Array  # smoothed motion of each block's mean, [L]
    known: npt.NDArray[np.bool_]  # blocks that have statistics, [L]
    centre: Array  # mean that tokens are whitened by, [L, d]; empty where it is the running mean
    whitening: Array  # inverse roots of covariances, [L, d, d]; empty where they are made for every update
    updates: int = 0
    entropy: float | None = None  # smoothed mean entropy of the predictions, once there is one


@register(
    "pea", passes="2, or 2 for each of up to 4 views", adapts="statistics of all tokens of every block",
    paper="PEA, ICLR 2026", needs={"tokens", "blocks", "covariances"},
    tuning={
        **sweep("momentum", 0.02, 0.1),
        "momentum 0.1, no jumps": {"momentum": 0.1, "gamma": NO_JUMP},
        "momentum 0.3, no jumps": {"momentum": 0.3, "gamma": NO_JUMP},
    },
)  # fmt: skip
class PEA(Method[PEAConfig, PEAState]):
    """All tokens of every block brought to the source's mean and covariance.

    ``covariances`` are the source's, see :func:`measure_covariances`.
    """

    PRESETS: ClassVar = {
        "official": PEAConfig(),
        "views": PEAConfig(passes=6),
        "paper": PEAConfig(gamma=float("inf"), restart="this"),
    }
    EXTRAS: ClassVar = ("covariances",)

    def prepare(self) -> None:
        source: Covariances | None = self._extras["covariances"]
        if source is None:
            raise FozoError(f"pea needs {NEEDS['covariances']}; make them with fozo.methods.pea.measure_covariances")
        assert isinstance(self.engine, BlockEngine)
        spec = self.engine.spec
        source.check(spec)
        self._blocks = self.engine
        self._clean = source
        starts = range(0, spec.dim, self.config.group)
        self._groups = [slice(start, min(start + self.config.group, spec.dim)) for start in starts]
        self._colouring = [self._power(covariance, 0.5) for covariance in source.covariance]

    def init(self) -> PEAState:
        depth = self.engine.spec.depth
        width = self.engine.spec.dim
        kept = depth if self.config.update_every > 1 else 0  # else nothing is used twice
        return PEAState(
            mean=np.zeros((depth, width)),
            covariance=np.zeros((depth, width, width)),
            drifts=np.zeros(depth),
            known=np.zeros(depth, dtype=bool),
            centre=np.zeros((kept, width)),
            whitening=np.zeros((kept, width, width)),
        )

    def step(self, state: PEAState, batch: Batch) -> Result[PEAState]:
        """Weigh the blocks, align them, predict, and see whether the prediction is a surprise."""
        config = self.config
        passes = float(config.passes)
        views = self._views(batch)
        weights = self.weights(views)
        logits, learnt = self._align(state, views, weights)
        entropy = float(entropies(logits).mean())
        average = state.entropy
        surprised = average is not None and entropy > average + config.threshold
        if surprised:
            learnt = self.init()
            average = None
            if config.restart == "this":
                passes += len(views)
                logits, learnt = self._align(learnt, views, weights)
                entropy = float(entropies(logits).mean())
        average = entropy if average is None else config.smoothing * entropy + (1 - config.smoothing) * average
        metrics = {"mean_entropy": entropy, "restarted": float(surprised)}
        return Result(logits, replace(learnt, entropy=average), metrics, passes)

    def _views(self, batch: Batch) -> list[Batch]:
        """The batch as it is, and as many other views of it as there are passes for."""
        if self.config.passes == 2:
            return [batch]
        images = batch.images
        middle = cropped(images)
        others = (middle, images[..., ::-1], middle[..., ::-1])[: self.config.passes // 2 - 1]
        return [batch, *(batch.with_images(np.ascontiguousarray(view)) for view in others)]

    def weights(self, views: list[Batch]) -> Array:
        """First pass: how far the means and variances of each block are from the source's, ``[L]`` in [0, 1]."""
        if self.config.distances == "cls":
            taps = [self.engine.run(view, taps=(Tap.CLS,))[Tap.CLS][0] for view in views]
            tokens = np.concatenate(taps).astype(np.float64)
            mean = tokens.mean(axis=0)
            variance = tokens.var(axis=0, ddof=int(len(tokens) > 1))
        else:
            pooled: dict[int, TokenMoments] = {}

            def gather(layer: int, moments: TokenMoments) -> None:
                pooled[layer] = pooled[layer].merge(moments) if layer in pooled else moments

            for view in views:
                self._blocks.walk(view, gather)
            mean = np.stack([moments.mean for moments in pooled.values()])
            variance = np.stack([moments.covariance.diagonal() for moments in pooled.values()])
        means = self._clean.mean - mean
        variances = self._clean.variance - variance
        distance: Array = np.linalg.norm(means, axis=1) + np.linalg.norm(variances, axis=1)
        width = distance.max() - distance.min()
        return (distance - distance.min()) / width if width > 0 else np.ones_like(distance)

    def _align(self, state: PEAState, views: list[Batch], weights: Array) -> tuple[Floats, PEAState]:
        """Second pass, for some views at a time; return the views' average logits, and the new statistics."""
        statistics = RunningStatistics(state, self.config)
        logits: list[Floats] = []
        for start in range(0, len(views), self.config.views_together):
            together = views[start : start + self.config.views_together]
            batch = together[0]
            if len(together) > 1:
                batch = batch.with_images(np.concatenate([view.images for view in together]))
            statistics.updates += 1

            def move(layer: int, seen: TokenMoments) -> MatrixMove | None:
                return self._move(statistics, layer, seen, float(weights[layer]))

            taps = self._blocks.walk(batch, move)
            logits.append(taps[Tap.LOGITS][0].reshape(len(together), len(together[0]), -1))
        stacked = np.concatenate(logits)
        average: Floats = stacked.mean(axis=0, dtype=np.float64).astype(stacked.dtype)
        return average, statistics.state()

    def _move(self, statistics: RunningStatistics, layer: int, seen: TokenMoments, weight: float) -> MatrixMove | None:
        if weight < self.config.skip:
            return None
        centre, whitening = statistics.observe(layer, seen, self._power)
        aligning = whitening @ self._colouring[layer]
        matrix = (1 - weight) * np.eye(len(centre)) + weight * aligning
        return MatrixMove(matrix, weight * (self._clean.mean[layer] - centre @ aligning))

    def _power(self, covariance: Array, exponent: float) -> Array:
        if not np.isfinite(covariance).all():
            raise FozoError("the tokens' statistics are not finite; nothing was changed: reset pea, or check the model")
        power = np.zeros_like(covariance)
        for group in self._groups:
            values, vectors = np.linalg.eigh(covariance[group, group])
            power[group, group] = (vectors * np.maximum(values, FLOOR) ** exponent) @ vectors.T
        return power


class RunningStatistics:
    """Statistics of a state on their way to the next: blocks are updated one after the other while a pass runs."""

    def __init__(self, state: PEAState, config: PEAConfig) -> None:
        self.config = config
        self.before = state
        self.updates = state.updates
        self.mean = state.mean.copy()
        self.covariance = state.covariance.copy()
        self.drifts = state.drifts.copy()
        self.known = state.known.copy()
        self.centre = state.centre.copy()
        self.whitening = state.whitening.copy()

    def state(self) -> PEAState:
        return replace(
            self.before, mean=self.mean, covariance=self.covariance, drifts=self.drifts, known=self.known,
            centre=self.centre, whitening=self.whitening, updates=self.updates,
        )  # fmt: skip

    def observe(self, layer: int, seen: TokenMoments, power: Callable[[Array, float], Array]) -> tuple[Array, Array]:
        """Update a block's statistics; return the mean and the inverse root that its tokens are whitened by."""
        config = self.config
        mean = seen.mean
        covariance = seen.covariance + RIDGE * np.eye(len(seen.mean))
        is_new = not self.known[layer]
        jumped = False
        if not is_new:
            drift = float(np.abs(mean - self.mean[layer]).mean())
            self.drifts[layer] = config.smoothing * drift + (1 - config.smoothing) * self.drifts[layer]
            jumped = bool(self.drifts[layer] > STILL and drift > config.gamma * self.drifts[layer])
            if not jumped:
                mean = config.momentum * mean + (1 - config.momentum) * self.mean[layer]
                covariance = config.momentum * covariance + (1 - config.momentum) * self.covariance[layer]
        self.mean[layer] = mean
        self.covariance[layer] = covariance
        self.known[layer] = True
        if config.update_every == 1:
            return mean, power(covariance, -0.5)
        if is_new or jumped or self.updates % config.update_every == 0:
            self.centre[layer] = mean
            self.whitening[layer] = power(covariance, -0.5)
        return self.centre[layer], self.whitening[layer]


def cropped(images: Floats) -> Floats:
    """The middle of images, enlarged to their size by linear interpolation."""
    for axis in (-2, -1):
        size = images.shape[axis]
        kept = max(1, round(size * CROP))
        first = round((size - kept) / 2)
        position = np.clip((np.arange(size) + 0.5) * (kept / size) - 0.5, 0, kept - 1)
        low = np.floor(position).astype(np.int64)
        high = np.minimum(low + 1, kept - 1)
        fraction = (position - low).astype(images.dtype)
        fraction = fraction[:, None] if axis == -2 else fraction
        lower = np.take(images, first + low, axis)
        upper = np.take(images, first + high, axis)
        images = lower * (1 - fraction) + upper * fraction
    return images


@dataclass(frozen=True)
class Covariances(Measured):
    """Mean, variance and covariance of all tokens as they leave each block, on clean images.

    Apart from the source statistics: a matrix for each block is megabytes (57 for a ViT-Base) that only PEA reads.
    """

    fingerprint: str
    mean: Array  # [L, d]
    variance: Array  # [L, d]
    covariance: Array  # [L, d, d], with the ridge
    model: str = field(default="", compare=False)

    KIND: ClassVar = "token covariances"
    ADVICE: ClassVar = "measure them again"

    def __post_init__(self) -> None:
        """Refuse what no tokens have."""
        width = self.mean.shape[-1:]
        if self.variance.shape != self.mean.shape or self.covariance.shape != self.mean.shape + width:
            raise ValueError("its arrays are of different models")
        if (self.variance < 0).any():
            raise ValueError("a variance is negative")
        if not np.allclose(self.covariance, self.covariance.transpose(0, 2, 1)):
            raise ValueError("a covariance is not symmetric")

    def check(self, spec: Spec) -> None:
        if self.fingerprint != spec.fingerprint or self.mean.shape != (spec.depth, spec.dim):
            raise FozoError(
                f"these token covariances are of {self.model or 'another model'} ({short(self.fingerprint)}), not of "
                f"{spec.name} ({short(spec.fingerprint)}); measure them again with this model"
            )


add_measurement("covariances", "the token covariances of clean images", measure_covariances, Covariances.load)
