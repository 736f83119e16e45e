"""A server on the loopback, of the bundled model."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import uvicorn

import fozo
from fozo.data import sample
from fozo.monitor import MonitorReference
from fozo.serve.app import InferenceServer, create_app
from fozo.serve.config import ModelConfig, ServeConfig
from fozo.serve.run import _listen

MODEL = sample.MODELS["float32"]
STATS = MODEL.with_suffix(".statistics.npz")
NAME = "fashion"


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


@contextmanager
def running(settings: ServeConfig, board: Any = None) -> Iterator[tuple[str, InferenceServer]]:
    """Run a server in a thread; gives its address and itself."""
    app = create_app(settings, board)
    listener = _listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on", timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started and thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.started, "the server did not start"
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", app.state.server
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A monitor's reference of the bundled model, from few images."""
    path = tmp_path_factory.mktemp("serve") / "monitor.npz"
    with np.load(sample.IMAGES) as data:
        labels = np.asarray(data["labels"][1000:1100])
    MonitorReference.collect(fozo.adapter(MODEL, STATS, threads=2), frames(100, 1000), labels, sample=3).save(path)
    return path
