"""What is known about a method before it is made: its paper, its passes, and what it needs."""

from dataclasses import dataclass

from fozo.core.statistics import SourceStatistics
from fozo.errors import FozoError
from fozo.types import Engine

NEEDS = {  # what a method may need, in words
    "source": "source statistics; make them with fozo.calibrate",
    "fisher": "the Fisher information of clean images",
    "tokens": "the tokens of a ViT: use an engine that shows them, or the method equalise, which needs none",
    "prompts": "a model that takes prompts: one whose graph has no fixed number of tokens, as fozo export writes it",
    "covariances": "the token covariances of clean images; make them with fozo.methods.pea.measure_covariances",
    "torch": "to change a copy of the model: use a torch engine",
    "blocks": "to move all tokens between blocks: use a torch engine",
    "gradient": "gradients: use a torch engine in full precision, because rounding has none",
}
ABILITIES = ("tokens", "prompts", "gradient", "torch", "blocks")  # an engine's; gradient gives better advice than torch


@dataclass(frozen=True)
class MethodInfo:
    """What a user should know about a method before choosing it.

    Examples:
        >>> info = fozo.FOZO.info
        >>> info.passes, info.paper, sorted(info.needs)
        ('2n', 'Wang and Wang, CVPR 2026', ['prompts', 'source', 'tokens'])
    """

    name: str
    summary: str
    passes: str
    """Forward passes for each image."""
    adapts: str
    paper: str
    needs: frozenset[str] = frozenset()
    """Of :data:`NEEDS`: abilities of the engine, and what has to be measured on clean images first."""
    draws: bool = False
    """Whether it draws random numbers, so that its seed matters."""


def check_needs(info: MethodInfo, engine: Engine, source: SourceStatistics | None) -> None:
    if source is None and "source" in info.needs:
        raise FozoError(f"{info.name} needs {NEEDS['source']}")
    for need in ABILITIES:
        if need in info.needs and need not in engine.abilities:
            raise FozoError(f"{info.name} needs {NEEDS[need]}")
    if source is not None:
        source.check(engine.spec.fingerprint, engine.spec.name, engine.spec)
