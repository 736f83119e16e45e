"""A model that is served: its engine, shared by all cameras, and how a camera is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fozo.core.statistics import SourceStatistics
from fozo.engines.load import load_engine
from fozo.errors import FozoError
from fozo.methods.base import Method
from fozo.methods.registry import create
from fozo.monitor import Event, Guarded, Monitor, MonitorReference
from fozo.public import adapter as make_adapter
from fozo.serve.cameras import Camera
from fozo.serve.config import ModelConfig, ServeConfig
from fozo.serve.merging import MergingEngine
from fozo.serve.protocol import ACCURACY, DRIFT
from fozo.serve.store import StateFolder
from fozo.types import Tap


class ServedModel:
    """One model of a server."""

    def __init__(self, config: ModelConfig, server: ServeConfig) -> None:
        self.name, self.config, self.server = config.name, config, server
        engine = load_engine(config.model, config.load)
        if 0 in engine.spec.image_size:
            raise FozoError(f"{config.model} does not name the size of its images; give image_size")
        # One pass finds the classes of a black box, and whether the model gives logits at all.
        engine.run(engine.check(np.zeros((1, *engine.spec.image_shape), np.float32)), taps=(Tap.LOGITS,))
        self.engine = MergingEngine(engine, max_delay=server.max_delay, max_batch=server.max_batch)
        self.spec = engine.spec
        source = None if config.stats is None else SourceStatistics.load(config.stats)
        options: dict[str, Any] = dict(config.options)
        self._prototype: Method[Any]
        if config.method is not None:
            self._prototype = create(config.method, self.engine, source, **options)
        elif source is None:
            raise FozoError(f"the model {self.name} has no stats; give what fozo calibrate wrote, or another method")
        else:
            self._prototype = make_adapter(self.engine, source, **options)
        self.method = self._prototype.info.name
        self.reference = None if config.reference is None else MonitorReference.load(config.reference)
        accuracy = self.reference is not None and self.reference.expects_accuracy
        self.monitored = ((ACCURACY,) if accuracy else ()) + (() if self.reference is None else (DRIFT,))
        self._create(lambda event: None)  # refuses a reference of another model or method
        self.folder = None if server.state is None else StateFolder(Path(server.state), self.name)

    def open(self, name: str) -> Camera:
        """Bring a camera to memory: from its folder, or new."""
        if self.folder is None:
            return Camera(name, self._create, thumbnails=self.server.thumbnails)
        if self.folder.count >= self.server.max_known and not self.folder.has(name):
            raise FozoError(
                f"the server knows {self.folder.count} cameras of {self.name} already; remove folders of old ones from "
                f"{self.folder.path}, or raise max_known"
            )
        folder = self.folder.open(name)
        try:
            return Camera(name, self._create, folder, thumbnails=self.server.thumbnails)
        except BaseException:
            folder.close()
            raise

    def stateless(self) -> Camera:
        """Make a camera for one request, of which nothing is kept."""
        return Camera("", self._create, stateless=True)

    def _create(self, on_event: Callable[[Event], None]) -> tuple[Method[Any], Monitor | None]:
        adapter = self._prototype.sibling()
        if self.reference is None:
            return adapter, None
        monitor = Monitor(self.reference, shadow=self.config.shadow, on_event=on_event)
        return (Guarded(adapter, monitor) if self.config.guard else adapter), monitor.watch(adapter)
