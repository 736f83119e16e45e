"""``fozo export``: a model as one ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fozo.cli.options import Model
from fozo.errors import FozoError
from fozo.loading import LoadOptions, load_engine


def export(
    model: Model,
    out: Annotated[Path, typer.Option("--out", "-o", help="The .onnx file to write.", show_default=False)],
    load: LoadOptions,
    labels: Annotated[Path | None, typer.Option(help="Text file with a class name in each line.")] = None,
    int8: Annotated[str | None, typer.Option(help="dynamic, or static (needs --calibration).")] = None,
    calibration: Annotated[Path | None, typer.Option(help="Folder of clean images for static INT8.")] = None,
) -> None:
    """Write a model as ONNX, to be adapted without PyTorch and never exported again."""
    from fozo.exporting import export as write

    names = None if labels is None else _names(labels)
    spec = write(load_engine(model, load), out, int8=int8, calibration=calibration, labels=names)
    print(f"{out}: {spec.name}, {spec.classes} classes, {out.stat().st_size / 1e6:.1f} MB, {spec.fingerprint}")


def _names(labels: Path) -> list[str]:
    if not labels.is_file():
        raise FozoError(f"there is no file {labels}; give a text file with a class name in each line")
    try:
        return labels.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise FozoError(f"{labels} is not in UTF-8 ({error}); save it in that encoding") from error
    except OSError as error:
        raise FozoError(f"cannot read {labels}: {error.strerror}; check its permissions") from error
