"""Exported models that all tests of engines share."""

from collections.abc import Callable
from pathlib import Path

import pytest

import fozo
from fozo.engines.onnx.runtimes import GraphEngine
from tests.helpers import VARIANTS, random_vit

Engines = Callable[[str, str], GraphEngine]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Files of the variants of the small random ViT, each written once."""
    folder = tmp_path_factory.mktemp("exported")

    def path(variant: str, int8: str | None = None) -> Path:
        file = folder / f"{variant}-{int8}.onnx"
        if not file.exists():
            fozo.export(fozo.load_engine(random_vit(VARIANTS[variant])), file, int8=int8)
        return file

    return path


@pytest.fixture(scope="session")
def engines(exported: Callable[..., Path]) -> Engines:
    """Engines by variant and runtime, each opened once."""
    opened: dict[tuple[str, str], GraphEngine] = {}

    def engine(variant: str, runtime: str) -> GraphEngine:
        if (variant, runtime) not in opened:
            made = fozo.load_engine(exported(variant), runtime=runtime, threads=2)
            assert isinstance(made, GraphEngine)
            opened[variant, runtime] = made
        return opened[variant, runtime]

    return engine


@pytest.fixture(params=["onnxruntime", "openvino"])
def runtime(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    return str(request.param)
