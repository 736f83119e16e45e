"""The queue of each camera, and the threads that work on them.

Requests of one camera are answered one at a time, in the order in which they came; those of different cameras side by
side, so that their images can share passes (:mod:`fozo.serve.merging`). Clients take turns, and so do the cameras of a
client. The queue is bounded, and a client may fill as much of it as it leaves free: a flood costs its sender. An idle
camera is saved and leaves the memory; it is restored when it returns.
"""

import logging
import math
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from fozo.errors import FozoError
from fozo.serve.cameras import Camera, ServedModel
from fozo.serve.config import ServeConfig
from fozo.serve.decoding import Decoders
from fozo.serve.limits import Refused
from fozo.serve.protocol import InferRequest, Limits, write_response
from fozo.serve.store import CameraInUse, StateFolder, TooManyCameras

LOG = logging.getLogger("fozo.serve")
STOPPED = "the server is being stopped; try again in a while"
QUIET = 5.0  # seconds without a request after which a camera's scratch memory is freed
FORGET_INTERVAL = 3600.0  # seconds between two looks for cameras that are too old
PATIENCE = 8.0  # seconds that requests under way may take when the server is stopped
Body = tuple[bytes, int | None]  # A response as it is sent, and the length of its JSON if tensors follow it


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
        folders: where cameras are kept; old ones are removed from there.
        on_response: called after every request, with the number of its images (0 for a repeated request).
        on_evict: called when a camera left the memory, with whether its client has ended it.
    """

    def __init__(
        self, config: ServeConfig, folders: Sequence[StateFolder],
        on_response: Callable[[ServedModel, Camera, int], None],
        on_evict: Callable[[ServedModel, str, bool], None],
    ) -> None:  # fmt: skip
        self.config = config
        self._folders = folders
        self._on_response = on_response
        self._on_evict = on_evict
        decoders = Decoders(config.max_pixels, config.timeout)
        self.limits = Limits(config.max_images, json=config.max_json, decoders=decoders)
        self._slots: dict[tuple[str, str], _Slot] = {}
        self._ready: OrderedDict[str, deque[_Slot]] = OrderedDict()  # by clients, the next one first
        self._waiting = Counter[str]()  # requests that wait or are worked on, by clients
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._idle = threading.Condition(lock)
        self.queued = 0  # requests that wait or are worked on
        self._closing = False
        self._ended = False
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name=f"fozo-serve-{i}", daemon=True) for i in range(config.workers)
        ]
        self._threads.append(threading.Thread(target=self._evict_idle, name="fozo-serve-idle", daemon=True))
        for thread in self._threads:
            thread.start()

    @property
    def cameras(self) -> int:
        """How many are in memory."""
        with self._changed:
            return sum(slot.camera is not None for slot in self._slots.values())

    def submit(self, model: ServedModel, request: InferRequest) -> Future[Body]:
        """Queue a request; raises :class:`Refused` if a queue is full."""
        future: Future[Body] = Future()
        stateless = not request.camera and self.config.anonymous == "stateless"
        with self._changed:
            if self._closing:
                raise Refused(STOPPED, 503)
            if self._waiting[request.client] >= self.config.max_queue - self.queued:
                raise Refused(f"{self.queued} requests are waiting already; try again in a while", 503)
            key = (model.name, request.camera)
            slot = _Slot(model, "", stateless) if stateless else self._slots.get(key) or _Slot(model, request.camera)
            if len(slot.jobs) >= self.config.max_camera_queue:
                waiting = f"{len(slot.jobs)} requests of the camera {request.camera!r} are waiting"
                raise Refused(f"{waiting} already; send more slowly", 429)
            if not stateless:
                self._slots[key] = slot
            slot.jobs.append((request, future))
            self.queued += 1
            self._waiting[request.client] += 1
            if not slot.busy:
                slot.busy = True
                self._line_up(slot)
        return future

    def _line_up(self, slot: _Slot) -> None:
        """Let a camera wait behind others of the client whose request is its next. Needs the lock."""
        client = slot.jobs[0][0].client
        self._ready.setdefault(client, deque()).append(slot)
        self._changed.notify()

    def _next(self) -> _Slot:
        """Take the next camera of the next client, which then waits behind all others. Needs the lock."""
        client, slots = self._ready.popitem(last=False)
        slot = slots.popleft()
        if slots:
            self._ready[client] = slots
        return slot

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._ready:
                    if self._closing:
                        return
                    self._changed.wait()
                slot = self._next()
                request, future = slot.jobs.popleft()
            try:
                if future.set_running_or_notify_cancel():
                    self._handle(slot, request, future)
            finally:
                with self._changed:
                    self.queued -= 1
                    self._waiting[request.client] -= 1
                    self._waiting += Counter()  # forgets clients of whom nothing waits
                self._release(slot)

    def _release(self, slot: _Slot) -> None:
        """Put a camera back: to the end of the line if it has more requests."""
        with self._changed:
            slot.used = time.monotonic()
            if slot.jobs:
                self._line_up(slot)
                return
            slot.busy = False
            if slot.camera is None:
                self._slots.pop((slot.model.name, slot.name), None)
            self._idle.notify_all()

    def _handle(self, slot: _Slot, request: InferRequest, future: Future[Body]) -> None:
        """Answer a request; then save or evict its camera where that is due."""
        try:
            if slot.camera is None and not self._ended:
                slot.camera = self._open(slot)
                self._limit_cameras()
            if slot.camera is None or self._ended:  # again: a camera that close() did not see learns nothing
                raise Refused(STOPPED, 503)
            camera = slot.camera
            response, new = camera.answer(request, self.limits, slot.model.caller)
            body = write_response(response, request, slot.model.spec, slot.model.name)
        except BaseException as error:
            if not slot.stateless and slot.camera is not None and not slot.camera.images:
                self._evict(slot)  # it has learnt nothing, and takes no place
            future.set_exception(error)
            return
        finally:
            if slot.stateless:
                slot.camera = None
        # Before the response is sent, so that metrics and page are not behind what a client knows.
        try:
            self._on_response(slot.model, camera, response.images if new else 0)
        except Exception:
            LOG.exception("the metrics of the camera %r failed; its predictions do not depend on them", slot.name)
        camera.events.clear()
        if slot.stateless:
            camera.detach()
        try:  # before the response, too: fewer images than `save_every` are answered and not saved
            if request.end and not slot.stateless:
                if not self._evict(slot, ended=True):
                    kept = f"the camera {slot.name!r} has learnt from this but could not be saved, and stays in memory"
                    raise Refused(f"{kept}; send it again with its id", 503)
            elif camera.unsaved >= self.config.save_every and not slot.stateless:
                self._save(camera)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(body)

    def _open(self, slot: _Slot) -> Camera:
        try:
            return slot.model.stateless() if slot.stateless else slot.model.open(slot.name)
        except CameraInUse:
            raise
        except FozoError as error:  # the disk is full or cannot be read now, or there are too many cameras
            raise Refused(str(error), 503, retry=not isinstance(error, TooManyCameras)) from error

    def _save(self, camera: Camera, patience: float = -1, *, close: bool = False) -> bool:
        try:
            camera.save(patience, close=close)
            return True
        except Exception as error:  # e.g. a full disk: predictions continue, and the next save may succeed
            reason = str(error) or type(error).__name__  # a MemoryError says nothing
            is_known = isinstance(error, (FozoError, MemoryError))  # a traceback is for faults of fozo's own
            LOG.error("the camera %r could not be saved: %s", camera.name, reason, exc_info=None if is_known else error)
            camera.unsaved = 1  # not to try again with every request
            return False

    def _evict(self, slot: _Slot, patience: float = -1, *, ended: bool = False) -> bool:
        """Save a camera and drop it from memory, if that succeeds; the slot has to be busy."""
        if slot.camera is None or not self._save(slot.camera, patience, close=True):
            return False
        slot.camera = None
        self._on_evict(slot.model, slot.name, ended)
        return True

    def _evict_all(self, slots: Iterable[_Slot]) -> None:
        for slot in slots:
            self._evict(slot)
            self._release(slot)

    def _take_idle(self, before: float = math.inf) -> list[_Slot]:
        """Take the cameras that nobody works on and that were last used ``before``: until they are released."""
        with self._changed:
            idle = [s for s in self._slots.values() if s.camera is not None and not s.busy and s.used < before]
            for slot in idle:
                slot.busy = True
        return idle

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

    def find(self, model: str, camera: str) -> Camera | None:
        """The camera, if it is in memory."""
        with self._changed:
            slot = self._slots.get((model, camera))
            return None if slot is None else slot.camera

    def release(self, model: str, camera: str, patience: float = 5.0) -> None:
        """Save a camera and drop it from memory once it is idle, so that another server can open it."""
        with self._changed:
            slot = self._slots.get((model, camera))
            if slot is None or not self._idle.wait_for(lambda: not slot.busy, patience):
                return
            slot.busy = True
        self._evict_all([slot])

    def _evict_idle(self) -> None:
        looked = time.monotonic()
        while not self._stop.wait(min(self.config.idle / 4, 5.0)):
            now = time.monotonic()
            if now - looked >= FORGET_INTERVAL:
                looked = now
                self._forget_old()
            self._evict_all(self._take_idle(now - self.config.idle))
            with self._changed:
                quiet = [s.camera for s in self._slots.values() if s.camera and not s.busy and s.used < now - QUIET]
            for camera in quiet:
                camera.release()  # not after each request: the next one would make it all again

    def _forget_old(self) -> None:
        for folder in self._folders:
            try:
                folder.forget()
            except OSError as error:
                LOG.error("old cameras could not be removed: %s", error)

    def save_idle(self) -> None:
        """Save the cameras that nobody works on; they stay in memory."""
        for slot in self._take_idle():
            if slot.camera is not None:
                self._save(slot.camera)
            self._release(slot)

    def close(self, patience: float = PATIENCE) -> tuple[int, list[str]]:
        """Finish what can be in ``patience`` seconds, save all cameras: how many, and the names of those not saved."""
        deadline = time.monotonic() + patience
        with self._changed:
            self._closing = True
            self._stop.set()
            self._changed.notify_all()
        self.save_idle()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._ended = True
        loaded = [slot for slot in list(self._slots.values()) if slot.camera is not None]
        unsaved = [slot.name for slot in loaded if not self._evict(slot, 0.1)]
        self.limits.decoders.close()
        self._slots.clear()
        return len(loaded) - len(unsaved), unsaved
