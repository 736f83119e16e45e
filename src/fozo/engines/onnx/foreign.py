"""ONNX files of other programs: images in, anything out. They have no token inputs, so they are run as black boxes.

The one input is images, ``[B, channels, height, width]``, or with the channels last as TensorFlow has them. A file
whose batch is fixed (to one image, often) is called as often as it takes.
"""

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from fozo.engines.onnx.engine import model_path, thread_count
from fozo.engines.onnx.runtimes import open_session
from fozo.engines.onnx.schema import graph_hash, hash_file
from fozo.errors import FozoError
from fozo.io import open_regular
from fozo.types import Floats

CHANNELS = (1, 3, 4)
DTYPES: dict[str, npt.DTypeLike] = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16
}  # fmt: skip


class ForeignGraph:
    """Calls a file with ONNX Runtime. One output is returned as an array, several as a dictionary by name."""

    def __init__(
        self, path: str | os.PathLike[str], image_size: tuple[int, int] | None = None, threads: int | None = None
    ) -> None:
        """Open a file. ``image_size`` is the user's, which must not contradict the file's own."""
        self.path = model_path(path)
        self._threads = thread_count(threads)
        self._sessions: dict[int, Any] = {}
        session = self._session()
        inputs = session.get_inputs()
        if len(inputs) != 1 or inputs[0].type not in DTYPES or len(inputs[0].shape) != 4:
            found = ", ".join(f"{each.name} {each.type} {each.shape}" for each in inputs)
            raise FozoError(
                f"{self.path} takes {found}, where one float input [B, channels, height, width] is needed; wrap it in "
                f"a function of such images, and give that to fozo"
            )
        self._input, self._dtype = inputs[0].name, DTYPES[inputs[0].type]
        # Dimensions that are not fixed have a name, or none.
        batch, *shape = (side if type(side) is int and side > 0 else None for side in inputs[0].shape)
        self._batch: int | None = batch
        self._last = shape[2] in CHANNELS and shape[0] not in CHANNELS
        channels, height, width = (shape[2], *shape[:2]) if self._last else shape
        own = (height, width) if height is not None and width is not None else None
        if own is not None and image_size not in (None, own):
            raise FozoError(f"{self.path} takes images of {own}, not of {image_size}; leave image_size= out")
        self.channels, self.image_size = channels or 3, own or image_size
        outputs = session.get_outputs()
        self.outputs = {output.name: [side if type(side) is int else -1 for side in output.shape] for output in outputs}
        width = outputs[0].shape[1] if len(outputs) == 1 and len(outputs[0].shape) == 2 else None
        self.classes = width if type(width) is int and "float" in outputs[0].type else 0
        digest = graph_hash()
        with open_regular(self.path) as file:
            hash_file(file, digest.update)
        self.fingerprint = f"onnx-{digest.hexdigest()}"

    def _session(self) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
        """Give this process's session: threads do not survive a fork, so a child makes its own."""
        process = os.getpid()
        if process not in self._sessions:
            # Beside the parent's, which must not be closed in a child.
            self._sessions[process] = open_session(self.path, self._threads)
        return self._sessions[process]

    def __call__(self, images: Floats) -> Floats | dict[str, Floats]:
        x = np.asarray(images, dtype=self._dtype)
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1) if self._last else x)
        outputs = self._run(x) if self._batch in (None, len(x)) else self._in_parts(x, self._batch or 1)
        return outputs[0] if len(outputs) == 1 else dict(zip(self.outputs, outputs, strict=True))

    def _run(self, x: Floats) -> list[Floats]:
        session = self._session()
        try:
            outputs: list[Floats] = session.run(None, {self._input: x})
        except Exception as error:
            raise FozoError(f"{self.path} does not run on images of shape {list(x.shape)} ({error})") from error
        return outputs

    def _in_parts(self, x: Floats, size: int) -> list[Floats]:
        """Run a file of a fixed batch; the last part is filled up with its last image."""
        parts = []
        for start in range(0, len(x), size):
            part = x[start : start + size]
            filled = np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)])
            outputs = self._run(filled)
            if any(np.ndim(output) == 0 or len(output) != size for output in outputs):
                raise FozoError(
                    f"{self.path} takes {size} images at a time, and what it returns cannot be put together; give it "
                    f"batches of {size}"
                )
            parts.append([output[: len(part)] for output in outputs])
        return [np.concatenate(column) for column in zip(*parts, strict=True)]
