"""Sentences: what drifted, in words and units that a person takes at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from fozo.monitor.quality import OCTAVES, STATISTICS
from fozo.monitor.signatures import Guess
from fozo.monitor.types import Drift
from fozo.types import Array

CLEAR = 0.5
"""Standard deviations (of clean images) by which the mean of a look has to change to be mentioned: clean images of one
kind of thing seldom differ by more."""
MOST = 3
"""Looks that a sentence names."""
ONLY_MORE = ("noise", "blockiness")
"""Less of these is nothing to complain of, and a blur takes noise away too."""
HELPERS = ("evenness of noise",)
"""Tell corruptions apart, but tell a person nothing."""


def changes(features: Array, mean: Array) -> dict[str, float]:
    """Changes of the looks of images ``[n, width]`` against clean ones, on the looks' own scales, by name."""
    change = (features.mean(axis=0) - mean)[: len(STATISTICS)]
    return {look.name: float(value) for look, value in zip(STATISTICS, change, strict=True)}


def clear_changes(features: Array, mean: Array, std: Array) -> list[str]:
    """Put the clearest changes into words, the clearest first: ``contrast -41 %``.

    Of the octaves of detail only the one that changed most is named.
    """
    found = changes(features, mean)
    said: list[tuple[float, str, str]] = []
    for place, look in enumerate(STATISTICS):
        change = found[look.name]
        clear = abs(change) / float(std[place])
        if look.name in HELPERS or (look.name in ONLY_MORE and change < 0):
            continue
        if clear >= CLEAR and abs(change) >= look.least:
            said.append((clear, look.name, f"{look.name} {look.say(change)}"))
    said.sort(reverse=True)
    kept: list[str] = []
    octave = False
    for _, name, words in said:
        if name in OCTAVES and octave:
            continue
        octave |= name in OCTAVES
        kept.append(words)
    return kept[:MOST]


def sentence(drift: Drift, looks: Sequence[str], guess: Guess | None) -> str:
    """Say what drifted, since when, and what it looks like."""
    if not drift.drift_detected or drift.since is None:
        return "no drift"
    what = ", ".join(looks) if looks else "the images changed"
    when = f"since image {drift.since:,}"
    if drift.since_time is not None:
        when += f" ({clock(drift.since_time)})"
    return f"{what} {when}" + ("" if guess is None or guess.kind == "clean" else f": {guess}")


def clock(time: float) -> str:
    """Give a time of day, UTC."""
    return datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
