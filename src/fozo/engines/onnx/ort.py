"""The ONNX Runtime engine: an exported model, without PyTorch.

Cores are used by several calls at a time, each on one thread, not by several threads in one call: a call's products
are too small to cut, and between any two of them all threads would wait for the slowest. The calls share
one session, so its weights are in memory once. Both ways were measured: results/settled.md.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnxruntime

from fozo.engines.onnx.engine import GraphEngine, model_path, thread_count, unreadable
from fozo.engines.onnx.schema import read_spec
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
