"""A served model, and its cameras: each has its own adapter, perhaps a monitor, and its latest responses.

Clients repeat requests: one whose connection broke cannot know whether its images were learnt from. So the latest
responses are kept by the ``id`` of their requests, saved together with the state: a repeated request gets the same
response and is not learnt from twice. The same id with other images is another request.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fozo.core.statistics import Statistics
from fozo.engines.blackbox import BlackBoxEngine
from fozo.engines.load import load_engine
from fozo.errors import FozoError
from fozo.io import unreadable
from fozo.methods.method import Method, Saved
from fozo.methods.registry import create
from fozo.monitor import Event, Guarded, Monitor, Reference
from fozo.monitor.events import thumbnail
from fozo.public import adapter
from fozo.serve import protocol
from fozo.serve.board import Reading
from fozo.serve.config import ModelConfig, ServeConfig
from fozo.serve.merging import LOG, MergingEngine, is_independent
from fozo.serve.protocol import ACCURACY, DRIFT, LOGITS, InferRequest, InferResponse, Limits
from fozo.serve.store import LOOKED_AT, CameraFolder, CameraInUse, StateFolder, is_damage
from fozo.state import Leaf, State, leaves, rebuild
from fozo.types import Batch, Engine

Create = Callable[[Callable[[Event], None]], tuple[Method[Any, Any], Monitor | None]]
RESPONSES = 32
RESPONSE_BYTES = 256 << 10
"""Responses that a camera keeps, and the bytes of their logits in all; the latest is always kept."""
FRAME_INTERVAL = 1.0  # seconds between two thumbnails of a camera on the page


def digest(request: InferRequest) -> str:
    """Hash the images of a request."""
    checksum = hashlib.blake2b(digest_size=16)
    if isinstance(request.tensor, tuple):
        for picture in request.tensor:
            checksum.update(b"%d " % len(picture))
            checksum.update(picture)
    else:
        checksum.update(f"{request.tensor.dtype} {request.tensor.shape}".encode())
        checksum.update(np.ascontiguousarray(request.tensor).data)
    return checksum.hexdigest()


@dataclass(frozen=True)
class Tensor(State):
    """An array of any numbers, also of such that are not finite: a detector may return them."""

    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        if np.dtype(self.dtype).kind not in "biuf":
            raise ValueError(f"an output is {self.dtype!r:.40}")
        self.array()

    @classmethod
    def of(cls, array: npt.NDArray[Any]) -> Tensor:
        return cls(array.dtype.str, array.shape, np.frombuffer(array.tobytes(), np.uint8))

    def array(self) -> npt.NDArray[Any]:
        return np.frombuffer(self.data.tobytes(), self.dtype).reshape(self.shape)


@dataclass(frozen=True)
class KeptResponse(State):
    """A response as it is saved."""

    id: str
    digest: str
    images: int
    outputs: tuple[Tensor, ...]
    drift: tuple[float, float, float, float] | None
    accuracy: tuple[float, float, float] | None
    sentence: str
    faults: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.images < 1:
            raise ValueError(f"the response to {self.id} has {self.images} images")


@dataclass(frozen=True)
class Past(State):
    """What a camera has done."""

    images: int = 0
    """Images of its stream."""
    responses: tuple[KeptResponse, ...] = ()
    """The latest responses, the oldest first."""


@dataclass(frozen=True)
class CameraState(State):
    """All that is saved of a camera, of one moment."""

    past: Past
    method: Saved


class ResponseCache(OrderedDict[tuple[str, str], InferResponse]):
    """The latest responses by the ids and digests of their requests."""

    def add(self, key: tuple[str, str], response: InferResponse) -> None:
        """Keep a response, and drop the oldest ones beyond the limits."""
        self[key] = response
        total = sum([one.nbytes for one in self.values()])
        while len(self) > 1 and (len(self) > RESPONSES or total > RESPONSE_BYTES):
            total -= self.popitem(last=False)[1].nbytes

    def kept(self) -> tuple[KeptResponse, ...]:
        kept = []
        for (id, digest), one in self.items():
            outputs = tuple(map(Tensor.of, one.outputs.values()))
            kept.append(
                KeptResponse(id, digest, one.images, outputs, one.drift, one.accuracy, one.sentence, one.faults)
            )
        return tuple(kept)

    @classmethod
    def of(cls, kept: Sequence[KeptResponse], names: Sequence[str]) -> ResponseCache:
        """Take up what was kept: outputs by these ``names``. What has the right checksum is believed."""
        cache = cls()
        for one in kept:
            outputs = {name: tensor.array() for name, tensor in zip(names, one.outputs, strict=True)}
            answer = InferResponse(one.images, outputs, one.drift, one.accuracy, one.sentence, one.faults)
            cache.add((one.id, one.digest), answer)
        return cache


class Camera:
    """One camera in memory. The caller answers its requests one after the other.

    Args:
        create: makes a fresh method, perhaps :class:`fozo.Guarded`, and its monitor, which reports to the argument.
        folder: where it is saved; a camera that the folder knows continues from there.
        thumbnails: whether readings contain the last frame.
        stateless: whether it is made for one request, of which nothing is kept.
    """

    def __init__(
        self, name: str, create: Create, folder: CameraFolder | None = None, *,
        thumbnails: bool = False, stateless: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.folder = folder
        self.thumbnails = thumbnails
        self.stateless = stateless
        self.events: list[Event] = []  # those of the latest request
        self.images = 0
        self.unsaved = 0
        self._create = create
        self._responses = ResponseCache()
        self._lock = threading.Lock()  # held while it learns
        self._closed = False
        self._frame: npt.NDArray[Any] | None = None
        self._framed = -FRAME_INTERVAL
        self._use(*create(self.events.append))
        if folder is not None:
            self._restore(folder)

    def _use(self, method: Method[Any, Any], monitor: Monitor | None) -> None:
        self.method = method
        self.monitor = monitor
        self.adapter = method.inner if isinstance(method, Guarded) else method

    def _restore(self, folder: CameraFolder) -> None:
        try:
            self.load(folder)
        except FozoError as error:  # of another model or config, or damaged
            if not is_damage(error):
                raise
            folder.set_aside(error)
            self._use(*self._create(self.events.append))

    def load(self, folder: CameraFolder) -> None:
        """Continue from what is saved, where anything is."""
        content = folder.read()
        if content is None:
            return
        owner, values = content
        name = str(folder.file)
        engine = self.adapter.engine
        past = rebuild(Past(), _under("past.", values), f"the past of the camera in {name}")
        names = tuple(engine.outputs) if isinstance(engine, BlackBoxEngine) else (LOGITS,)
        with unreadable(f"{name} holds damaged responses", "restore it from a backup"):
            responses = ResponseCache.of(past.responses, names)
        self.method.resume(name, owner, _under("method.", values))
        self._responses = responses
        self.images = past.images

    def answer(
        self, request: InferRequest, limits: Limits, working: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> tuple[InferResponse, bool]:
        """Predict a request's images and learn from them: the response, and whether it is new or a repetition.

        ``working`` is entered while the adapter works: :meth:`fozo.serve.merging.MergingEngine.caller`.
        """
        key = (request.id, digest(request)) if request.id else None
        known = None if key is None else self._responses.get(key)
        if known is not None and (not request.start or self.images == known.images):  # or images have followed
            return known, False
        engine = self.adapter.engine
        images = request.images(engine.spec, limits, resize=not isinstance(engine, BlackBoxEngine))
        with self._lock:
            if self._closed:
                raise CameraInUse("the server was stopped before it came to this request; send it again")
            # A fresh method takes over only if it does not refuse the images.
            method, monitor = self._create(self.events.append) if request.start else (self.method, self.monitor)
            with working():
                predicted: Any = method(images)
            if request.start:
                self.detach()
                self._use(method, monitor)
                self.images = 0
                self._responses.clear()
            if self.thumbnails:
                self._frame = images[-1] if images.ndim == 4 else images
            count = len(images) if images.ndim == 4 else 1
            self.images += count
            self.unsaved += count
            outputs = predicted if isinstance(predicted, dict) else {LOGITS: np.asarray(predicted, dtype=np.float32)}
            response = self._response(count, outputs)
            if key is not None:
                self._responses.add(key, response)
            return response, True

    def _response(self, images: int, outputs: dict[str, npt.NDArray[Any]]) -> InferResponse:
        if self.monitor is None:
            return InferResponse(images, outputs)
        status = self.monitor.status
        drift = status.drift
        accuracy = status.accuracy
        numbers = (float(drift.drift_detected), drift.distance, drift.threshold, drift.p_value)
        expected = None if accuracy is None else (accuracy.value, accuracy.low, accuracy.high)
        return InferResponse(images, outputs, numbers, expected, status.sentence, status.faults)

    def reading(self, model: str) -> Reading:
        status = None if self.monitor is None else self.monitor.status
        return Reading(model, self.name, time.time(), self.images, status, tuple(self.events), *self._thumbnails())

    def _thumbnails(self) -> tuple[str | None, str | None]:
        """JPEGs in base64 of the last frame as it came and as the model read it, at most one pair a second."""
        frame = self._frame
        monitor = self.monitor
        now = time.monotonic()
        if frame is None or monitor is None or now < self._framed + FRAME_INTERVAL:
            return None, None
        self._framed = now
        self._frame = None
        if frame.dtype == np.uint8:
            pixels = (frame if frame.shape[0] == self.adapter.engine.spec.channels else np.moveaxis(frame, 2, 0)) / 255
        else:
            pixels = monitor.quality.pixels(frame[None])[0]
        read = self.adapter.last_input
        return thumbnail(pixels), None if read is None else thumbnail(monitor.quality.pixels(read[None])[0])

    @property
    def passes_per_image(self) -> float:
        """Forward passes that the latest request cost for each image, with those of the monitor."""
        passes = self.method.passes_per_image
        if self.monitor is None or self.method is not self.adapter:  # a guard counts its monitor's
            return passes
        return passes + self.monitor.status.passes_per_image

    def mark(self, word: str) -> None:
        """Mark the camera's events as ``seen`` or ``expected``; what is expected is clean from now on."""
        if self.monitor is None:
            raise FozoError("this model has no monitor; start the server with a --reference")
        with self._lock:
            self.monitor.mark(word)
            self.unsaved += 1

    def detach(self) -> None:
        """Part the method from its monitor: they refer to each other, and would stay in memory for a while."""
        if self.monitor is not None:
            self.monitor.unwatch()

    def release(self) -> None:
        """Give back the memory of what follows from the state, and is made again for the next image."""
        with self._lock:
            self.method.load_state(rebuild(self.method.init(), dict(leaves(self.method.state()))))

    def save(self, patience: float = -1, *, close: bool = False) -> None:
        """Write what is new to the folder, where there is one; then ``close`` it if nothing is to be learnt any more.

        Where another thread is answering a request, wait, or raise after ``patience`` seconds.
        """
        if not self._lock.acquire(timeout=patience):
            raise FozoError("its request is still worked on")
        try:
            if self.folder is not None and self.unsaved:
                saved, owner = self.method.snapshot()
                self.folder.save(CameraState(Past(self.images, self._responses.kept()), saved), owner)
            self.unsaved = 0
            self._closed |= close
            if close:
                self.detach()
                if self.folder is not None:
                    self.folder.close()
        finally:
            self._lock.release()


def _under(prefix: str, values: Mapping[str, Leaf]) -> dict[str, Leaf]:
    return {path.removeprefix(prefix): leaf for path, leaf in values.items() if path.startswith(prefix)}


def pass_outputs_through(engine: BlackBoxEngine, batch: Batch) -> protocol.Outputs:
    """Let a detector return its outputs by name, and give their datatypes and shapes.

    One call at a time, or each would take its own memory; never merged: which rows are of which image is not known.
    """
    model = engine.model
    lock = threading.Lock()
    names = list(engine.outputs)

    def by_name(images: object) -> object:
        with lock:
            answer = model(images)
        return answer if isinstance(answer, dict) else {names[0]: answer}

    engine.model = by_name
    described = dict[str, tuple[str, list[int]]]()
    for name, array in cast("dict[str, Any]", engine.answer(batch)).items():
        if name in protocol.MONITORED:
            raise FozoError(f"an output is called {name}, as one of the server's own; give it another name")
        shape = list(engine.outputs[name])
        kept = len(shape) == np.ndim(array) > 0
        described[name] = protocol.datatype(array), [-1, *shape[1:]] if kept else [-1] * np.ndim(array)
    return described


class ServedModel:
    """One model of a server: its engine, shared by all cameras, and how a camera is made."""

    def __init__(self, config: ModelConfig, server: ServeConfig) -> None:
        self.name = config.name
        self.config = config
        self.server = server
        engine = load_engine(config.model, config.load)
        if 0 in engine.spec.image_size:
            raise FozoError(f"{config.model} does not name the size of its images; give image_size")
        self.engine: Engine
        self.caller: Callable[[], AbstractContextManager[None]] = nullcontext
        batch = engine.check(np.zeros((1, *engine.spec.image_shape), np.float32))
        # One pass finds the classes of a black box, and whether it gives logits at all.
        if isinstance(engine, BlackBoxEngine) and engine.outputs and engine.logits(engine.answer(batch), 1) is None:
            self.engine = engine
            self.outputs = pass_outputs_through(engine, batch)
        else:
            engine.run(batch)
            merge = is_independent(engine) if config.merge is None else config.merge
            if not merge and config.merge is None:
                LOG.warning("%s runs each camera alone: answers would depend on the other images of a pass", self.name)
            most = server.max_batch if merge else 1
            self.engine = merging = MergingEngine(engine, max_delay=server.max_delay, max_batch=most)
            self.caller = merging.caller
            self.outputs = protocol.class_outputs(engine.spec)
        self.spec = engine.spec
        statistics = None if config.statistics is None else Statistics.load(config.statistics)
        if statistics is None and config.method is None:
            raise FozoError(
                f"the model {self.name} has no statistics; give what fozo calibrate wrote, or another method"
            )
        make: Callable[..., Method[Any, Any]] = partial(create, config.method) if config.method else adapter
        self._prototype = make(self.engine, statistics, **config.options)
        self.method = self._prototype.info.name
        self.reference = None if config.reference is None else Reference.load(config.reference)
        accuracy = self.reference is not None and self.reference.expects_accuracy
        self.monitored = ((ACCURACY,) if accuracy else ()) + (() if self.reference is None else (DRIFT,))
        self._create(lambda event: None)  # refuses a reference of another model or method
        self.folder: StateFolder | None = None
        if server.state is not None:
            self.folder = StateFolder(Path(server.state), self.name, server.forget_after)
            self.folder.forget()
            if server.misfits == "set-aside" or (server.misfits == "refuse" and not server.shared):
                self._judge_states(self.folder)

    def _judge_states(self, folder: StateFolder) -> None:
        """Refuse to start where most states cannot be continued, or set those aside that cannot, as was asked for."""
        reasons = list[FozoError]()
        looked_at = 0
        for saved in folder.saved():
            if self.server.misfits == "refuse" and looked_at == LOOKED_AT:
                break
            with suppress(FozoError):  # what is damaged is for when its camera returns
                owner, values = saved.read() or ({}, {})
                looked_at += 1
                try:
                    Camera("", self._create).method.resume(str(saved.file), owner, _under("method.", values))
                except FozoError as error:
                    reasons.append(error)
                    if self.server.misfits == "set-aside":
                        saved.set_aside(error)
        if self.server.misfits == "refuse" and 2 * len(reasons) > looked_at:
            count = f"{len(reasons)} of {looked_at} cameras in {folder.path} cannot go on ({reasons[0]})"
            advice = "start with what they were saved with; or give --adopt, and each begins again when it returns"
            raise FozoError(f"{count}; {advice}, or --set-aside, and all of these do now (their states are kept)")

    def open(self, name: str) -> Camera:
        if self.folder is None:
            return Camera(name, self._create, thumbnails=self.server.thumbnails)
        folder = self.folder.open(name, self.server.max_known)
        try:
            return Camera(name, self._create, folder, thumbnails=self.server.thumbnails)
        except BaseException:
            folder.close()
            raise

    def stateless(self) -> Camera:
        return Camera("", self._create, stateless=True)

    def _create(self, on_event: Callable[[Event], None]) -> tuple[Method[Any, Any], Monitor | None]:
        method = self._prototype.clone()
        if self.reference is None:
            return method, None
        monitor = Monitor(
            self.reference, shadow=self.config.shadow, on_event=on_event, learn=self.config.learn,
            new_view=self.config.new_view,
        )  # fmt: skip
        if self.config.guard:
            return Guarded(method, monitor), monitor
        return method, monitor.watch(method)
