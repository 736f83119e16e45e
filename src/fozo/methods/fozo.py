"""FOZO by its presets: ``aligned`` is fozo's own and the default, ``official`` and ``paper`` are what was published."""

from __future__ import annotations

from typing import Literal, overload

from fozo.core.statistics import SourceStatistics
from fozo.engines.base import Engine
from fozo.errors import FozoError
from fozo.methods.aligned_fozo import AlignedFOZO
from fozo.methods.base import Method
from fozo.methods.prompt_fozo import PRESETS as PUBLISHED
from fozo.methods.prompt_fozo import PromptFOZO
from fozo.methods.registry import MethodInfo, register

ALIGNED = "aligned"
DEFAULT_PRESET = ALIGNED

INFO = MethodInfo(
    name="fozo",
    summary="layer-wise alignment (default), or zeroth-order prompts (presets official, paper)",
    needs_gradient=False,
    needs_source=True,
    passes="1 or more; 2n",
    adapts="detail and patch moves, or prompts",
    paper="fozo; Wang and Wang, CVPR 2026",
)
AlignedFOZO.info = PromptFOZO.info = INFO


@overload
def FOZO(
    engine: Engine,
    source: SourceStatistics | None = ...,
    *,
    preset: Literal["aligned"] = ...,
    passes: int | str | None = ...,
    seed: int = ...,
    **options: object,
) -> AlignedFOZO: ...
@overload
def FOZO(
    engine: Engine,
    source: SourceStatistics | None = ...,
    *,
    preset: Literal["official", "paper"],
    passes: int | str | None = ...,
    seed: int = ...,
    **options: object,
) -> PromptFOZO: ...
@overload
def FOZO(
    engine: Engine,
    source: SourceStatistics | None = ...,
    *,
    preset: str,
    passes: int | str | None = ...,
    seed: int = ...,
    **options: object,
) -> Method: ...
@register(INFO)
def FOZO(
    engine: Engine,
    source: SourceStatistics | None = None,
    *,
    preset: str = DEFAULT_PRESET,
    passes: int | str | None = None,
    seed: int = 0,
    **options: object,
) -> Method:
    """Make the FOZO of a preset.

    Args:
        engine: the frozen model.
        source: its statistics on clean data.
        preset: ``aligned``, ``official`` or ``paper``.
        passes: forward passes for each image; 1 by default for ``aligned``, which also takes
            ``"auto"``; 2 for the published presets.
        seed: of what the published presets draw; ``aligned`` draws nothing.
        options: see :class:`fozo.methods.aligned_fozo.AlignedFOZO` and
            :class:`fozo.methods.prompt_fozo.PromptFOZO`.
    """
    if passes is not None:
        options["passes"] = passes
    if preset == ALIGNED:
        return AlignedFOZO(engine, source, **options)  # type: ignore[arg-type]
    if preset in PUBLISHED:
        return PromptFOZO(engine, source, preset=preset, seed=seed, **options)  # type: ignore[arg-type]
    raise FozoError(f"fozo has no preset {preset!r}; choose from {', '.join([ALIGNED, *PUBLISHED])}")
