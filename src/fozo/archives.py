"""Reads what fozo 0.2 measured on clean images and wrote as ``.npz``; gone with the next release.

Each kind of file has a function that names the leaves of today's :class:`fozo.state.Measured` by their paths.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fozo.errors import FozoError
from fozo.io import load_arrays, open_regular

Header: TypeAlias = Mapping[str, Any]
Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
Leaves: TypeAlias = dict[str, Any]

ZIP = b"PK\x03\x04"
PARTS = ("cls", "features", "pooled", "patch_mean", "patch_log_variance", "descriptor")
CONDITIONED = ("cls", "patch_mean", "patch_log_variance", "descriptor")
MONITOR_VERSION = 3  # of a monitor's reference in 0.2
SCALES = ("length", "variance", "norm")


def is_archive(path: str | os.PathLike[str]) -> bool:
    with open_regular(path) as file:
        return file.read(len(ZIP)) == ZIP


def read(path: str | os.PathLike[str], kind: str, advice: str) -> Leaves:
    """Return the leaves of a file of fozo 0.2, with one line of advice; any other archive is refused."""
    name = os.fspath(path)
    header, arrays = load_arrays(path, kind)
    numbers = {key: array.astype(np.float64) for key, array in arrays.items()}
    try:
        values = READERS[kind](header, numbers)
    except Exception as error:  # damaged headers raise nearly anything
        raise FozoError(f"{name} holds damaged {kind} ({type(error).__name__}: {error}); {advice}") from error
    warnings.warn(f"{name} is a file of fozo 0.2: load and save it once, later versions cannot", FutureWarning, 4)
    return values


def _source(header: Header, arrays: Arrays) -> Leaves:
    values: Leaves = {"fingerprint": header["fingerprint"], "model": header["model"]}
    values |= {"patch_moments": None, "noise": None}  # which were not measured
    counts = header["counts"]
    for part in PARTS:
        values[f"{part}.count"] = counts[part]
        values[f"{part}.mean"] = arrays[f"{part}.mean"]
        values[f"{part}.squares"] = arrays[f"{part}.squares"]
    values["content.count"] = counts["content"]
    values["content.mean"] = arrays["content.mean"]
    values["content.products"] = arrays["content.products"]
    values["content.basis.centre"] = arrays["content.centre"]
    values["content.basis.directions"] = arrays["content.directions"]
    values["content.cross.names"] = " ".join(CONDITIONED)
    for name in CONDITIONED:
        values[f"content.cross.{name}"] = arrays[f"content.{name}"]
    if "inputs.low" not in arrays:
        return {**values, "inputs": None}
    values["inputs.low"] = arrays["inputs.low"]
    values["inputs.high"] = arrays["inputs.high"]
    normalisation = arrays["inputs.normalisation"]
    known = len(normalisation) > 0
    return {**values, **(_tuple("inputs.normalisation", normalisation) if known else {"inputs.normalisation": None})}


def _tuple(path: str, values: Any) -> Leaves:  # noqa: ANN401 - nested sequences of numbers
    """The leaves of nested tuples of numbers."""
    if np.ndim(values) == 0:
        return {path: float(values)}
    found: Leaves = {f"{path}.length": len(values)}
    for index, value in enumerate(values):
        found |= _tuple(f"{path}.{index}", value)
    return found


def _plain(header: Header, arrays: Arrays) -> Leaves:
    """A fingerprint, the model's name, and arrays."""
    return {"fingerprint": header["fingerprint"], "model": header["model"], **arrays}


def _scales(header: Header, arrays: Arrays) -> Leaves:
    names = ("fingerprint", "bits", "model", "metric", "images")
    steps = {f"steps.{name}": array for name, array in arrays.items()}
    return {**{name: header[name] for name in names}, "steps.names": " ".join(arrays), **steps}


def _monitor(header: Header, arrays: Arrays) -> Leaves:
    if header["version"] != MONITOR_VERSION:
        raise ValueError(f"it is of version {header['version']!r:.40}")
    values: Leaves = {name: header[name] for name in ("fingerprint", "model", "method", "unlabelled")}
    values |= _texts("statistics", header["statistics"])
    values |= {"signatures": None, "adapted": None, "plain": None, "clean.images": header["images"]}
    for part in ("mean", "std", "centre", "matrix"):
        values[f"clean.whitening.{part}"] = arrays[f"clean.{part}"]
    values["clean.whitening.max_deviation"] = 3.0
    *scales, entropy_mean, entropy_std = arrays["clean.scales"].tolist()
    values |= {f"clean.{name}": scale for name, scale in zip(SCALES, scales, strict=True)}
    values |= _tuple("clean.entropy", (entropy_mean, entropy_std))
    if "signatures.points" in arrays:
        del values["signatures"]
        values |= _texts("signatures.kinds", header["kinds"])
        values |= {"signatures.points": arrays["signatures.points"], "signatures.images": header["sample"]}
        for part in ("mean", "std", "matrix"):
            values[f"signatures.coordinates.{part}"] = arrays[f"signatures.{part}"]
        values["signatures.coordinates.centre"] = 0 * arrays["signatures.mean"]
        values["signatures.coordinates.max_deviation"] = 12.0
    return values


def _texts(path: str, texts: Sequence[str]) -> Leaves:
    """The leaves of a tuple of texts."""
    return {f"{path}.length": len(texts), **{f"{path}.{index}": text for index, text in enumerate(texts)}}


READERS: Mapping[str, Callable[[Header, Arrays], Leaves]] = {
    "source statistics": _source,
    "fisher information": _plain,
    "token covariances": _plain,
    "quantisation scales": _scales,
    "monitor reference": _monitor,
}
