"""FOZO: forward-only zeroth-order prompt optimization (Wang and Wang, CVPR 2026), Algorithm 1.

Three prompts are inserted after the CLS token. Each batch is predicted under 2n perturbed prompts, the losses give a
gradient without backpropagation, and the prediction with the lowest loss is returned.

The paper and the authors' program differ; each difference is one named switch of :class:`FOZOConfig`, and the presets
``paper`` and ``official`` set them. Two of the differences have no effect and no switch. The paper puts the prompts
before CLS: without a position embedding, attention does not see their place. The paper adjusts epsilon before a batch
from the losses so far, the program after it: the same batches get the same values.

What neither says: a batch of one has no standard deviation. It borrows the features of the images before it, see
``window``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from scipy.special import log_softmax, logsumexp

from fozo.core.content import contents
from fozo.core.moments import shrinkage
from fozo.core.noise import Noise, PhiloxNoise
from fozo.core.objective import Objective
from fozo.core.schedule import Schedule
from fozo.core.spsa import SPSA
from fozo.core.statistics import SourceStatistics
from fozo.errors import FozoError
from fozo.methods.common.matching import ActivationShift, MatchingMethod, first_prompts
from fozo.methods.common.options import one_of, positive
from fozo.methods.fozo.journal import encode_start, follow, record
from fozo.methods.registry import register
from fozo.types import Affine, Array, Batch, Floats, Knobs, Tap

AUTHORS_SCHEDULE = Schedule(rate_decay=0.7, rate_step=0.1, rate_min=0.1, rate_max=3.0, rate_at_jump=0.1)


class ContentShift(ActivationShift):
    """An activation shift that knows what the images show: to the origin, but for what their content explains.

    Averages over recent images, this batch included: z of what the head reads, d of the content vectors less
    calibration's (:mod:`fozo.core.content`). Clean images of that content are expected at t = mu_S + W d, with an
    error as large as W d:

        shift = max(0, 1 - U / D) (t - mu_S - z),  U = |W d|^2 + u / n,  D = |t - z|^2  (James and Stein, as in Align's)

    in units of the variance over clean images, of which content leaves the part u unexplained. So whether there is
    a drift is judged against clean images, but the shift leads to the origin, as NEO's does (arXiv:2510.05635;
    neural collapse puts the mean of the classes there).

    ``images`` is how many of the images of late the averages remember.
    """

    def __init__(self, source: SourceStatistics, head: Affine, images: float) -> None:
        regression, pooled, cls = source.regression(), source.pooled, source.cls
        self.head, self.images, self.calibration, self.centre = head, images, regression.mean, pooled.mean
        self.vectors = source.content.basis.vectors(head)
        self.deviation = np.maximum(pooled.std, max(1e-3 * pooled.std.mean(), 1e-9))
        # Contents are regressed on the last CLS token, which the head reads after a norm: about a factor a feature.
        factor = pooled.std[: cls.mean.shape[1]] / np.maximum(cls.std[-1], 1e-9)
        self.weights = np.pad(regression.weights["cls"][:, -1] * factor, ((0, 0), (0, len(pooled.mean) - len(factor))))
        self.unexplained = float(regression.unexplained["cls"][-1].mean())
        super().__init__(len(pooled.mean) + len(regression.mean) + 1, scale=1.0)  # sums of z, of d, and the count

    def take(self, pooled: Floats) -> None:
        """Take in what the head reads of a batch under each candidate, ``[K, B, h]``; predictions are shifted ones."""
        each, shift = pooled.mean(axis=0, dtype=np.float64), self.vector(self.centre)
        offsets = contents(self.head(each if shift is None else each + shift), self.vectors) - self.calibration
        sums = np.concatenate([each.sum(axis=0), offsets.sum(axis=0), [len(each)]])
        self.average = sums if self.average is None else np.exp(-len(each) / self.images) * self.average + sums

    def vector(self, source_mean: Array) -> Array | None:
        if self.average is None:
            return None
        count, width = self.average[-1], len(source_mean)
        correction = np.einsum("k,kh->h", self.average[width:-1] / count, self.weights)
        away: Array = self.average[:width] / count - correction  # from the origin
        error = np.square(correction / self.deviation).mean() + self.unexplained / count
        drift = np.square((away - source_mean) / self.deviation).mean()
        return -away * shrinkage(error, drift)


@dataclass(frozen=True)
class FOZOConfig:
    """Everything about FOZO that can be chosen. The defaults are the authors' program."""

    passes: int = 2  # Forward passes for each batch: 2n, an even number
    prompts: int = 3
    weight: float = 0.4  # lambda of Eq. 15
    features: str = "normed"  # CLS after the norm that reads it next (program); ``cls``: as it leaves a block (paper)
    distance: str = "squares"  # See :class:`fozo.core.objective.Objective`
    shift: str = "sum"  # Activation shift: ``sum`` of the two sides' means (program), their ``mean``, ``none`` (paper);
    # ``content``: this batch included, to the origin but for content (:class:`ContentShift`)
    shift_images: float = 40.0  # Images that the ``content`` shift remembers
    predict: str = "best"  # The candidate of the lowest loss (both), or the ``mean`` of all candidates' probabilities
    units: str = "absolute"  # Of epsilon and rate; ``tokens``: RMS of clean tokens, gradients in theirs, prompts from 0
    trust: float = 1.0  # In units of ``tokens``: how far the prompts may go from the first ones (RMS)
    watch: str = "best"  # The loss of Eq. 12: the ``best`` of the 2n (program) or their ``mean`` (paper: "loss at t")
    schedule: Schedule = AUTHORS_SCHEDULE
    window: int = 64  # Images over which the statistics of a batch of one are taken: it and those just before it

    def __post_init__(self) -> None:
        if self.passes < 2 or self.passes % 2:
            raise FozoError(f"fozo takes an even number of passes, 2n with n >= 1, not {self.passes}")
        one_of("fozo", ("normed", "cls"), features=self.features)
        one_of("fozo", ("sum", "mean", "none", "content"), shift=self.shift)
        one_of("fozo", ("best", "mean"), predict=self.predict)
        one_of("fozo", ("absolute", "tokens"), units=self.units)
        positive("fozo", shift_images=self.shift_images, trust=self.trust)
        self.objective()

    def objective(self) -> Objective:
        return Objective(self.weight, self.distance)


def token_rms(source: SourceStatistics) -> float:
    """RMS of a clean patch token's coordinates as it enters the first block."""
    mean, variance = source.patch_mean, np.exp(source.patch_log_variance.mean[0])
    return float(np.sqrt((mean.mean[0] ** 2 + mean.std[0] ** 2 + variance).mean()))


@register(
    "fozo", passes="2n", adapts="prompts", paper="Wang and Wang, CVPR 2026",
    needs={"source", "tokens", "prompts"}, draws=True,
)  # fmt: skip
class FOZO(MatchingMethod[FOZOConfig]):
    """Zeroth-order descent on prompts.

    Examples:
        >>> method = fozo.FOZO(model, source, passes=2)  # preset="paper" follows the paper's text
        >>> method(batch).shape, method.prompts.shape
        ((8, 10), (3, 64))

    Beside what every :class:`fozo.Method` takes, ``start`` are prompts ``[p, d]`` to start from instead of random ones,
    and ``noise`` directions to use instead of seeded gaussian ones.

    A journal (``journal=``) takes some hundred bytes a batch: the steps of the prompts, which :func:`fozo.replay`
    rebuilds without a model. :meth:`replay` restores prompts, epsilon, rate and the average loss. The statistics of
    recent images (activation shift, window) are not in a journal and begin again; a saved state has them.
    """

    EXTRAS: ClassVar = ("start", "noise")
    STATE: ClassVar = ("spsa", "shift", "window")
    UNJOURNALED: ClassVar = ("shift", "window")
    VARIABLE_LENGTH: ClassVar = {**MatchingMethod.VARIABLE_LENGTH, "average": "averages"}
    PRESETS: ClassVar = {
        "official": FOZOConfig(),
        "paper": FOZOConfig(features="cls", distance="norms", shift="none", watch="mean", schedule=Schedule(rate=0.08)),
        "scaled": FOZOConfig(
            prompts=1, weight=4.0, distance="standardised", shift="content", watch="mean", predict="mean",
            units="tokens", schedule=Schedule(epsilon=1.0, epsilon_min=0.5, rate=0.05),
        ),
    }  # fmt: skip

    def prepare(self) -> None:
        config = self.config
        self.noise: Noise = self.extras["noise"] or PhiloxNoise(self.seed)
        self.start = first_prompts(self.engine.spec, config.prompts, self.seed, self.extras["start"])
        self.schedule, self.radius = config.schedule, None
        if config.units == "tokens":
            unit = token_rms(self.source)
            self.schedule, self.radius = config.schedule.scaled(unit), config.trust * unit
            self.start = self.start if self.extras["start"] is not None else np.zeros_like(self.start)
        self.objective = config.objective()
        self.source_features = self.source.features if config.features == "normed" else self.source.cls
        self.passes_per_image, self.parameters = float(config.passes), self.start.size

    def begin(self) -> None:
        config = self.config
        options: dict[str, Any] = {"samples": config.passes // 2, "watch": config.watch, "radius": self.radius}
        self.spsa = SPSA(self.start, self.schedule, self.noise, **options)
        self.begin_matching(config.window, scale=2.0 if config.shift == "sum" else 1.0)
        if config.shift == "content":
            self.shift = ContentShift(self.source, self.engine.head(), config.shift_images)

    @property
    def prompts(self) -> Array:
        """The prompts as they are now, ``[p, d]``."""
        return self.spsa.point

    def step(self, batch: Batch) -> Floats:
        """One turn of Algorithm 1's loop."""
        config = self.config
        tap = Tap.FEATURES if config.features == "normed" else Tap.CLS
        candidates = self.spsa.ask()  # lines 6-7: P + eps Z, P - eps Z
        taps = self.engine.run(batch, Knobs(prompts=candidates), (tap, Tap.POOLED))  # line 8
        features, pooled = taps[tap], taps[Tap.POOLED]
        if isinstance(self.shift, ContentShift):
            self.shift.take(pooled)
        logits = self.engine.head()(self.shifted(pooled))  # line 9
        losses = [
            self.objective(self.source_features, self.moments(features[k]), logits[k])  # line 10
            for k in range(config.passes)
        ]
        self.spsa.tell(losses)  # lines 11-18
        best = int(np.argmin(losses))
        if config.shift in ("sum", "mean"):
            self.shift.observe(pooled.mean(axis=1, dtype=np.float64).mean(axis=0))
        self.window.push(features[best])
        taken = self.spsa.last
        assert taken is not None
        self.report(loss=taken.loss, epsilon=taken.epsilon, rate=taken.rate)
        if config.predict == "mean":
            return cast("Floats", logsumexp(log_softmax(logits, axis=2), axis=0) - math.log(config.passes))
        return cast("Floats", logits[best])  # line 19

    def pooled(self, batch: Batch) -> Floats:
        return self.prompted(batch, self.prompts)

    @property
    def journal_index(self) -> int:
        return self.spsa.index

    def journal_header(self) -> dict[str, object]:
        spec = self.engine.spec
        seed = None if self.extras["noise"] else self.seed
        header = {**self.identity(), "fingerprint": spec.fingerprint, "model": spec.name, "seed": seed}
        return header | encode_start(self.start)

    def record(self) -> dict[str, object]:
        assert self.spsa.last is not None
        return record(self.spsa.last, self.spsa.point)

    def follow(self, entry: Mapping[str, Any]) -> None:
        follow(entry, self.start.size, self.spsa.follow)
