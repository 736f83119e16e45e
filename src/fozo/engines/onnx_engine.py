"""The ONNX Runtime engine: an exported model, without PyTorch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnxruntime

from fozo.engines.graph_engine import Float32, GraphEngine, model_path, thread_count, unreadable
from fozo.engines.graph_file import read_spec

QUANTIZER = "onnx.quantize"
"""What ONNX Runtime's quantizer writes into a file as its producer."""


class OnnxEngine(GraphEngine):
    """Runs a file of ``fozo export`` on the CPU. The same inputs give the same outputs, bit for bit."""

    def __init__(self, path: str | os.PathLike[str], *, threads: int | None = None, chunk: int | None = None) -> None:
        """Open a model.

        Args:
            path: the ``.onnx`` file.
            threads: processors that one call works on; by default all that this process may use.
            chunk: how many images (times candidates) go through the blocks together; bounds memory.
        """
        file = model_path(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = thread_count(threads)
        options.inter_op_num_threads = 1
        options.use_deterministic_compute = True
        options.log_severity_level = 3  # errors are raised anyhow; warnings about the graph help nobody who runs it
        try:
            self._session = onnxruntime.InferenceSession(os.fspath(file), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions share no class of their own
            raise unreadable(file, error) from error
        meta = self._session.get_modelmeta()
        spec = read_spec(str(path), meta.custom_metadata_map, {value.name for value in self._session.get_inputs()})
        if meta.producer_name == QUANTIZER and "-int8" not in spec.fingerprint:
            # Somebody quantized an exported model: no more the one whose fingerprint it carries.
            digest = hashlib.sha256(file.read_bytes()).hexdigest()[:8]
            spec = replace(spec, fingerprint=f"{spec.fingerprint}-int8-{digest}")
        super().__init__(spec, chunk)

    def execute(self, feeds: Mapping[str, Float32], outputs: Sequence[str]) -> list[Float32]:
        """Run the graph once."""
        results: list[Float32] = self._session.run(list(outputs), dict(feeds))
        return results
