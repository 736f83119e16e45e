"""Calls of adopted graphs, whose moves and outputs have one axis for images under candidates."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fozo.engines.onnx import schema
from fozo.types import Floats

Float32 = npt.NDArray[np.float32]
Execute: TypeAlias = Callable[[Sequence[str], dict[str, Float32]], list[Float32]]  # names of outputs, inputs by name
Shapes: TypeAlias = Mapping[str, Sequence[object]]  # of a graph's inputs, with whole numbers where they are fixed


class Rows:
    """Calls an adopted graph, whose rows are images under candidates; some take a fixed number of rows."""

    def __init__(self, execute: Execute, inputs: Shapes) -> None:
        self.execute = execute
        self.inputs = inputs
        batch = inputs[schema.IMAGES][0]
        self.batch = batch if isinstance(batch, int) and batch > 0 else None

    def __call__(self, outputs: Sequence[str], feeds: dict[str, Float32]) -> list[Float32]:
        candidates = len(feeds[schema.PROMPTS])
        images = len(feeds[schema.IMAGES])
        rows = candidates * images
        by_row = {}
        for name in self.inputs:
            value = feeds[name]
            if name == schema.IMAGES:
                value = value[None]
            elif name == schema.PROMPTS:
                value = value[:, None]
            elif value.shape[:2] == (1, 1):  # one move for all
                continue
            by_row[name] = np.broadcast_to(value, (candidates, images, *value.shape[2:])).reshape(
                rows, *value.shape[2:]
            )
        for_all = {name: feeds[name][0] for name in self.inputs if name not in by_row}
        size = self.batch or rows
        calls = []
        for start in range(0, rows, size):
            feeds_of_call = {name: filled(value[start : start + size], size) for name, value in by_row.items()}
            calls.append(self.execute(outputs, {**for_all, **feeds_of_call}))
        if outputs[0] in (schema.HEAD_WEIGHT, schema.HEAD_BIAS):
            return calls[0]
        columns = [np.concatenate(column)[:rows] for column in zip(*calls, strict=True)]
        return [column.reshape(candidates, images, *column.shape[1:]) for column in columns]


def filled(rows: Floats, size: int) -> Floats:
    """Fill up to ``size`` rows with the last one."""
    return rows if len(rows) == size else np.concatenate([rows, np.repeat(rows[-1:], size - len(rows), axis=0)])
