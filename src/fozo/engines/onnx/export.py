"""Writing a model as one ``.onnx`` file that adapts without PyTorch and is never exported again.

The file holds one graph (see :mod:`fozo.engines.onnx.vit` for why one is enough): knobs are its inputs, taps its
outputs, and the spec is in its metadata. It is written node by node from the weights, not traced, so it does not
depend on an exporter's version.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import onnx

from fozo.engines.onnx.schema import METADATA, graph_hash, read_graph, write_spec
from fozo.io import atomic_write, check_output, temporary_folder
from fozo.types import Spec

if TYPE_CHECKING:
    from fozo.engines.torch_engine import TorchEngine

ONE_FILE_BYTES = (2 << 30) - (1 << 20)  # protobuf's limit; beyond it the weights go to a .data file beside the model


def build_graph(engine: TorchEngine) -> onnx.ModelProto:
    from fozo.engines.onnx.vit import ViTGraph  # which needs PyTorch; what else is written does not

    weights = {name: tensor.detach().cpu().float().numpy() for name, tensor in engine.vit.state_dict().items()}
    return ViTGraph(engine.vit.architecture, weights).build()


def write_model(
    model: onnx.ModelProto,
    spec: Spec,
    target: Path,
    properties: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write a graph with its spec, so that a reader sees the old model or the new one, never half of one."""
    target = check_output(target)
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) <= ONE_FILE_BYTES:
        with atomic_write(target) as stream:
            weights = graph_hash(model.graph.SerializeToString()).hexdigest()
            stream.write(_with_spec(model, properties, write_spec(spec, weights)))
        return
    # A graph names its data file, and each export has one of its own: the new data can arrive before the new graph
    # without the old graph ever reading it.
    digest = hashlib.sha256()
    for tensor in model.graph.initializer:
        digest.update(tensor.raw_data)
    data = f"{target.name}.{digest.hexdigest()[:8]}.data"
    with temporary_folder(target) as folder:
        unfinished = folder / target.name
        onnx.save_model(model, os.fspath(unfinished), save_as_external_data=True, location=data, size_threshold=1024)
        unfinished.write_bytes(_with_spec(model, properties, write_spec(spec, read_graph(unfinished, data)[1], data)))
        shutil.move(unfinished.with_name(data), target.with_name(data))
        unfinished.replace(target)
    for old in target.parent.glob(f"{target.name}.*.data"):
        if old.name != data:
            old.unlink()


def _with_spec(model: onnx.ModelProto, properties: Mapping[str, str], spec: str) -> bytes:
    onnx.helper.set_model_props(model, {METADATA: spec, **properties})
    data: bytes = model.SerializeToString()
    return data
