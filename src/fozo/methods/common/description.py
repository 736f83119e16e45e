"""What fozo found in a model: which methods serve it, what is given up, and how to get it."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass

from fozo.engines.blackbox import BlackBoxEngine
from fozo.engines.load import LoadOptions, Model, load_engine
from fozo.engines.tokens import NOT_A_TRANSFORMER
from fozo.errors import ModelWarning
from fozo.methods.common.info import ABILITIES
from fozo.methods.registry import list_methods
from fozo.types import Engine, Spec

LOG = logging.getLogger("fozo.models")  # of what was found in models; commands show it
NO_TOKENS = "it is no model of a kind whose tokens fozo knows"
TOKENS_GAIN = "three times as much"
"""What Align inside a ViT-Tiny gained, compared with its images alone restored: +7.8 and +2.3 points of top-1."""


@dataclass(frozen=True)
class ModelDescription:
    """What was found in a model. ``str()`` has all of it, :attr:`sentence` what matters, in one line.

    Examples:
        >>> found = fozo.describe_model(model)
        >>> found.abilities, "align" in found.methods, found.reason
        (('matrices', 'prompts', 'tokens'), True, '')
    """

    spec: Spec
    engine: str
    """What runs it: ``TorchEngine``, ``OnnxEngine``, ``OpenvinoEngine``, ``BlackBoxEngine``."""
    abilities: tuple[str, ...]
    """See :class:`fozo.Engine`."""
    methods: tuple[str, ...]
    """Names of the methods that it serves."""
    reason: str
    """Why its tokens cannot be used; empty where they can."""

    @property
    def sentence(self) -> str:
        """One line for a log."""
        return _sentence(self.spec, self.reason)

    def __str__(self) -> str:
        spec = self.spec
        height, width = spec.image_size
        size = f"{width}x{height} px" if height else "images of any one size"
        normalisation = "unknown: give mean= and std="
        if spec.normalisation is not None:
            mean, std = spec.normalisation
            normalisation = f"mean {_numbers(mean)}, std {_numbers(std)}"
        rows = {
            "model": f"{spec.name}, {spec.classes or 'an unknown number of'} classes",
            "images": f"{size}, {spec.channels} channels",
            "normalisation": normalisation,
            "run by": self.engine,
            "tokens": f"none are used, because {self.reason}",
            "methods": ", ".join(self.methods),
        }
        if not self.reason:
            head = "the head reads a class token" if spec.class_token else "the head reads no class token"
            rows["tokens"] = f"{spec.patches} patches, width {spec.dim}, {spec.depth} blocks; {head}"
        others = [name for name in list_methods() if name not in self.methods]
        if self.reason:
            rows["given up"] = f"Align, which gains about {TOKENS_GAIN}; {', '.join(others)}"
            rows["to get them"] = "give the original weights or module, or another export (docs/models.md)"
        elif others:
            rows["given up"] = ", ".join(others)
            rows["to get them"] = "load the original weights or module in PyTorch"
        return "\n".join(f"{name:14} {text}" for name, text in rows.items())


def describe_model(model: Model, options: LoadOptions | None = None) -> ModelDescription:
    """Say what was found in a model, without running any method.

    Examples:
        >>> print(fozo.describe_model(model).sentence)
        vit-fashion: Align moves the tokens of its 6 blocks
    """
    engine: Engine = load_engine(model, options)
    missing = [ability for ability in ABILITIES if ability not in engine.abilities]
    return ModelDescription(
        spec=engine.spec,
        engine=type(engine).__name__,
        abilities=tuple(sorted(engine.abilities)),
        methods=tuple(list_methods(without=missing)),
        reason=_reason(engine),
    )


def report_model(engine: Engine) -> None:
    """Say what was found, in one line of a log; where tokens were looked for in vain, in a warning."""
    reason = _reason(engine)
    sentence = _sentence(engine.spec, reason)
    if reason in ("", NO_TOKENS) or NOT_A_TRANSFORMER in reason:
        LOG.info(sentence)
    else:
        warnings.warn(sentence, ModelWarning, stacklevel=3)


def _reason(engine: Engine) -> str:
    if "tokens" in engine.abilities:
        return ""
    return (engine.reason if isinstance(engine, BlackBoxEngine) else "") or NO_TOKENS


def _sentence(spec: Spec, reason: str) -> str:
    if not reason:
        return f"{spec.name}: Align moves the tokens of its {spec.depth} blocks"
    if NOT_A_TRANSFORMER in reason:
        return f"{spec.name}: only its images are restored, because {reason}"
    return (
        f"{spec.name}: only its images are restored, because {reason}; where its tokens are found Align gains about "
        f"{TOKENS_GAIN}, so give the original weights, or another export (docs/models.md)"
    )


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in dict.fromkeys(values))
