"""Running ONNX files without PyTorch: engines over ONNX Runtime and OpenVINO, and files of other programs.

In ONNX Runtime cores are used by several calls at a time, each on one thread, not by several threads in one call: a
call's products are too small to cut, and between any two of them all threads would wait for the slowest. The calls
share one session, so its weights are in memory once. Both ways were measured: results/settled.md.
"""

import importlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnxruntime

from fozo.engines.onnx.engine import Float32, GraphEngine, model_path, thread_count, unreadable
from fozo.engines.onnx.schema import METADATA, graph_hash, hash_file, read_spec
from fozo.errors import FozoError
from fozo.io import open_regular
from fozo.types import Floats, Threads

CHANNELS = (1, 3, 4)
DTYPES: dict[str, npt.DTypeLike] = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16
}  # fmt: skip


def open_session(path: Path, threads: int) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    options.log_severity_level = 4  # errors are raised anyhow; warnings about the graph do not help its users
    try:
        return onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions share no class of their own
        raise unreadable(path, error) from error


class OnnxEngine(GraphEngine):
    """Runs a file of ``fozo export`` on the CPU. The same inputs give the same outputs, bit for bit."""

    def __init__(self, path: str | os.PathLike[str], *, threads: int | None = None, chunk: int | None = None) -> None:
        """Open a model.

        Args:
            path: the ``.onnx`` file.
            threads: calls that are made at a time, each on one processor; by default as many as this process may use.
            chunk: how many images (times candidates) go through the blocks together; bounds memory.
        """
        file = model_path(path)
        session = open_session(file, 1)
        metadata = session.get_modelmeta().custom_metadata_map
        spec = read_spec(file, metadata, {value.name: value.shape for value in session.get_inputs()})
        super().__init__(spec, session.run, chunk, Threads(thread_count(threads)))


class OpenvinoEngine(GraphEngine):
    """Runs a file of ``fozo export`` on the CPU.

    A forked child of a process that has used OpenVINO is refused: it hangs in one run of fourteen, or is aborted.
    """

    _process: ClassVar[int | None] = None  # the process that made the first engine

    def __init__(self, path: str | os.PathLike[str], *, threads: int | None = None, chunk: int | None = None) -> None:
        try:
            openvino = importlib.import_module("openvino")
        except ImportError as error:
            raise FozoError("this engine needs OpenVINO; install it with pip install 'fozo[openvino]'") from error
        file = model_path(path)
        self._refuse_fork()
        OpenvinoEngine._process = os.getpid()
        core = openvino.Core()
        try:
            model = core.read_model(os.fspath(file))
        except Exception as error:  # OpenVINO raises plain RuntimeErrors of many origins
            raise unreadable(file, error) from error
        stored = ["framework", METADATA]  # where its ONNX reader keeps a model's metadata
        metadata = {METADATA: str(model.get_rt_info(stored).astype(str))} if model.has_rt_info(stored) else {}
        shapes = {
            value.any_name: [side.get_length() if side.is_static else None for side in value.partial_shape]
            for value in model.inputs
        }
        spec = read_spec(file, metadata, shapes)
        count = thread_count(threads)
        settings = {
            "INFERENCE_NUM_THREADS": count,
            "PERFORMANCE_HINT": "LATENCY",
            # Otherwise newer processors would compute in bfloat16, and the numbers would depend on the machine.
            "INFERENCE_PRECISION_HINT": "f32",
        }
        request, lock = core.compile_model(model, "CPU", settings).create_infer_request(), threading.Lock()

        def execute(outputs: Sequence[str], feeds: dict[str, Float32]) -> list[Float32]:
            self._refuse_fork()
            with lock:  # adapters in several threads may share this engine, and a request serves one at a time
                request.infer(feeds)
                # The request's tensors are overwritten by the next call, so what leaves here is a copy.
                return [request.get_tensor(name).data.copy() for name in outputs]

        super().__init__(spec, execute, chunk, Threads(count), calls=Threads(1))  # every call has its own threads

    @classmethod
    def _refuse_fork(cls) -> None:
        if cls._process not in (None, os.getpid()):
            raise FozoError(
                "OpenVINO does not work in a forked child of a process that has used it; spawn the child, or use "
                "runtime='onnxruntime'"
            )


class ForeignGraph:
    """Calls an ONNX file of another program. One output is returned as an array, several as a dictionary by name.

    It has no token inputs, so it is run as a black box. The one input is images, ``[B, channels, height, width]``, or
    with the channels last as TensorFlow has them. A file whose batch is fixed (to one image, often) is called as often
    as it takes.
    """

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
