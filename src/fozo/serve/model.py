"""A model that is served: its engine, shared by all cameras, and how a camera is made."""

from __future__ import annotations

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
from fozo.serve.store import Folder, Store
from fozo.types import Tap


class ServedModel:
    """One model of a server."""

    def __init__(self, config: ModelConfig, server: ServeConfig) -> None:
        self.name, self.config, self.server = config.name, config, server
        engine = load_engine(config.model, config.load)
        if 0 in engine.spec.image_size:
            raise FozoError(f"{config.model} does not tell the size of its images; give image_size")
        # One pass, which tells a black box's classes, and that the model gives logits at all.
        engine.run(engine.check(np.zeros((1, *engine.spec.image_shape), np.float32)), taps=(Tap.LOGITS,))
        self.engine = MergingEngine(engine, max_delay=server.max_delay, max_batch=server.max_batch)
        self.spec = engine.spec
        source = None if config.stats is None else SourceStatistics.load(config.stats)
        self._prototype: Method[Any]
        if config.method is not None:
            options: dict[str, Any] = dict(config.options)
            self._prototype = create(config.method, self.engine, source, **options)
        elif source is None:
            raise FozoError(f"the model {self.name} has no stats; give what fozo calibrate wrote, or another method")
        else:
            self._prototype = make_adapter(self.engine, source, **config.options)
        self.reference = None if config.reference is None else MonitorReference.load(config.reference)
        if self.reference is not None:
            self.reference.check(self._prototype)
            self._monitor([])  # which refuses its options
        self.store = None if server.state is None else Store(Path(server.state), self.name)

    @property
    def method(self) -> str:
        """What adapts."""
        return self._prototype.info.name

    @property
    def watched(self) -> tuple[str, ...]:
        """What can be told beside predictions."""
        if self.reference is None:
            return ()
        return (ACCURACY, DRIFT) if self.reference.expects_accuracy else (DRIFT,)

    def open(self, name: str) -> Camera:
        """Bring a camera to memory: from its folder, or new."""
        if self.store is not None and self.store.count >= self.server.max_known and not self.store.known(name):
            raise FozoError(
                f"the server knows {self.store.count} cameras of {self.name} already; remove folders of old ones from "
                f"{self.store.path}, or raise max_known"
            )
        return self._make(name, None if self.store is None else self.store.open(name))

    def passing(self) -> Camera:
        """Make a camera for one request, of which nothing is kept."""
        return self._make("", None, passing=True)

    def _make(self, name: str, folder: Folder | None, passing: bool = False) -> Camera:
        adapter = self._prototype.sibling()
        events: list[Event] = []
        monitor = None if self.reference is None else self._monitor(events).watch(adapter)
        guarded = Guarded(adapter, monitor) if monitor is not None and self.config.guard else None
        try:
            return Camera(name, adapter, monitor, folder, events, self.server.thumbnails, passing, guarded)
        except BaseException:
            if folder is not None:
                folder.close()
            raise

    def _monitor(self, events: list[Event]) -> Monitor:
        assert self.reference is not None
        return Monitor(self.reference, shadow=self.config.shadow, on_event=events.append)
