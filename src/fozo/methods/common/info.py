"""What is known about a method before it is made: its paper, its passes, and what it needs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from fozo.core.statistics import Statistics
from fozo.errors import FozoError
from fozo.types import Engine, Value

NEEDS = {  # what a method may need, in words; fozo.methods.common.measured adds what has to be measured
    "statistics": "source statistics; make them with fozo.calibrate",
    "tokens": "the tokens of a ViT: use an engine that shows them, or the method equalise, which needs none",
    "matrices": "to multiply patch tokens by matrices: export the model again with this version, or use a torch engine",
    "prompts": "a model that takes prompts: one whose graph has no fixed number of tokens, as fozo export writes it",
    "torch": "to change a copy of the model: use a torch engine",
    "blocks": "to move all tokens between blocks: use a torch engine",
    "gradient": "gradients: use a torch engine in full precision, because rounding has none",
}
ABILITIES = (
    "tokens",
    "prompts",
    "matrices",
    "gradient",
    "torch",
    "blocks",
)  # an engine's; gradient gives better advice than torch
BACKWARD = 2.0  # forward passes that a backward pass costs


@dataclass(frozen=True)
class MethodInfo:
    """What a user should know about a method before choosing it.

    Examples:
        >>> info = fozo.FOZO.info
        >>> info.passes, info.paper, sorted(info.needs)
        ('2n', 'Wang and Wang, CVPR 2026', ['prompts', 'statistics', 'tokens'])
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
    label: str = ""
    """What tables and charts call it."""
    compared: Mapping[str, Value] = field(default_factory=dict, hash=False)
    """Options that it is compared with other methods with, where they are not its defaults."""
    tuning: Mapping[str, Mapping[str, Value]] = field(default_factory=dict, hash=False, repr=False)
    """Options to try where methods are tuned, by name; the published ones come first."""

    @property
    def cost(self) -> float:
        """Forward passes for each image as it is compared, by the first number of ``passes`` or 1.

        A backward pass counts as two.
        """
        chosen = self.compared.get("passes")
        if isinstance(chosen, int):
            return chosen
        forward = re.search(r"\d+", self.passes)
        backward = re.search(r"(\d+) backward", self.passes)
        cost = float(forward[0]) if forward else 1.0
        return cost + BACKWARD * float(backward[1]) if backward else cost


def check_needs(info: MethodInfo, engine: Engine, statistics: Statistics | None) -> None:
    if statistics is None and "statistics" in info.needs:
        raise FozoError(f"{info.name} needs {NEEDS['statistics']}")
    for need in ABILITIES:
        if need in info.needs and need not in engine.abilities:
            raise FozoError(f"{info.name} needs {NEEDS[need]}")
    if statistics is not None:
        statistics.check(engine.spec.fingerprint, engine.spec.name, engine.spec)
