"""The queue of each camera, and the threads that work on them.

Requests of one camera are answered in the order in which they came, one at a time; those of different cameras side by
side, so that their images can share passes (:mod:`fozo.serve.merging`). Queues are bounded: who sends faster than the
model can work is told so at once, and not kept waiting. A camera that nobody sends for is saved and leaves the memory;
it is found again when it returns.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from fozo.errors import FozoError
from fozo.serve.cameras import Camera
from fozo.serve.config import ServeConfig
from fozo.serve.model import ServedModel
from fozo.serve.protocol import Limits, Request, write_answer
from fozo.serve.store import Elsewhere

LOG = logging.getLogger("fozo.serve")
Body = tuple[bytes, int | None]
"""An answer as it is sent, and the length of its JSON if tensors follow it."""


class TooBusy(FozoError):
    """A queue is full: come again in a while."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass
class _Slot:
    """A camera's place: its queue, and the camera itself while it is in memory."""

    model: ServedModel
    name: str
    key: tuple[str, str, int]
    jobs: deque[tuple[Request, Future[Body]]] = field(default_factory=deque)
    busy: bool = False
    """Whether a thread works on it, or soon will."""
    camera: Camera | None = None
    used: float = 0.0


class Pool:
    """Works on the requests of all cameras of all models.

    Args:
        config: its limits.
        after: is told of every camera and request after it was answered, by the thread that did, with the number of its
            images (0 where it was a repetition).
        gone: is told of every camera that left the memory.
        clock: gives the time in seconds.
    """

    def __init__(
        self,
        config: ServeConfig,
        *,
        after: Callable[[ServedModel, Camera, int], None] = lambda model, camera, images: None,
        gone: Callable[[ServedModel, str], None] = lambda model, name: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config, self._after, self._gone, self._clock = config, after, gone, clock
        self.limits = Limits(images=config.max_images, body=config.max_body)
        self._slots: dict[tuple[str, str, int], _Slot] = {}
        self._ready: deque[_Slot] = deque()
        lock = threading.Lock()
        self._changed, self._idle = threading.Condition(lock), threading.Condition(lock)
        self._queued, self._closing, self._stop = 0, False, threading.Event()
        self._numbers = itertools.count(1)
        self._threads = [
            threading.Thread(target=self._work, name=f"fozo-serve-{i}", daemon=True) for i in range(config.workers)
        ]
        self._threads.append(threading.Thread(target=self._watch, name="fozo-serve-idle", daemon=True))
        for thread in self._threads:
            thread.start()

    @property
    def queued(self) -> int:
        """Requests that wait or are worked on."""
        return self._queued

    @property
    def cameras(self) -> int:
        """Cameras in memory."""
        with self._changed:
            return sum(slot.camera is not None for slot in self._slots.values())

    def submit(self, model: ServedModel, request: Request) -> Future[Body]:
        """Queue a request; raises :class:`TooBusy` where there is no room for it."""
        future: Future[Body] = Future()
        stateless = not request.camera and self.config.anonymous == "stateless"
        with self._changed:
            if self._closing:
                raise TooBusy("the server is being stopped; try again in a while", 503)
            if self._queued >= self.config.max_queue:
                raise TooBusy(f"{self._queued} requests are waiting already; try again in a while", 503)
            key = (model.name, request.camera, next(self._numbers) if stateless else 0)
            slot = self._slots.get(key) or _Slot(model, request.camera, key)
            if len(slot.jobs) >= self.config.max_camera_queue:
                raise TooBusy(
                    f"{len(slot.jobs)} requests of the camera {request.camera!r} are waiting already; send more slowly",
                    429,
                )
            self._slots[key] = slot
            slot.jobs.append((request, future))
            self._queued += 1
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
                    self._queued -= 1
                self._release(slot)

    def _release(self, slot: _Slot) -> None:
        """Put a camera back: to the end of the line if it has more to do."""
        with self._changed:
            slot.used = self._clock()
            if slot.jobs:
                self._ready.append(slot)
                self._changed.notify()
                return
            slot.busy = False
            if slot.camera is None:
                self._slots.pop(slot.key, None)
            self._idle.notify_all()

    def _handle(self, slot: _Slot, request: Request, future: Future[Body]) -> None:
        """Answer a request; then see to what has to be done for its camera."""
        try:
            if slot.camera is None:
                slot.camera = self._open(slot)
                self._make_room()
            camera = slot.camera
            answer, new = camera.answer(request, self.limits, slot.model.engine.caller)
            body = write_answer(answer, request, slot.model.spec, slot.model.name)
        except BaseException as error:
            future.set_exception(error)
            return
        finally:
            if slot.key[2]:
                slot.camera = None
        # Before the answer is given, so that metrics and page are not behind what a client knows.
        self._tell(slot, camera, len(answer.logits) if new else 0)
        future.set_result(body)
        if slot.key[2]:
            return
        if request.end:
            self._evict(slot)
        elif camera.unsaved >= self.config.save_every:
            self._save(camera)

    def _open(self, slot: _Slot) -> Camera:
        """Bring a camera to memory; if that fails, it is not for what the client sent."""
        try:
            return slot.model.passing() if slot.key[2] else slot.model.open(slot.name)
        except Elsewhere:
            raise
        except FozoError as error:  # the disk is full, or too many are known
            raise TooBusy(str(error), 503) from error

    def _tell(self, slot: _Slot, camera: Camera, images: int) -> None:
        for event in camera.events:
            LOG.info(
                "%s, camera %r: %s at image %d: %s", slot.model.name, slot.name, event.name, event.image, event.text
            )
        try:
            self._after(slot.model, camera, images)
        except Exception:
            LOG.exception("the metrics of the camera %r failed; its predictions do not depend on them", slot.name)
        camera.events.clear()
        camera.adapter.release()

    def _save(self, camera: Camera) -> bool:
        try:
            camera.save()
            return True
        except Exception:  # a full disk, say: predictions go on, and the next save may succeed
            LOG.exception("the camera %r could not be saved", camera.name)
            camera.unsaved = 1  # not to try again with every request
            return False

    def _evict(self, slot: _Slot) -> None:
        """Save a camera and drop it from memory, if that succeeds; its thread has it to itself."""
        camera = slot.camera
        if camera is None or (not self._save(camera) and not self._closing):
            return
        slot.camera = None
        camera.let_go()
        self._gone(slot.model, slot.name)

    def _make_room(self) -> None:
        """If there are too many cameras in memory, evict the one that was idle for longest."""
        with self._changed:
            held = [slot for slot in self._slots.values() if slot.camera is not None]
            idle = [slot for slot in held if not slot.busy]
            if len(held) <= self.config.max_cameras or not idle:
                return
            oldest = min(idle, key=lambda slot: slot.used)
            oldest.busy = True
        self._evict(oldest)
        self._release(oldest)

    def let_go(self, model: str, camera: str, patience: float = 5.0) -> None:
        """Save a camera and drop it from memory once nobody works on it, so that another server can have it."""
        with self._changed:
            slot = self._slots.get((model, camera, 0))
            if slot is None or not self._idle.wait_for(lambda: not slot.busy, patience):
                return
            slot.busy = True
        self._evict(slot)
        self._release(slot)

    def _watch(self) -> None:
        """Evict cameras that nobody has sent for in a while."""
        while True:
            if self._stop.wait(min(self.config.idle / 4, 5.0)):
                return
            with self._changed:
                before = self._clock() - self.config.idle
                idle = [s for s in self._slots.values() if s.camera is not None and not s.busy and s.used < before]
                for slot in idle:
                    slot.busy = True
            for slot in idle:
                self._evict(slot)
                self._release(slot)

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
