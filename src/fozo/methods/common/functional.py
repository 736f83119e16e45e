"""A base for a method of your own in two functions: what it knows at the start, and what a batch makes of that.

Everything else a :class:`fozo.Method` promises follows: states that are saved and restored, exact resets, transactions,
threads. docs/methods.md has an example, and ``fozo.testing.check_method`` says whether it keeps the promises.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fozo.methods.base import Method
from fozo.methods.common.stateful import C
from fozo.types import Batch, Floats, State


@dataclass(frozen=True)
class NoOptions:
    """Nothing can be chosen."""


class FunctionalMethod(Method[C]):
    """A method as two functions of plain arrays; ``Method[YourConfig]``'s config and presets are optional here."""

    PRESETS: ClassVar[Mapping[str, Any]] = {"default": NoOptions()}

    @abstractmethod
    def start(self) -> State:
        """Name all that adaptation changes, as arrays whose shapes and types stay as they are here."""

    @abstractmethod
    def update(self, state: State, batch: Batch) -> tuple[State, Floats]:
        """Adapt to a batch: return the new state and the logits ``[B, classes]``.

        Arrays of the old state cannot be written to, so that a step which fails has changed nothing.
        """

    def begin(self) -> None:
        self.memory = _frozen(self.start())

    def step(self, batch: Batch) -> Floats:
        state, logits = self.update(dict(self.memory), batch)
        self.memory = _frozen(state)
        return logits

    def variables(self) -> State:
        return self.memory

    def assign(self, variables: State) -> None:
        self.memory = _frozen(variables)


def _frozen(state: State) -> State:
    """Copy arrays into read-only ones."""
    frozen = {name: np.array(value) for name, value in state.items()}
    for value in frozen.values():
        value.flags.writeable = False
    return frozen
