"""EATA: efficient anti-forgetting test-time adaptation (Niu et al., ICML 2022).

Learns from predictions that are reliable, of low entropy (Eq. 3), and not redundant, unlike the average prediction so
far (Eq. 4-5); lower entropies weigh more (Eq. 6). Weights that matter on clean images are held where they were, by the
Fisher information (Eq. 8-9): :func:`measure_fisher` measures it once, on clean images, without labels.

What differs from the authors' program: there ``reset`` keeps the average prediction of the stream, a slip that the
preset ``official`` has and the default does not. ``official`` also has the learning rate of the authors' ViT runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fozo.engines.blackbox import to_numpy
from fozo.errors import FozoError
from fozo.methods.common.layernorm import Descent, DescentState, GradientMethod, LayerNorms, entropy
from fozo.methods.common.measured import add_measurement
from fozo.methods.common.options import positive, sweep
from fozo.methods.common.twin import flat, write
from fozo.methods.method import Result
from fozo.methods.registry import register
from fozo.state import Measured
from fozo.types import Array, Engine, Floats, Images, short

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Fisher(Measured):
    """How much each LayerNorm weight and bias matters on clean images."""

    fingerprint: str
    values: Array
    model: str = ""

    KIND: ClassVar = "fisher information"
    ADVICE: ClassVar = "measure it again"

    def __post_init__(self) -> None:
        if self.values.ndim != 1:
            raise ValueError("the squared gradients are not one list")
        if self.values.min(initial=0) < 0:  # it would pull weights away instead of holding them
            raise ValueError("a squared gradient is negative")


def measure_fisher(engine: Engine, clean_batches: Iterable[Images]) -> Fisher:
    """Measure the Fisher information on clean, normalised batches; the paper uses 2000 images.

    Eq. 9: the mean over batches of the squared gradient of the cross-entropy to the model's own predictions.
    """
    if "gradient" not in engine.abilities:
        raise FozoError("the Fisher information needs gradients: use a torch engine in full precision")
    import torch

    norms = LayerNorms(engine)
    total = np.zeros(norms.values().size)
    count = 0
    for images in clean_batches:
        batch = norms.engine.check(images)
        with torch.inference_mode(False), torch.enable_grad():
            logits = norms.logits(batch.x.clone())
            labels = logits.argmax(dim=1)
            gradients = norms.gradients(torch.nn.functional.cross_entropy(logits, labels))
        total += flat(gradients).double().cpu().numpy() ** 2
        count += 1
    if not count:
        raise FozoError("the Fisher information needs at least one batch of clean images")
    return Fisher(engine.spec.fingerprint, total / count, engine.spec.name)


add_measurement("fisher", "the Fisher information of clean images", measure_fisher, Fisher.load)


@dataclass(frozen=True)
class EATAConfig(Descent):
    """Everything about EATA that can be chosen. The defaults are the FOZO paper's."""

    rate: float = 2.5e-4
    """Learning rate for batches of 64."""
    e_margin: float = 0.4
    """E0 of Eq. 3 as a share of ln(classes): predictions of lower entropy are reliable."""
    d_margin: float = 0.05
    """epsilon of Eq. 5: predictions whose cosine to the average one is higher are redundant."""
    ema_decay: float = 0.9
    """Weight of the past in the average prediction (1 - alpha of Eq. 4)."""
    fisher_weight: float = 2000.0
    """beta of Eq. 8; 0 leaves the anti-forgetting out, which makes it the paper's ETA."""
    forget: bool = True
    """Whether a reset also forgets the average prediction."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("eata", e_margin=self.e_margin, d_margin=self.d_margin)
        if self.fisher_weight < 0:
            raise FozoError(f"eata: fisher_weight must not be negative, not {self.fisher_weight}")


@dataclass(frozen=True)
class EATAState(DescentState):
    """Norms, momentum, and the average prediction."""

    average: Floats
    """``[classes]``; zeros before the first."""
    averaged: int = 0
    """Batches that it is the average of."""


@register(
    "eata", passes="1, and 1 backward", adapts="LayerNorm weights and biases", paper="Niu et al., ICML 2022",
    needs={"torch", "gradient", "fisher"}, tuning=sweep("rate", 2.5e-4, 6.25e-5, 1e-3, 4e-3),
)  # fmt: skip
class EATA(GradientMethod[EATAConfig, EATAState]):
    """Entropy minimisation on reliable and non-redundant predictions, held by the Fisher information.

    ``fisher`` is what :func:`measure_fisher` measured; ``fisher_weight=0`` runs without.
    """

    EXTRAS: ClassVar = ("fisher",)
    PRESETS: ClassVar = {"paper": EATAConfig(), "official": EATAConfig(rate=1e-3, forget=False)}

    def prepare(self) -> None:
        super().prepare()
        self._margin = self._entropy_share(self.config.e_margin)
        self._anchors = self._like_norms(self._start)
        self._importance: list[Tensor] | None = None
        if self.config.fisher_weight:
            self._importance = self._like_norms(self._checked_fisher(self._extras["fisher"]).values)

    def _checked_fisher(self, fisher: Fisher | None) -> Fisher:
        if fisher is None:
            need = "eata needs fisher=, measured on clean images with fozo.methods.eata.measure_fisher"
            raise FozoError(f"{need}; fisher_weight=0 runs it without (ETA)")
        spec = self.engine.spec
        if fisher.fingerprint != spec.fingerprint or fisher.values.shape != self._start.shape:
            raise FozoError(
                f"this Fisher information is of {fisher.model or 'another model'} ({short(fisher.fingerprint)}), not "
                f"of {spec.name} ({short(spec.fingerprint)}); measure it again with this model"
            )
        return fisher

    def _like_norms(self, values: Floats) -> list[Tensor]:
        """Numbers as tensors of the norms' shapes, on their device and in their precision."""
        import torch

        with torch.inference_mode(False):
            tensors = [torch.empty_like(parameter, requires_grad=False) for parameter in self._twins().parameters]
        write(values, tensors)
        return tensors

    def init(self) -> EATAState:
        average = np.zeros(self.engine.spec.classes, self._start.dtype)
        return EATAState(norms=self._start, velocity=np.zeros_like(self._start), average=average)

    def restart(self, state: EATAState) -> EATAState:
        fresh = self.init()
        return fresh if self.config.forget else replace(fresh, average=state.average, averaged=state.averaged)

    def learn(self, state: EATAState, norms: LayerNorms, images: Tensor) -> Result[EATAState]:
        import torch

        logits = norms.logits(images)
        entropies = entropy(logits)
        probabilities = logits.detach().softmax(dim=1)
        chosen = entropies.detach() < self._margin  # Eq. 3: reliable
        past = torch.tensor(state.average).to(probabilities)
        if state.averaged:  # Eq. 5: and not redundant
            cosine = (probabilities @ past) / (probabilities.norm(dim=1) * past.norm())
            chosen &= cosine.abs() < self.config.d_margin
        if not bool(chosen.any()):
            return Result(to_numpy(logits), state)
        kept = entropies[chosen]
        loss = (kept * (self._margin - kept.detach()).exp()).mean()  # Eq. 6-7
        if self._importance is not None:  # Eq. 8
            for importance, weight, anchor in zip(self._importance, norms.parameters, self._anchors, strict=True):
                loss = loss + self.config.fisher_weight * (importance * (weight - anchor) ** 2).sum()
        descended = self._descend(state, norms.gradients(loss))
        average = probabilities[chosen].mean(dim=0)
        if state.averaged:  # Eq. 4
            decay = self.config.ema_decay
            average = decay * past + (1 - decay) * average
        learnt = replace(descended, average=to_numpy(average), averaged=state.averaged + 1)
        return Result(to_numpy(logits), learnt, {"loss": loss.item()})
