"""``fozo export``: a model as one ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fozo.cli.options import Model, load_model
from fozo.engines.load import LoadOptions


def export(
    model: Model,
    out: Annotated[Path, typer.Option("--out", "-o", help="The .onnx file to write.", show_default=False)],
    load: LoadOptions,
    int8: Annotated[str | None, typer.Option(help="dynamic, or static (needs --calibration).")] = None,
    calibration: Annotated[Path | None, typer.Option(help="Folder of clean images for static INT8.")] = None,
) -> None:
    """Write a model as ONNX, to be adapted without PyTorch and never exported again."""
    from fozo.public import export as write

    spec = write(load_model(model, load), out, int8=int8, calibration=calibration)
    print(f"{out}: {spec.name}, {spec.classes} classes, {out.stat().st_size / 1e6:.1f} MB, {spec.fingerprint}")
