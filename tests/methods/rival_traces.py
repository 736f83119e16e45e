"""Loads the traces of the authors' own programs on a tiny ViT, and replays a method over them.

They lie in ``tests/golden``, or else in ``../shared/golden`` beside the repository or ``$FOZO_SHARED/golden``; the
README there describes every field.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
import torch

import fozo
from fozo.engines.torch_engine import TorchEngine
from fozo.engines.weights import Hints, vit_from_state
from fozo.methods.base import Method
from fozo.methods.layernorm import LayerNorms

TOLERANCE = 1e-9
Array = npt.NDArray[Any]
Images = npt.NDArray[np.float64]
M = TypeVar("M", bound=Method)


def find(name: str, key: str | None = None) -> Path:
    """A golden file (that holds ``key``), or a skip that says where it was looked for."""
    shared = Path(os.environ.get("FOZO_SHARED", Path(__file__).parents[3] / "shared"))
    for place in (Path(__file__).parents[1] / "golden", shared / "golden"):
        if (place / name).exists():
            with np.load(place / name) as file:
                if key is None or key in file.files:
                    return place / name
    pytest.skip(f"{key or 'the trace'} of {name} is not in tests/golden nor in $FOZO_SHARED/golden")


@functools.cache
def engine() -> TorchEngine:
    with np.load(find("model.npz")) as file:
        state = {name: torch.from_numpy(file[name]).double() for name in file.files if name != "__cfg__"}
    return TorchEngine(vit_from_state(state, Hints(heads=4)), name="golden")


@functools.cache
def pixels(name: str) -> Images:
    """``source``, ``stream`` or ``zoa`` images, normalised."""
    with np.load(find("data.npz", f"{name}_u8")) as file:
        values: Images = (file[f"{name}_u8"].astype(np.float64) / 255 - 0.5) / 0.5
    return values


@functools.cache
def source() -> fozo.SourceStatistics:
    return fozo.SourceStatistics.collect(engine(), np.split(pixels("source"), 4))


@dataclass(frozen=True)
class Trace:
    """One file of a golden run."""

    arrays: dict[str, Array]
    hp: dict[str, Any]
    stream: str

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def __len__(self) -> int:
        return len(self["batch_size"])

    def rows(self, t: int) -> slice:
        """Where batch ``t`` sits in the per-image arrays."""
        ends = np.cumsum(self["batch_size"])
        return slice(int(ends[t] - self["batch_size"][t]), int(ends[t]))

    def batch(self, t: int) -> Images:
        """The images of batch ``t``; a second round shows the stream again."""
        images = pixels(self.stream)
        rows = self.rows(t)
        start = rows.start % len(images)
        return images[start : start + rows.stop - rows.start]

    def new_domain(self, t: int) -> bool:
        """Whether the authors' program reset the method before batch ``t``."""
        return self.hp["mode"] == "reset" and t > 0 and bool(self["domain"][t] != self["domain"][t - 1])


def load(name: str, stream: str = "stream") -> Trace:
    with np.load(find(f"{name}_f64.npz")) as file:
        arrays = {key: file[key] for key in file.files}
    hp = json.loads(str(arrays.pop("hp"))) if "hp" in arrays else {}
    return Trace(arrays, {"mode": "continual", **hp}, stream)


def replay(trace: Trace, method: M, renew: Callable[[M], M] | None = None) -> Iterator[tuple[int, M]]:
    """Run a method over a trace, checking its output; yield after each batch what can be looked at.

    ``renew`` is how the authors' program starts a new domain, by default a reset.
    """
    for t in range(len(trace)):
        if trace.new_domain(t):
            if renew is None:
                method.reset()
            else:
                method = renew(method)
        logits = method(trace.batch(t))
        if "probs" in trace.arrays:
            close(np.exp(logits), trace["probs"][trace.rows(t)], f"probabilities of batch {t}")
        else:
            close(logits, trace["logits"][trace.rows(t)], f"logits of batch {t}")
        yield t, method


def close(ours: npt.ArrayLike, theirs: npt.ArrayLike, what: str) -> None:
    """Fail where two arrays differ by more than the tolerance."""
    one, other = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE, err_msg=what)


def check_norms(norms: LayerNorms, trace: Trace, t: int) -> None:
    """Compare every LayerNorm of the adapted model with the trace's after batch ``t``; the others must be untouched."""
    state = norms.engine.vit.state_dict()
    for name, (weight, bias) in zip(trace["ln_names"], trace["ln_after"][t], strict=True):
        close(state[f"{name}.weight"], weight, f"{name}.weight after batch {t}")
        close(state[f"{name}.bias"], bias, f"{name}.bias after batch {t}")
    assert set(norms.names) == set(trace["updated"])
