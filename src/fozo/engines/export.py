"""``fozo export``: a model as one ``.onnx`` file that adapts without PyTorch and is never exported again.

The file holds one graph (see :mod:`fozo.engines.onnx_vit` for why one is enough): knobs are its inputs, taps its
outputs, and the spec is in its metadata. It is written node by node from the weights, not traced, so it does not
depend on the version of anybody's exporter.
"""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from fozo.core.files import atomic_write
from fozo.engines.base import Engine, Spec
from fozo.engines.graph_file import METADATA, write_spec
from fozo.errors import FozoError

if TYPE_CHECKING:
    import onnx

ONE_FILE_BYTES = (2 << 30) - (1 << 20)
"""Protobuf cannot hold more in one file; beyond it the weights go to ``model.onnx.data`` beside the model."""

INT8 = ("dynamic", "static")


def export(
    engine: Engine,
    path: str | os.PathLike[str],
    *,
    int8: str | None = None,
    calibration: str | os.PathLike[str] | None = None,
    labels: Sequence[str] | None = None,
) -> Spec:
    """Write the model of a torch engine as ONNX and return the spec of what was written.

    Args:
        engine: what ``load_engine`` made of a torch model or a weights file.
        path: the ``.onnx`` file to write; an old one is replaced once the new one is complete.
        int8: ``None`` for float32; ``"dynamic"`` for INT8 weights and activations quantized as they come;
            ``"static"`` for activation ranges fixed beforehand on clean images.
        calibration: a folder of clean images (``class/image`` or any other layout of ``open_images``), for ``static``.
        labels: names of the classes, in the order of the logits.
    """
    target = Path(path)
    _check(target, int8, calibration)
    model, spec = _graph(engine, labels)
    if int8 is None:
        write_model(model, spec, target)
        return spec
    from fozo.engines.torch_engine import TorchEngine
    from fozo.quant import onnx_int8
    from fozo.quant.fragile import fragile_layers

    assert isinstance(engine, TorchEngine)  # _graph has seen to that
    fragile = fragile_layers(engine.vit, spec)
    # The quantizer reads and writes files; they live beside the target, where there is room for it.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        plain = Path(folder) / "float32.onnx"
        # The graph is written as the quantizer likes it; saying so spares its advice to preprocess it.
        write_model(model, spec, plain, {"onnx.quant.pre_process": "onnxruntime.quant"})
        if int8 == "dynamic":
            spec = replace(spec, fingerprint=f"{spec.fingerprint}-int8d")
            model = onnx_int8.dynamic(plain, fragile)
        else:
            assert calibration is not None
            spec = replace(spec, fingerprint=f"{spec.fingerprint}-int8s")
            model = onnx_int8.static(plain, calibration, fragile)
    write_model(model, spec, target)
    return spec


def _check(target: Path, int8: str | None, calibration: str | os.PathLike[str] | None) -> None:
    """Refuse what cannot work before the work begins."""
    if target.suffix != ".onnx":
        raise FozoError(f"the exported file must end in .onnx, not {target.name!r}; engines are chosen by that ending")
    if not target.parent.is_dir():
        raise FozoError(f"there is no folder {target.parent} to write {target.name} to; make it first")
    if int8 is not None and int8 not in INT8:
        raise FozoError(f"int8 must be 'dynamic' or 'static', not {int8!r}")
    if int8 == "static" and calibration is None:
        raise FozoError("static INT8 needs clean images to learn activation ranges from; give --calibration DIR")
    if int8 != "static" and calibration is not None:
        raise FozoError("calibration images are used by static INT8 only; leave them out, or give --int8 static")
    try:
        importlib.import_module("onnx")
    except ImportError as error:
        raise FozoError("exporting needs the onnx package; install it with pip install 'fozo[export]'") from error


def _graph(engine: Engine, labels: Sequence[str] | None) -> tuple[onnx.ModelProto, Spec]:
    """Build the graph of a torch engine's model."""
    from fozo.engines.onnx_vit import ViTGraph
    from fozo.engines.torch_engine import TorchEngine

    if not isinstance(engine, TorchEngine):
        raise FozoError(f"only a torch model can be exported, not {type(engine).__name__}; give its weights file")
    if not engine.differentiable:
        raise FozoError(
            f"{engine.spec.name} is quantised in simulation, which ONNX cannot hold; export its weights with --int8"
        )
    spec = engine.spec
    if labels is not None:
        if len(labels) != spec.classes:
            raise FozoError(f"{len(labels)} labels were given for the {spec.classes} classes of {spec.name}")
        spec = replace(spec, labels=tuple(labels))
    weights = {name: tensor.detach().cpu().float().numpy() for name, tensor in engine.vit.state_dict().items()}
    return ViTGraph(engine.vit.architecture, weights).build(), spec


def write_model(
    model: onnx.ModelProto, spec: Spec, target: Path, properties: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Write a graph with its spec, so that a reader sees the old file or the new one, never half of one."""
    import onnx

    onnx.helper.set_model_props(model, {METADATA: write_spec(spec), **properties})
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) <= ONE_FILE_BYTES:
        with atomic_write(target) as stream:
            stream.write(model.SerializeToString())
        return
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        part, data = Path(folder) / target.name, f"{target.name}.data"
        onnx.save_model(model, os.fspath(part), save_as_external_data=True, location=data, size_threshold=1024)
        shutil.move(part.with_name(data), target.with_name(data))
        part.replace(target)
