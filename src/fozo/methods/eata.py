"""EATA: efficient anti-forgetting test-time adaptation (Niu et al., ICML 2022).

Learns from predictions that are reliable, of low entropy (Eq. 3), and not redundant, unlike the average prediction so
far (Eq. 4-5); lower entropies weigh more (Eq. 6). Weights that matter on clean images are held where they were, by the
Fisher information (Eq. 8-9): :func:`measure_fisher` measures it once, on clean images, without labels.

What differs from the authors' program: there ``reset`` keeps the average prediction of the stream, a slip that the
preset ``official`` has and the default does not. ``official`` also has the learning rate of the authors' ViT runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fozo.errors import FozoError
from fozo.io import load_statistics, refuse_damage, save_arrays
from fozo.methods.common.layernorm import Descent, GradientMethod, LayerNorms, entropy, fill, flat
from fozo.methods.common.measured import add_measurement
from fozo.methods.common.options import positive, sweep
from fozo.methods.registry import register
from fozo.types import Array, Engine, Images, State

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Fisher:
    """How much each LayerNorm weight and bias matters on clean images."""

    fingerprint: str
    values: Array
    model: str = ""

    KIND = "fisher information"

    def save(self, path: str | os.PathLike[str]) -> None:
        header = {"kind": self.KIND, "version": 1, "fingerprint": self.fingerprint, "model": self.model}
        save_arrays(path, header, {"values": self.values})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Fisher:
        advice = "measure it again"
        header, arrays = load_statistics(
            path, cls.KIND, (1,), lambda specs: {"values": specs["values"].shape[:1]}, advice
        )
        with refuse_damage(path, cls.KIND, advice):
            if (arrays["values"] < 0).any():  # it would pull weights away instead of holding them
                raise ValueError("a squared gradient is negative")
            return cls(str(header["fingerprint"]), arrays["values"], str(header["model"]))


def measure_fisher(engine: Engine, clean_batches: Iterable[Images]) -> Fisher:
    """Measure the Fisher information on clean, normalised batches; the paper uses 2000 images.

    Eq. 9: the mean over batches of the squared gradient of the cross-entropy to the model's own predictions.
    """
    if "gradient" not in engine.abilities:
        raise FozoError("the Fisher information needs gradients: use a torch engine in full precision")
    import torch

    norms = LayerNorms(engine)
    total = np.zeros(len(norms))
    count = 0
    for images in clean_batches:
        batch = norms.engine.check(images)
        with torch.inference_mode(False), torch.enable_grad():
            logits = norms.logits(batch.x.clone())
            own = logits.argmax(dim=1)
            gradients = norms.gradients(torch.nn.functional.cross_entropy(logits, own))
        total += flat(gradients) ** 2
        count += 1
    if not count:
        raise FozoError("the Fisher information needs at least one batch of clean images")
    return Fisher(engine.spec.fingerprint, total / count, engine.spec.name)


add_measurement("fisher", "the Fisher information of clean images", measure_fisher, Fisher.load)


@dataclass(frozen=True)
class EATAConfig(Descent):
    """Everything about EATA that can be chosen. The defaults are the FOZO paper's."""

    rate: float = 2.5e-4
    e_margin: float = 0.4  # E0 of Eq. 3 as a share of ln(classes): predictions of lower entropy are reliable
    d_margin: float = 0.05  # epsilon of Eq. 5: predictions whose cosine to the average one is higher are redundant
    ema_decay: float = 0.9  # Weight of the past in the average prediction (1 - alpha of Eq. 4)
    fisher_weight: float = 2000.0  # beta of Eq. 8; 0 leaves the anti-forgetting out, which makes it the paper's ETA
    forget: bool = True  # Whether ``reset`` also forgets the average prediction

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("eata", e_margin=self.e_margin, d_margin=self.d_margin)
        if self.fisher_weight < 0:
            raise FozoError(f"eata: fisher_weight must not be negative, not {self.fisher_weight}")


@register(
    "eata", passes="1, and 1 backward", adapts="LayerNorm weights and biases", paper="Niu et al., ICML 2022",
    needs={"torch", "gradient", "fisher"}, tuning=sweep("rate", 2.5e-4, 6.25e-5, 1e-3, 4e-3),
)  # fmt: skip
class EATA(GradientMethod[EATAConfig]):
    """Entropy minimisation on reliable and non-redundant predictions, held by the Fisher information.

    ``fisher`` is what :func:`measure_fisher` measured; ``fisher_weight=0`` runs without.
    """

    EXTRAS: ClassVar = ("fisher",)
    STATE: ClassVar = ("average",)
    VARIABLE_LENGTH: ClassVar = {"average": "classes"}
    PRESETS: ClassVar = {"paper": EATAConfig(), "official": EATAConfig(rate=1e-3, forget=False)}

    average: Array  # the average prediction ``[classes]``, empty before the first

    def prepare(self) -> None:
        super().prepare()
        self.margin = self.entropy_share(self.config.e_margin)
        self.importance = self._importance(self.extras["fisher"]) if self.config.fisher_weight else None
        self.anchors = [parameter.detach().clone() for parameter in self.norms.parameters]

    def _importance(self, fisher: Fisher | None) -> list[Tensor]:
        if fisher is None:
            need = "eata needs fisher=, measured on clean images with fozo.methods.eata.measure_fisher"
            raise FozoError(f"{need}; fisher_weight=0 runs it without (ETA)")
        if fisher.fingerprint != self.engine.spec.fingerprint or fisher.values.shape != (len(self.norms),):
            raise FozoError(
                f"this Fisher information is of {fisher.model or 'another model'} ({fisher.fingerprint[:12]}), not of "
                f"{self.engine.spec.name} ({self.engine.spec.fingerprint[:12]}); measure it again with this model"
            )
        importance = [parameter.detach().clone() for parameter in self.norms.parameters]
        fill(importance, fisher.values)
        return importance

    def learn(self, images: Tensor) -> Tensor:
        logits = self.norms.logits(images)
        entropies = entropy(logits)
        probabilities = logits.detach().softmax(dim=1)
        chosen = entropies.detach() < self.margin  # Eq. 3: reliable
        past = probabilities.new_tensor(self.average)
        if len(past):  # Eq. 5: and not redundant
            cosine = (probabilities @ past) / (probabilities.norm(dim=1) * past.norm())
            chosen &= cosine.abs() < self.config.d_margin
        if not bool(chosen.any()):
            return logits
        kept = entropies[chosen]
        loss = (kept * (self.margin - kept.detach()).exp()).mean()  # Eq. 6-7
        if self.importance is not None:  # Eq. 8
            for importance, weight, anchor in zip(self.importance, self.norms.parameters, self.anchors, strict=True):
                loss = loss + self.config.fisher_weight * (importance * (weight - anchor) ** 2).sum()
        self.descend(self.gradients(loss))
        new, decay = probabilities[chosen].mean(dim=0), self.config.ema_decay
        self.average = flat([decay * past + (1 - decay) * new if len(past) else new])  # Eq. 4
        return logits

    def begin(self) -> None:
        super().begin()
        self.average = np.empty(0)

    def reset(self) -> None:
        average = self.average
        super().reset()
        if not self.config.forget:
            self.average = average

    def assign(self, variables: State) -> None:
        classes = len(variables["average"])
        if classes not in (0, self.engine.spec.classes):
            raise FozoError(f"the state's average prediction is of {classes} classes; give this model's own state")
        super().assign(variables)
