"""Calls, functions and files of fozo on the way of one batch.

    python -m benchmarks.calls [--list]

Functions are code objects below src/fozo, without comprehensions, generator expressions, bodies of modules and classes,
and methods that ``dataclass`` writes. Each resumption of a coroutine is a call. ``--list`` prints each function.
"""

import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType

from starlette.testclient import TestClient

import fozo
from benchmarks.serve import bundled
from fozo.cli import app
from fozo.data import sample
from fozo.methods.base import Method
from fozo.serve.app import create_app
from fozo.serve.config import ModelConfig, ServeConfig

SOURCE, SUBJECT = Path(fozo.__file__).parent, bundled()
FRAMES, MODEL, STATS = SUBJECT.frames, str(SUBJECT.model), str(SUBJECT.stats)
ROW = '[stream]\nkinds = ["fog"]\nimages = 8\n[[row]]\nlabel = "Align"\nmethod = "align"\n'
seen: list[CodeType] = []


def note(frame: FrameType, event: str, argument: object) -> None:
    if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
        seen.append(frame.f_code)


def count(path: str, call: Callable[[], object], last: CodeType | None = None) -> None:
    """Print what a call passes through, in all threads, before ``last``."""
    seen.clear()
    call()
    time.sleep(0.5)  # a camera is saved after the response
    codes = [code for code in seen[: seen.index(last) if last else None] if code.co_flags & CO_OPTIMIZED]
    calls = Counter(code for code in codes if code.co_name == "<lambda>" or code.co_name[0] != "<")
    files = {code.co_filename for code in calls}
    print(f"{path:<26} {calls.total():>5} calls {len(calls):>4} functions {len(files):>3} files")
    for code in sorted(calls, key=lambda code: code.co_filename) if "--list" in sys.argv else ():
        print(f"    {Path(code.co_filename).relative_to(SOURCE)}:{code.co_firstlineno} {code.co_name}: {calls[code]}")


def serve(path: str, state: Path, save_every: int) -> None:
    model = ModelConfig("model", MODEL, STATS, str(sample.MONITOR))
    with TestClient(create_app(ServeConfig((model,), str(state), save_every=save_every)), "http://localhost") as client:

        def post(number: int) -> None:
            image = {"name": "images", "datatype": "UINT8", "shape": [28, 28, 1], "data": FRAMES[number].tolist()}
            payload = {"id": str(number), "parameters": {"sequence_id": "camera", "drift": True}, "inputs": [image]}
            assert client.post("/v2/models/model/infer", json=payload).status_code == 200

        for number in range(50):
            post(number)
        count(path, lambda: post(50))


def main() -> None:
    threading.setprofile(note)
    sys.setprofile(note)
    adapter = fozo.adapter(MODEL, STATS)
    for batch in FRAMES[:192].reshape(3, 64, 28, 28, 1):
        adapter(batch)
    count("adapter, 64 of one domain", lambda: adapter(FRAMES[192:]))
    with tempfile.TemporaryDirectory() as name:
        serve("POST /infer", Path(name, "rarely"), 100)
        serve("POST /infer, then saved", Path(name, "each"), 1)
        Path(name, "one.toml").write_text(ROW)
        command = ["bench", f"{name}/one.toml", "--model", MODEL, "--imagenet", str(sample.IMAGES), "--out", name]
        command += ["--calibration", "32"]
        count("bench, until its batch", lambda: app(command, standalone_mode=False), Method.__call__.__code__)


if __name__ == "__main__":
    main()
