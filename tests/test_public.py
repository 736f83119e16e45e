"""The public face: names, import cost, registry, command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fozo
from fozo.core.files import atomic_write
from fozo.errors import FozoError
from tests.helpers import random_images

PUBLIC = {
    "FOZO",
    "Engine",
    "FozoError",
    "Knobs",
    "Method",
    "MethodInfo",
    "Move",
    "NoAdapt",
    "SourceStatistics",
    "Spec",
    "Taps",
    "create",
    "load_engine",
    "methods",
    "replay",
}


def test_no_public_name_has_disappeared() -> None:
    assert set(fozo.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(fozo, name) is not None


def python(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return run.stdout.strip()


def test_importing_fozo_does_not_import_torch_or_other_heavy_packages() -> None:
    names = ("torch", "timm", "transformers", "PIL", "onnx", "onnxruntime", "openvino")
    assert python(f"import fozo, sys; print([m for m in {names} if m in sys.modules])") == "[]"


def test_the_methods_package_can_be_called_and_imported() -> None:
    assert python("import fozo.methods.noadapt as n; print(n.NoAdapt.info.name)") == "noadapt"
    assert {"fozo", "noadapt"} <= set(fozo.methods())
    for name, info in fozo.methods().items():
        assert info.name == name
        assert info.summary and info.passes and info.adapts and info.paper


def test_create_makes_what_the_class_makes(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    images = random_images(4)
    made = fozo.create("fozo", engine, source, passes=4)(images)
    np.testing.assert_array_equal(made, fozo.FOZO(engine, source, passes=4)(images))
    with pytest.raises(FozoError, match="did you mean 'noadapt'"):
        fozo.create("noadap", engine)
    with pytest.raises(FozoError, match=r"does not take these options.*speed"):
        fozo.create("noadapt", engine, None, speed=11)


def test_command_line() -> None:
    listing = subprocess.run(
        [sys.executable, "-m", "fozo", "methods"], capture_output=True, text=True, check=True, timeout=120
    )
    assert "noadapt" in listing.stdout and "CVPR 2026" in listing.stdout
    assert "\x1b" not in listing.stdout  # no colours into a pipe
    wrong = subprocess.run([sys.executable, "-m", "fozo", "nonsense"], capture_output=True, text=True, timeout=120)
    assert wrong.returncode == 2


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), atomic_write(path) as stream:
        stream.write(b"half of the new")
        raise RuntimeError
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    with atomic_write(path) as stream:
        stream.write(b"new")
    assert path.read_bytes() == b"new" and path.stat().st_mode & 0o777 == 0o644
