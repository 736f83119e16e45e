"""Replays methods over the traces of the authors' own programs on a tiny ViT: ``tests/golden`` and its README."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

import fozo
from fozo.engines.torch_engine import TorchEngine
from fozo.methods.registry import AnyMethod
from tests.helpers import golden_material

TOLERANCE = 1e-9
Array = npt.NDArray[Any]
Images = npt.NDArray[np.float64]
M = TypeVar("M", bound=AnyMethod)


def engine() -> TorchEngine:
    return golden_material().engine


def pixels(name: str) -> Images:
    """``source``, ``stream`` or ``zoa`` images, normalised."""
    return golden_material().images[name]


def source() -> fozo.Statistics:
    return golden_material().source


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
        if "stream_index" in self.arrays:  # a trace of some of them
            images = images[self["stream_index"]]
        rows = self.rows(t)
        start = rows.start % len(images)
        return images[start : start + rows.stop - rows.start]

    def after(self, name: str, t: int) -> Array | None:
        """What a field that is kept for some batches only holds after batch ``t``, if it is one of them."""
        rows = np.flatnonzero(self["kept"] == t)
        return self[name][rows[0]] if len(rows) and name in self.arrays else None

    def new_domain(self, t: int) -> bool:
        """Whether the authors' program reset the method before batch ``t``."""
        return self.hp["mode"] == "reset" and t > 0 and bool(self["domain"][t] != self["domain"][t - 1])


def load(name: str, stream: str = "stream") -> Trace:
    arrays = golden_material().trace(f"{name}_f64")
    hp = json.loads(str(arrays.pop("hp")))
    return Trace(arrays, {"mode": "continual", **hp}, stream)


def replay(
    trace: Trace, method: M, renew: Callable[[M], M] | None = None, tolerance: float = TOLERANCE
) -> Iterator[tuple[int, M]]:
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
            close(np.exp(logits), trace["probs"][trace.rows(t)], f"probabilities of batch {t}", tolerance)
        else:
            close(logits, trace["logits"][trace.rows(t)], f"logits of batch {t}", tolerance)
        yield t, method


def close(ours: npt.ArrayLike, theirs: npt.ArrayLike, what: str, tolerance: float = TOLERANCE) -> None:
    """Fail where two arrays differ by more than the tolerance."""
    our_numbers = np.asarray(ours, dtype=np.float64)
    their_numbers = np.asarray(theirs, dtype=np.float64)
    np.testing.assert_allclose(our_numbers, their_numbers, rtol=0, atol=tolerance, err_msg=what)
