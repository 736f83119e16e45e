"""FOZO's journal: a step is its seed and a few numbers, so a batch costs some hundred bytes whatever the model's size.

Each line has a step's projected gradients, eps, rate and loss, and the CRC-32 of the point that the step led to.
"""

import base64
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from fozo.core.noise import Noise, PhiloxNoise
from fozo.core.spsa import SPSA, SPSAState, Step, advance
from fozo.errors import FozoError
from fozo.io import as_dataclass
from fozo.methods.common.journal import read_journal
from fozo.types import Array

MAX_DRAWS = 1 << 24  # numbers drawn for one step, at most: a forged line could ask for anything


def checksum(point: Array) -> int:
    """CRC-32 of a point's bytes: equal only for bit-equal points, but for one chance in four billion."""
    return zlib.crc32(np.ascontiguousarray(point, dtype="<f8").tobytes())


def encode_start(start: Array) -> dict[str, object]:
    """The part of a header that says where a run began: not by its seed, because it may have been given."""
    text = base64.b64encode(np.ascontiguousarray(start, dtype="<f8").tobytes()).decode()
    return {"shape": list(start.shape), "start": text}


def decode_start(header: Mapping[str, Any]) -> Array:
    try:
        values = np.frombuffer(base64.b64decode(str(header["start"]), validate=True), dtype="<f8")
        shape = header["shape"]
        if not all(type(side) is int and side >= 0 for side in shape) or not np.isfinite(values).all():
            raise ValueError(f"{len(values)} numbers of shape {shape!r}, or not finite")
        point: Array = values.reshape(shape).copy()
    except (KeyError, TypeError, ValueError) as error:
        raise FozoError(f"the journal's first point cannot be read ({error}); restore it from a backup") from error
    return point


def entry_of(state: SPSAState) -> dict[str, object]:
    """Return the journal entry of the step that led to a state."""
    if state.last is None:
        raise FozoError("a journal records steps, and none has led to this state; restore it from the journal instead")
    return {"step": asdict(state.last), "led_to": checksum(state.point)}


def follow(spsa: SPSA, state: SPSAState, entry: Mapping[str, Any]) -> SPSAState:
    """Take a recorded step, and check the point that it leads to."""
    step, led_to = read_entry(entry, state.point.size)
    with np.errstate(over="ignore", invalid="ignore"):  # of forged numbers; the checksum detects them
        after = spsa.follow(state, step)
    check_point(after.point, led_to)
    return after


def read_entry(entry: Mapping[str, Any], size: int) -> tuple[Step, int]:
    """A recorded step in a space of ``size`` dimensions, and the checksum of the point that it led to."""
    led_to = entry.get("led_to")
    step = as_dataclass(Step, entry.get("step"), "the step")
    if type(led_to) is not int or not 1 <= len(step.gradients) <= MAX_DRAWS // max(1, size):
        raise FozoError("it has no checksum, or gradients that no step has; restore it from a backup")
    return step, led_to


def check_point(point: Array, led_to: int) -> None:
    if checksum(point) != led_to:
        raise FozoError("it leads to other prompts; use the noise and the NumPy version of the original run")


def replay_prompts(
    journal: str | os.PathLike[str],
    *,
    fingerprint: str | None = None,
    batches: int | None = None,
    noise: Noise | None = None,
) -> Array:
    """Rebuild the prompts that a journal of FOZO's leads to, bit for bit, without the model and without any image.

    Examples:
        >>> method = fozo.FOZO(model, statistics, journal="fozo.journal")
        >>> logits = method(batch)
        >>> np.array_equal(fozo.replay_prompts("fozo.journal"), method.prompts)
        True

    Args:
        journal: the file that ``journal=`` wrote.
        fingerprint: ``engine.spec.fingerprint`` of the model they are for; another model's journal is refused.
        batches: stop after this many batches, to see or undo the adaptation as it was then; by default all.
        noise: the directions, where the run was given its own.
    """
    file = read_journal(journal)
    name = os.fspath(journal)
    header = file.header
    if "start" not in header:
        method = header.get("method")
        raise FozoError(f"the journal {name} is of {method}, not of fozo; give it to that method's replay()")
    if fingerprint is not None:
        file.check({"fingerprint": fingerprint})
    seed = header.get("seed")
    if noise is None:
        if type(seed) is not int:
            raise FozoError(f"the run of {name} was given its own noise; pass the same noise= to replay it")
        noise = PhiloxNoise(seed)
    point = decode_start(header)

    def advanced(entry: Mapping[str, Any]) -> None:
        nonlocal point
        if "before" in entry:
            raise FozoError("another state was loaded before it; let the method replay the journal")
        step, led_to = read_entry(entry, point.size)
        with np.errstate(over="ignore", invalid="ignore"):  # of forged numbers; the checksum detects them
            point = advance(point, step, noise)
        check_point(point, led_to)

    file.replay(advanced, batches)
    return point
