"""Engines over ONNX Runtime and OpenVINO: an exported model, without PyTorch.

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

import onnxruntime

from fozo.engines.onnx.engine import Float32, GraphEngine, model_path, thread_count, unreadable
from fozo.engines.onnx.schema import METADATA, read_spec
from fozo.errors import FozoError
from fozo.types import Threads


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
