"""Sentences: what drifted, in words and units for an operator."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from fozo.monitor.quality import OCTAVES, STATISTICS
from fozo.monitor.signatures import Guess
from fozo.monitor.types import Drift
from fozo.types import Array

MIN_DEVIATIONS = 0.5
"""Standard deviations of clean images by which the mean of a statistic has to change to be named: narrow clean content
seldom differs by more."""
MAX_NAMED = 3
ONLY_MORE = ("noise", "blockiness")
"""Only an increase of these is named; a blur lowers noise too."""
UNNAMED = ("evenness of noise",)
"""Distinguishes corruptions, but is not meaningful to users."""


def changes(features: Array, mean: Array) -> dict[str, float]:
    """Change of each quality statistic of images ``[n, width]`` against clean ones, on its own scale."""
    change = (features.mean(axis=0) - mean)[: len(STATISTICS)]
    return {each.name: float(value) for each, value in zip(STATISTICS, change, strict=True)}


def clear_changes(features: Array, mean: Array, std: Array) -> list[str]:
    """The clearest changes in words, the clearest first: ``contrast -41 %``.

    Of the octaves of detail only the one that changed most is named.
    """
    found: list[tuple[float, str, str]] = []
    for each, change, deviation in zip(STATISTICS, changes(features, mean).values(), std.tolist(), strict=False):
        if each.name in UNNAMED or (each.name in ONLY_MORE and change < 0):
            continue
        deviations = abs(change) / deviation
        if deviations >= MIN_DEVIATIONS and abs(change) >= each.min_change:
            found.append((deviations, each.name, f"{each.name} {each.format(change)}"))
    found.sort(reverse=True)
    octaves = [name for _, name, _ in found if name in OCTAVES]
    return [text for _, name, text in found if name not in octaves[1:]][:MAX_NAMED]


def sentence(drift: Drift, changes: Sequence[str], guess: Guess | None) -> str:
    """What drifted, since when, and which corruption it resembles."""
    if drift.since is None:
        return "no drift"
    what = ", ".join(changes) if changes else "the images changed"
    when = f"since image {drift.since:,}"
    if drift.since_time is not None:
        when += f" ({clock(drift.since_time)})"
    return f"{what} {when}" + ("" if guess is None or guess.kind == "clean" else f": {guess}")


def clock(time: float) -> str:
    """A time of day, UTC."""
    return datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
