"""The public face: names, import cost, registry, layers, the walk of one batch."""

import inspect
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fozo
from fozo.core.normalisation import check_images
from fozo.engines.onnx import runtimes as graph
from fozo.engines.onnx.runtimes import OnnxEngine
from fozo.io.system import installed_version
from fozo.methods.method import Method
from tests.helpers import random_images, random_vit


def python(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return run.stdout.strip()


def test_every_public_name_is_there_and_documented() -> None:
    for name in fozo.__all__:
        assert inspect.getdoc(getattr(fozo, name)), name
    assert metadata.version("fozo") == fozo.__version__  # written in one place only
    with pytest.raises(AttributeError, match="no_such_name"):
        fozo.no_such_name  # noqa: B018 - the attribute is what is asked about


def test_a_source_tree_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    assert installed_version() == fozo.__version__
    monkeypatch.setattr(metadata, "version", absent)
    assert installed_version() == "not installed"


def test_importing_fozo_imports_nothing_heavy_and_changes_nothing_for_others() -> None:
    heavy = ("torch", "torchvision", "timm", "transformers", "numpy", "PIL", "onnx", "onnxruntime", "openvino", "typer")
    code = f"""
import sys, warnings
finders, hooks, filters = list(sys.meta_path), list(sys.path_hooks), list(warnings.filters)
import fozo
print([name for name in {heavy} if name in sys.modules])
print(sys.meta_path == finders, sys.path_hooks == hooks, warnings.filters == filters)
"""
    assert python(code) == "[]\nTrue True True"


WINDOWS = """
import asyncio, importlib, multiprocessing, os, pkgutil, signal, subprocess, sys, tempfile
import cv2, numpy, onnx, onnxruntime, openvino, PIL.Image, prometheus_client, rich.console, rich.progress
import scipy.ndimage, starlette.applications, torch, typer, uvicorn
for name in ("fcntl", "grp", "posix", "pwd", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None
for owner, names in (
    (os, "fork register_at_fork sched_getaffinity getuid geteuid O_NONBLOCK O_NOFOLLOW O_CLOEXEC setsid killpg"),
    (signal, "SIGHUP SIGKILL SIGPIPE SIGALRM pthread_sigmask"),
):
    for name in names.split():
        if hasattr(owner, name):
            delattr(owner, name)
import fozo
for module in pkgutil.walk_packages(fozo.__path__, "fozo."):
    if module.name != "fozo.__main__" and module.name.rpartition(".")[2] != "ray":
        importlib.import_module(module.name)
from fozo.__main__ import main
sys.argv = ["fozo", "--help"]
main()
"""


def test_every_module_is_imported_where_there_is_no_unix() -> None:
    """What Windows lacks is taken away once other packages, which see to it themselves, are imported."""
    shown = python(WINDOWS)
    assert "Usage: fozo" in shown and "adapt" in shown


def test_methods_are_classes_of_a_plain_package() -> None:
    assert python("import fozo.methods.noadapt as n, fozo; print(n.NoAdapt.info.name, callable(fozo.methods))") == (
        "noadapt False"
    )
    assert issubclass(fozo.FOZO, Method) and issubclass(fozo.Align, Method)
    assert fozo.FOZO.info.paper == "Wang and Wang, CVPR 2026"
    assert list(fozo.FOZO.PRESETS) == ["official", "paper"]


def test_create_makes_what_the_class_makes(engine: fozo.Engine, source: fozo.Statistics) -> None:
    images = random_images(4)
    made = fozo.create("fozo", engine, source, passes=4)(images)
    np.testing.assert_array_equal(made, fozo.FOZO(engine, source, passes=4)(images))


def test_the_adapter_is_align(engine: fozo.Engine, source: fozo.Statistics, tmp_path: Path) -> None:
    images = random_images(20)
    expected = fozo.Align(engine, source, slots=2)(images)
    source.save(tmp_path / "source.safetensors")
    for statistics in (source, tmp_path / "source.safetensors"):
        adapter = fozo.adapter(engine, statistics, slots=2)
        assert type(adapter) is fozo.Align
        np.testing.assert_array_equal(adapter(images), expected)
    np.testing.assert_array_equal(fozo.adapter(random_vit(), source, slots=2)(images), expected)


def test_a_batch_is_checked_once_and_converted_once(
    tmp_path: Path, source: fozo.Statistics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The walk of one batch of 64 through ``fozo.adapter(...)(images)`` on ONNX."""
    fozo.export(fozo.load_engine(random_vit()), tmp_path / "model.onnx")
    adapter = fozo.adapter(tmp_path / "model.onnx", source)
    engine = adapter.engine
    assert isinstance(engine, OnnxEngine)
    checks: list[object] = []

    def counting(*given: Any) -> None:
        checks.append(given)
        check_images(*given)

    monkeypatch.setattr(graph, "check_images", counting)
    execute = engine.execute
    taps = set[str]()

    def noting(outputs: Sequence[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        taps.update(outputs)
        assert all(value.dtype == np.float32 for value in feeds.values())
        return execute(outputs, feeds)

    monkeypatch.setattr(engine, "execute", noting)
    images = random_images(64) * np.float32(0.3)
    batch = engine.check(images)
    assert np.shares_memory(batch.images, images)  # what is float32 already is not copied on its way in
    checks.clear()
    logits = adapter(images)
    assert logits.dtype == np.float32 and len(checks) == 1
    assert taps == {"pooled", "cls", "patch_mean", "patch_moments"}  # only what is read
