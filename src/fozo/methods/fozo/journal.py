"""FOZO's journal: a step is its seed and a few numbers, so a batch costs some hundred bytes whatever the model's size.

Each line has a step's projected gradients, eps, rate and loss, and the CRC-32 of the point that the step led to.
"""

import base64
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from fozo.core.noise import Noise, PhiloxNoise
from fozo.core.spsa import Step, advance
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


def record(step: Step, point: Array) -> dict[str, object]:
    return {**asdict(step), "led_to": checksum(point)}


def follow(entry: Mapping[str, Any], size: int, take: Callable[[Step], Array]) -> Array:
    """Take a recorded step in a space of ``size`` dimensions, and check the point that it leads to."""
    fields = dict(entry)
    led_to = fields.pop("led_to", None)
    step = as_dataclass(Step, fields, "the step")
    if type(led_to) is not int or not 1 <= len(step.gradients) <= MAX_DRAWS // max(1, size):
        raise FozoError("it has no checksum, or gradients that no step has; restore it from a backup")
    with np.errstate(over="ignore", invalid="ignore"):  # of forged numbers; the checksum detects them
        point = take(step)
    if checksum(point) != led_to:
        raise FozoError("it leads to other prompts; use the noise and the NumPy version of the original run")
    return point


def replay(
    journal: str | os.PathLike[str],
    *,
    fingerprint: str | None = None,
    batches: int | None = None,
    noise: Noise | None = None,
) -> Array:
    """Rebuild the prompts that a journal of FOZO's leads to, bit for bit, without the model and without any image.

    Examples:
        >>> method = fozo.FOZO(model, source, journal="fozo.journal")
        >>> logits = method(batch)
        >>> np.array_equal(fozo.replay("fozo.journal"), method.prompts)
        True

    Args:
        journal: the file that ``journal=`` wrote.
        fingerprint: ``engine.spec.fingerprint`` of the model they are for; another model's journal is refused.
        batches: stop after this many batches, to see or undo the adaptation as it was then; by default all.
        noise: the directions, where the run was given its own.
    """
    found = read_journal(journal)
    name, header = os.fspath(journal), found.header
    if "start" not in header:
        method = header.get("method")
        raise FozoError(f"the journal {name} is of {method}, not of fozo; give it to that method's replay()")
    if fingerprint is not None:
        found.check({"fingerprint": fingerprint})
    seed = header.get("seed")
    if noise is None:
        if type(seed) is not int:
            raise FozoError(f"the run of {name} was given its own noise; pass the same noise= to replay it")
        noise = PhiloxNoise(seed)
    point, directions = decode_start(header), noise

    def advanced(entry: Mapping[str, Any]) -> None:
        nonlocal point
        point = follow(entry, point.size, lambda step: advance(point, step, directions))

    found.replay(advanced, batches)
    return point
