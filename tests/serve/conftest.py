"""A server on the loopback, of the bundled model."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware

import fozo
from fozo.data import sample
from fozo.monitor import Drift, Estimate, Reference
from fozo.serve.app import InferenceServer, create_app
from fozo.serve.board import CameraBoard, Reading
from fozo.serve.config import ModelConfig, ServeConfig
from fozo.serve.limits import AccessPolicy
from fozo.serve.run import listen
from fozo.types import NO_KNOBS, Batch, Engine, Knobs, Tap, Taps

MODEL = sample.MODELS["float32"]
STATS = MODEL.with_suffix(".statistics.safetensors")
NAME = "fashion"
NOW = 1_700_000_000.0


def frames(count: int, start: int = 0) -> npt.NDArray[np.uint8]:
    """Real pictures ``[count, 28, 28, 1]``."""
    with np.load(sample.IMAGES) as data:
        return np.asarray(data["images"][start : start + count, :, :, None])


def foggy(pixels: npt.NDArray[np.uint8], strength: float = 0.7) -> npt.NDArray[np.uint8]:
    """The same in a fog of one brightness."""
    return (pixels * (1 - strength) + 200 * strength).astype(np.uint8)


def config(state: Path | None = None, reference: Path | None = None, **settings: Any) -> ServeConfig:
    """A server's settings for tests: any free port, two threads of the engine."""
    load = fozo.LoadOptions(threads=2)
    model = ModelConfig(NAME, str(MODEL), str(STATS), None if reference is None else str(reference), load=load)
    return ServeConfig((model,), state=None if state is None else str(state), port=0, **settings)


def until(true: Any, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Counting:
    """Counts the passes of another engine, which wait for a signal, and raise where ``refused`` is true of a batch."""

    def __init__(
        self, engine: Engine, wait: threading.Event, refused: Callable[[Batch], bool] = lambda batch: False
    ) -> None:
        self.engine, self.wait, self.refused, self.begun, self.batches = engine, wait, refused, 0, list[int]()
        self.spec, self.device, self.abilities = engine.spec, engine.device, engine.abilities
        self.threads, self.check, self.head = engine.threads, engine.check, engine.head

    def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
        self.begun += 1
        assert self.wait.wait(30)
        self.batches.append(len(batch))
        if self.refused(batch):
            raise MemoryError("too many images")
        return self.engine.run(batch, knobs, taps)


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of the loopback that nobody else is given while servers on it come and go."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # others with this option may listen on it
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


@contextmanager
def served(app: Starlette, port: int = 0, close: Callable[[], None] = lambda: None) -> Iterator[int]:
    """Serve an application on a port of the loopback; at the end the server has to exit by itself, after ``close``."""
    listener = listen("127.0.0.1", port)
    lifespan: Any = "on" if hasattr(app.state, "server") else "off"
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan=lifespan, timeout_graceful_shutdown=20))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield listener.getsockname()[1]
    finally:
        close()
        server.should_exit = True
        thread.join(15)
        assert not thread.is_alive(), "the server did not stop"


@contextmanager
def running(settings: ServeConfig, board: Any = None, port: int = 0) -> Iterator[tuple[str, InferenceServer]]:
    """Run a server in a thread; gives its address and itself."""
    app = create_app(settings, board)
    with served(app, port) as port:
        yield f"127.0.0.1:{port}", app.state.server


@contextmanager
def serving(board: CameraBoard, *, port: int = 0, token: str | None = None) -> Iterator[int]:
    """Serve a board alone."""
    app = Starlette(routes=board.routes, middleware=[Middleware(AccessPolicy, token=token)])
    with served(app, port, board.close) as port:
        yield port


def reading(camera: str = "gate", time: float = NOW, **given: Any) -> Reading:
    """A camera that is fine, but for what is given; with ``drift=None`` it has no monitor."""
    usual: dict[str, Any] = {"drift": 0.12, "threshold": 1.0, "drifted": False, "warning": False}
    given = usual | {"accuracy": (0.9, 0.85, 0.94)} | given
    numbers: Any = [given.pop(name) for name in ("drifted", "warning", "drift", "threshold")]
    accuracy: Any = given.pop("accuracy")
    expected = None if accuracy is None else Estimate(*accuracy)
    sentence = given.pop("sentence", "no drift")
    status: Any = SimpleNamespace(
        drift=Drift(*numbers), expected=expected, relative_accuracy=None, sentence=sentence,
        faults=given.pop("faults", ()),
    )  # fmt: skip
    fields: dict[str, Any] = {"model": "model", "images": 16, "status": None if numbers[2] is None else status} | given
    return Reading(camera=camera, time=time, **fields)


@pytest.fixture(autouse=True)
def quick_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fozo.serve.board.PACE", 0.05)


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A monitor's reference of the bundled model, from few images."""
    path = tmp_path_factory.mktemp("serve") / "reference.safetensors"
    with np.load(sample.IMAGES) as data:
        labels = np.asarray(data["labels"][1000:1100])
    Reference.collect(fozo.adapter(MODEL, STATS, threads=2), frames(100, 1000), labels, sample=3).save(path)
    return path
