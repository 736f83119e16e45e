"""Whatever is given to a command, it ends with code 0 or 2 and at most a few sentences: no fault, no traceback."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image

from fozo.cli import app
from fozo.data import sample
from tests.cli.conftest import Call

CALLS = 300
"""Of the 2,300 that there are; always the same."""
VALUES = (
    "", " ", "-1", "0", "2.5", "nan", "1e999", "9" * 30, "--", "=", "a=b", "passes=[]", "x" * 5000, "\udcff\udcfe",
    "[red]", "new\nline", "folder", "garbage", "garbage.onnx", "garbage.toml", "missing/missing",
)  # fmt: skip
"""Names are relative, to stay in the test's own folder: a command that may write to / or to a device really does."""
HUGE = "9" * 30
LEFT_OUT = [("workers", HUGE)]
"""What takes for ever."""
GOOD: dict[str, tuple[str, ...]] = {
    "demo": ("--images", "0"),
    "bench": ("mine.toml", "--model", "model.onnx", "--data", f"imagenet={sample.IMAGES}", "--threads", "1"),
    "report": ("runs",),
    "calibrate": ("model.onnx", "photos"),
    "quantise": ("model.onnx", "photos"),
    "adapt": ("model.onnx", "photos", "--statistics", "statistics.safetensors"),
    "corrupt": ("photos", "out", "--kinds", "contrast", "--size", "28", "--workers", "1"),
    "export": ("model.onnx", "-o", "out.onnx"),
    "data check": ("photos",),
}
"""What works, or (demo, quantise, export) is refused late."""


def material(folder: Path) -> None:
    """Small things that commands can work on, and things that they cannot."""
    with np.load(sample.IMAGES) as archive:
        for number, pixels in enumerate(archive["images"][:6]):
            path = folder / "photos" / str(number % 2) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).convert("RGB").save(path)
    shutil.copy(sample.MODELS["float32"], folder / "model.onnx")
    shutil.copy(sample.MODELS["float32"].with_suffix(".statistics.safetensors"), folder / "statistics.safetensors")
    (folder / "folder").mkdir()
    for name in ("garbage", "garbage.onnx", "garbage.toml"):
        (folder / name).write_bytes(b"\x89PNG\0\xff\xfe\n=" * 50)
    (folder / "mine.toml").write_text(
        'calibration = 2\n[stream]\nkinds = ["contrast"]\nimages = 2\nbatch_size = 2\n[[row]]\nlabel = "a"\n'
        'method = "align"\n'
    )


def zoo() -> Iterator[tuple[str, ...]]:
    """Every parameter of every command with every value, the others being good."""
    group: Any = typer.main.get_command(app)
    for name, good in GOOD.items():
        command = group
        for part in name.split():
            command = command.commands[part]
        places = [each.name for each in command.params if each.param_type_name == "argument"]
        for parameter in command.params:
            flag = getattr(parameter, "is_flag", False)
            for value in ("",) if flag else VALUES:
                if parameter.name in places:
                    place = places.index(parameter.name)
                    yield (*name.split(), *good[:place], value, *good[place + 1 :])
                elif (parameter.name, value) not in LEFT_OUT:
                    option = max(parameter.opts, key=len)
                    yield (*name.split(), *good, option, *([] if flag else [value]))


def test_every_command_with_whatever_may_be_given(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    material(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert call("bench", *GOOD["bench"])[0] == 0  # so that there is something to report
    every = list(zoo())
    assert len(every) > 2000 and {arguments[0] for arguments in every} == {name.split()[0] for name in GOOD}
    codes = {0: 0, 2: 0}
    for arguments in random.Random(0).sample(every, CALLS):
        code, _, errors = call(*arguments)
        assert code in codes and "Traceback" not in errors and "Warning" not in errors, (arguments, code, errors)
        assert (code == 0 or 1 <= len(errors.splitlines()) <= 5) and len(errors) < 20_000, (arguments, errors)
        codes[code] += 1
    assert codes[0] > 10 and codes[2] > 100, codes
