"""Whatever is given to a command, it ends with a documented exit code and at most a few sentences, never a traceback."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from fozo.cli import app
from tests.cli.conftest import Call

VALUES = (
    "", " ", "-1", "0", "1", "2.5", "nan", "1e999", "9" * 30, "--", "=", "a=b", "passes=[]", "x" * 5000, "\udcff\udcfe",
    "[red]", "new\nline", "/dev/null", "/proc/self/mem", "/", "FOLDER", "GARBAGE", "LATIN1", "MISSING/MISSING",
)  # fmt: skip


def commands() -> Iterator[tuple[str, Any]]:
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        for inner, one in command.commands.items() if hasattr(command, "commands") else (("", command),):
            yield f"{name} {inner}".strip(), one
