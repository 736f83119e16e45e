"""The queue of each camera, and the threads that work on them.

Requests of one camera are answered one at a time, in the order in which they came; those of different cameras side by
side, so that their images can share passes (:mod:`fozo.serve.merging`). Queues are bounded: a client that sends faster
than the model works is refused at once. An idle camera is saved and leaves the memory; it is restored when it returns.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from fozo.errors import FozoError
from fozo.serve.cameras import Camera, ServedModel
from fozo.serve.config import ServeConfig
from fozo.serve.limits import PixelBudget
from fozo.serve.protocol import InferRequest, Limits, write_response
from fozo.serve.store import CameraInUse

LOG = logging.getLogger("fozo.serve")
Body = tuple[bytes, int | None]  # A response as it is sent, and the length of its JSON if tensors follow it


class TooBusy(FozoError):
    """A queue is full: the client should try again in a while."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass
class _Slot:
    """A camera's queue, and the camera itself while it is in memory."""

    model: ServedModel
    name: str
    stateless: bool = False  # whether it is of one request, which no other shares
    jobs: deque[tuple[InferRequest, Future[Body]]] = field(default_factory=deque)
    busy: bool = False  # whether a thread works on it, or soon will
    camera: Camera | None = None
    used: float = 0.0


class Pool:
    """Works on the requests of all cameras of all models.

    Args:
        config: its limits.
        on_response: called after every request, with the number of its images (0 for a repeated request).
        on_evict: called when a camera left the memory.
    """

    def __init__(
        self,
        config: ServeConfig,
        on_response: Callable[[ServedModel, Camera, int], None],
        on_evict: Callable[[ServedModel, str], None],
    ) -> None:
        self.config, self._on_response, self._on_evict = config, on_response, on_evict
        budget = PixelBudget(config.max_pixels, config.workers)
        self.limits = Limits(config.max_images, json=config.max_json, budget=budget)
        self._slots: dict[tuple[str, str], _Slot] = {}
        self._ready: deque[_Slot] = deque()
        lock = threading.Lock()
        self._changed, self._idle = threading.Condition(lock), threading.Condition(lock)
        self.queued = 0  # requests that wait or are worked on
        self._closing, self._stop = False, threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name=f"fozo-serve-{i}", daemon=True) for i in range(config.workers)
        ]
        self._threads.append(threading.Thread(target=self._evict_idle, name="fozo-serve-idle", daemon=True))
        for thread in self._threads:
            thread.start()

    @property
    def cameras(self) -> int:  # in memory
        with self._changed:
            return sum(slot.camera is not None for slot in self._slots.values())

    def submit(self, model: ServedModel, request: InferRequest) -> Future[Body]:
        """Queue a request; raises :class:`TooBusy` if a queue is full."""
        future: Future[Body] = Future()
        stateless = not request.camera and self.config.anonymous == "stateless"
        with self._changed:
            if self._closing:
                raise TooBusy("the server is being stopped; try again in a while", 503)
            if self.queued >= self.config.max_queue:
                raise TooBusy(f"{self.queued} requests are waiting already; try again in a while", 503)
            key = (model.name, request.camera)
            slot = _Slot(model, "", stateless) if stateless else self._slots.get(key) or _Slot(model, request.camera)
            if len(slot.jobs) >= self.config.max_camera_queue:
                raise TooBusy(
                    f"{len(slot.jobs)} requests of the camera {request.camera!r} are waiting already; send more slowly",
                    429,
                )
            if not stateless:
                self._slots[key] = slot
            slot.jobs.append((request, future))
            self.queued += 1
            if not slot.busy:
                slot.busy = True
                self._ready.append(slot)
                self._changed.notify()
        return future

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._ready:
                    if self._closing:
                        return
                    self._changed.wait()
                slot = self._ready.popleft()
                request, future = slot.jobs.popleft()
            try:
                if future.set_running_or_notify_cancel():
                    self._handle(slot, request, future)
            finally:
                with self._changed:
                    self.queued -= 1
                self._release(slot)

    def _release(self, slot: _Slot) -> None:
        """Put a camera back: to the end of the line if it has more requests."""
        with self._changed:
            slot.used = time.monotonic()
            if slot.jobs:
                self._ready.append(slot)
                self._changed.notify()
                return
            slot.busy = False
            if slot.camera is None:
                self._slots.pop((slot.model.name, slot.name), None)
            self._idle.notify_all()

    def _handle(self, slot: _Slot, request: InferRequest, future: Future[Body]) -> None:
        """Answer a request; then save or evict its camera where that is due."""
        try:
            if slot.camera is None:
                slot.camera = self._open(slot)
                self._limit_cameras()
            camera = slot.camera
            response, new = camera.answer(request, self.limits, slot.model.engine.caller)
            body = write_response(response, request, slot.model.spec, slot.model.name)
        except BaseException as error:
            future.set_exception(error)
            return
        finally:
            if slot.stateless:
                slot.camera = None
        # Before the response is sent, so that metrics and page are not behind what a client knows.
        try:
            self._on_response(slot.model, camera, len(response.logits) if new else 0)
        except Exception:
            LOG.exception("the metrics of the camera %r failed; its predictions do not depend on them", slot.name)
        camera.events.clear()
        camera.adapter.release()
        future.set_result(body)
        if slot.stateless:
            return
        if request.end:
            self._evict(slot)
        elif camera.unsaved >= self.config.save_every:
            self._save(camera)

    def _open(self, slot: _Slot) -> Camera:
        """Bring a camera to memory; if that fails, it is not the client's fault."""
        try:
            return slot.model.stateless() if slot.stateless else slot.model.open(slot.name)
        except CameraInUse:
            raise
        except FozoError as error:  # the disk is full, or there are too many cameras
            raise TooBusy(str(error), 503) from error

    def _save(self, camera: Camera) -> bool:
        try:
            camera.save()
            return True
        except Exception:  # e.g. a full disk: predictions continue, and the next save may succeed
            LOG.exception("the camera %r could not be saved", camera.name)
            camera.unsaved = 1  # not to try again with every request
            return False

    def _evict(self, slot: _Slot) -> None:
        """Save a camera and drop it from memory, if that succeeds; the slot has to be busy."""
        camera = slot.camera
        if camera is None or (not self._save(camera) and not self._closing):
            return
        slot.camera = None
        camera.close()
        self._on_evict(slot.model, slot.name)

    def _evict_all(self, slots: Iterable[_Slot]) -> None:
        for slot in slots:
            self._evict(slot)
            self._release(slot)

    def _limit_cameras(self) -> None:
        """If there are too many cameras in memory, evict the one that was idle for longest."""
        with self._changed:
            loaded = [slot for slot in self._slots.values() if slot.camera is not None]
            idle = [slot for slot in loaded if not slot.busy]
            if len(loaded) <= self.config.max_cameras or not idle:
                return
            oldest = min(idle, key=lambda slot: slot.used)
            oldest.busy = True
        self._evict_all([oldest])

    def release(self, model: str, camera: str, patience: float = 5.0) -> None:
        """Save a camera and drop it from memory once it is idle, so that another server can open it."""
        with self._changed:
            slot = self._slots.get((model, camera))
            if slot is None or not self._idle.wait_for(lambda: not slot.busy, patience):
                return
            slot.busy = True
        self._evict_all([slot])

    def _evict_idle(self) -> None:
        while not self._stop.wait(min(self.config.idle / 4, 5.0)):
            with self._changed:
                before = time.monotonic() - self.config.idle
                idle = [s for s in self._slots.values() if s.camera is not None and not s.busy and s.used < before]
                for slot in idle:
                    slot.busy = True
            self._evict_all(idle)

    def close(self) -> None:
        """Finish what is queued, stop the threads, and save all cameras."""
        with self._changed:
            self._closing = True
            self._stop.set()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        for slot in list(self._slots.values()):
            self._evict(slot)
        self._slots.clear()
