"""What every method shares: the call, and a state that can be saved, restored and reset."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fozo.core.files import load_arrays, save_arrays
from fozo.core.statistics import SourceStatistics
from fozo.engines.base import Engine, Floats, ImagesT, Tokens, like
from fozo.errors import FozoError
from fozo.methods.registry import MethodInfo

State = dict[str, npt.NDArray[np.float64]]


class Method(ABC):
    """``method(images)`` adapts to the batch and predicts it.

    A subclass implements :meth:`adapt`, :meth:`reset`, :meth:`state` and :meth:`restore_state`, and is registered
    with :func:`fozo.methods.registry.register`.
    """

    info: ClassVar[MethodInfo]

    spent: float = 1.0
    """Forward passes that the latest batch cost, as an average over its images. A method that makes more than one
    says so here, once or after each batch."""

    def __init__(self, engine: Engine, source: SourceStatistics | None = None) -> None:
        """Hold the engine and its source statistics, refusing those of another model."""
        if source is not None:
            source.check(engine.spec.fingerprint, engine.spec.name)
        elif self.info.needs_source:
            raise FozoError(f"{self.info.name} needs source statistics; collect them with SourceStatistics.collect")
        self.engine = engine

    def __call__(self, images: ImagesT) -> ImagesT:
        """Adapt to normalised images ``[B, channels, height, width]`` and return their logits ``[B, classes]``.

        NumPy in, NumPy out; torch in, torch out. If it raises, the method is as it was before the call.
        """
        return like(images, self.adapt(self.engine.embed(images)))

    @property
    def parameters(self) -> int:
        """How many numbers adaptation searches or descends in (the papers' #Params)."""
        return 0

    def telling(self) -> dict[str, float]:
        """Return what the latest batch showed, by name, for whoever keeps records: a loss, a step size; or nothing."""
        return {}

    @abstractmethod
    def adapt(self, tokens: Tokens) -> Floats:
        """Adapt to an embedded batch and return its logits."""

    @abstractmethod
    def reset(self) -> None:
        """Forget everything adapted: behave exactly as newly made."""

    @abstractmethod
    def state(self) -> State:
        """Return all that adaptation has changed, as named arrays."""

    @abstractmethod
    def restore_state(self, state: State) -> None:
        """Continue from what :meth:`state` returned."""

    def options(self) -> dict[str, object]:
        """Return the choices that a saved state is only valid for (JSON values)."""
        return {}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to an ``.npz`` (no pickle), atomically."""
        header = {
            "kind": "state",
            "version": 1,
            "method": self.info.name,
            "model": self.engine.spec.name,
            "fingerprint": self.engine.spec.fingerprint,
            "classes": self._classes(),
            "options": self.options(),
        }
        save_arrays(path, header, self.state())

    def _classes(self) -> list[int] | None:
        subset = self.engine.spec.subset
        return None if subset is None else list(subset)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Continue from a saved state, as if the run had never been interrupted.

        A state of another method, model or choice of options is refused, and nothing is changed.
        """
        header, arrays = load_arrays(path, "state")
        ours: dict[str, object] = {
            "method": self.info.name,
            "fingerprint": self.engine.spec.fingerprint,
            "classes": self._classes(),
            "options": self.options(),
        }
        for key, value in ours.items():
            theirs = header.get(key)
            if theirs == value:
                continue
            if isinstance(theirs, dict) and isinstance(value, dict):
                key = next(name for name in {**theirs, **value} if theirs.get(name) != value.get(name))
                theirs, value = theirs.get(key), value.get(key)
            raise FozoError(
                f"{os.fspath(path)} was saved with {key}={theirs!r} ({header.get('model')}), but this run has "
                f"{value!r}; restore it into a method made the same way"
            )
        expected = self.state()
        # Optional parts of a state may be absent on either side; what is there must have the right form.
        for name, array in arrays.items():
            want = expected.get(name)
            if array.dtype != np.float64 or (want is not None and want.ndim != array.ndim):
                raise FozoError(f"{os.fspath(path)} holds a malformed {name!r}; save the state again")
        self.restore_state({name: array.astype(np.float64) for name, array in arrays.items()})
