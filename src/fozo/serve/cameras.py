"""A camera: an adapter of its own, perhaps a monitor, and the answers that it gave last.

Requests come again: a client whose connection broke cannot know whether its images were learnt from. So the latest
answers are kept by the ``id`` of their requests, with the state and of the same moment: a request that is repeated is
answered as before, and teaches nothing twice. An id that comes with other images is another request.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sized
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fozo.data.inputs import as_batch
from fozo.errors import FozoError
from fozo.io import load_arrays, save_arrays
from fozo.methods.base import Method
from fozo.monitor import Event, Monitor
from fozo.monitor.thumbnails import thumbnail
from fozo.serve.protocol import Answer, Limits, Request
from fozo.serve.types import Reading
from fozo.types import Floats

if TYPE_CHECKING:
    from fozo.serve.store import Folder

ANSWERS, ANSWER_BYTES = 32, 256 << 10
"""Answers that a camera keeps, and how long their logits may be in all; the latest is always kept."""
KIND = "answers"
SHOWN_EVERY = 1.0
"""Seconds between two pictures of a camera on the page."""
UNKNOWN = 0.5, 0.0, 1.0
"""The expected accuracy of predictions that nothing is known of: those of images that cannot be pictures."""


def digest(request: Request) -> str:
    """Tell a request's images from all others."""
    found = hashlib.blake2b(digest_size=16)
    if isinstance(request.tensor, tuple):
        for part in request.tensor:
            found.update(b"%d " % len(part))
            found.update(part)
    else:
        found.update(f"{request.tensor.dtype} {request.tensor.shape}".encode())
        found.update(np.ascontiguousarray(request.tensor).data)
    return found.hexdigest()


def _jpeg(pixels: Floats) -> bytes:
    return base64.b64decode(thumbnail(pixels))


class Answers:
    """The latest answers by the ids and digests of their requests."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], Answer] = OrderedDict()
        self._bytes = 0

    def get(self, id: str, digest: str) -> Answer | None:
        """Find one."""
        return self._kept.get((id, digest))

    def add(self, id: str, digest: str, answer: Answer) -> None:
        """Keep one, and forget the oldest."""
        self._kept[id, digest] = answer
        self._bytes += answer.logits.nbytes
        while len(self._kept) > 1 and (len(self._kept) > ANSWERS or self._bytes > ANSWER_BYTES):
            self._bytes -= self._kept.popitem(last=False)[1].logits.nbytes

    def save(self, path: Path) -> None:
        """Write them to an ``.npz``."""
        answers = list(self._kept.values())
        facts = [[*key, len(each.logits), each.drift, each.accuracy, each.sentence] for key, each in self._kept.items()]
        logits = np.concatenate([each.logits for each in answers]) if answers else np.zeros((0, 0), np.float32)
        save_arrays(path, {"kind": KIND, "answers": facts}, {"logits": logits})

    @classmethod
    def load(cls, path: Path) -> Answers:
        """Read what :meth:`save` wrote."""
        header, arrays = load_arrays(path, KIND)
        made, start = cls(), 0
        try:
            facts: Any = header["answers"]
            for id, digest, rows, drift, accuracy, sentence in facts:
                logits = arrays["logits"][start : start + rows].astype(np.float32)
                if len(logits) != rows:
                    raise ValueError("logits are missing")
                start += rows
                told: list[Any] = [None if part is None else tuple(map(float, part)) for part in (drift, accuracy)]
                made.add(str(id), str(digest), Answer(logits, told[0], told[1], str(sentence)))
        except (KeyError, TypeError, ValueError) as error:
            raise FozoError(f"{path} holds damaged answers ({error}); remove it") from error
        return made


class Camera:
    """One camera in memory. Its requests are answered one after the other: who calls it sees to that."""

    def __init__(
        self,
        name: str,
        adapter: Method[Any],
        monitor: Monitor | None,
        folder: Folder | None,
        events: list[Event],
        thumbnails: bool = False,
        passing: bool = False,
        predictor: Method[Any] | None = None,
    ) -> None:
        """``events`` is where the monitor's are put; a folder that knows the camera already is gone on from.

        A ``passing`` one is for one request, and what it saw says nothing of the next. ``predictor`` is what requests
        are given to, if it is not the adapter: :class:`fozo.Guarded` around it.
        """
        self.passing, self.predictor = passing, adapter if predictor is None else predictor
        self.name, self.adapter, self.monitor, self.folder, self.events = name, adapter, monitor, folder, events
        self.answers = Answers()
        self.images, self.unsaved = 0, 0
        self.thumbnails, self._shown = thumbnails, 0.0
        self._last: npt.NDArray[Any] | None = None
        if folder is not None:
            self._restore(folder)

    def _restore(self, folder: Folder) -> None:
        try:
            facts = folder.facts()
            if facts is None:
                return
            images = facts.get("images")
            if type(images) is not int or images < 0:
                raise FozoError(f"{folder.path} tells no number of images; remove it")
            answers = Answers.load(folder.file("answers"))
            self.adapter.restore(folder.file("adapter"))
            if self.monitor is not None and folder.file("monitor").exists():
                self.monitor.restore(folder.file("monitor"))
            self.answers, self.images = answers, images
        except FozoError as error:  # of another model or config, or damaged
            folder.refuse(error)
            self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.adapter.reset()
        if self.monitor is not None:
            self.monitor.reset()
        self.images = 0
        self.events.clear()

    def answer(
        self, request: Request, limits: Limits, working: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> tuple[Answer, bool]:
        """Predict a request's images and learn from them; if it was answered before, give that: whether it is new.

        ``working`` is entered while the adapter works: :meth:`fozo.serve.merging.MergingEngine.caller`.
        """
        key = (request.id, digest(request)) if request.id else None
        known = None if key is None else self.answers.get(*key)
        if known is not None:
            return known, False
        images = request.images(self.adapter.engine.spec, limits)
        if request.start:
            engine, source = self.adapter.engine, self.adapter.statistics
            engine.check(as_batch(images, engine.spec, None if source is None else source.inputs))
            self.forget()  # now that the images will not be refused
        with working():
            logits = np.asarray(self.predictor(images), dtype=np.float32)
        if self.thumbnails:
            self._last = images[-1] if images.ndim == 4 else images
        answer = self._told(logits)
        self.images += len(logits)
        self.unsaved += len(logits)
        if key is not None:
            self.answers.add(*key, answer)
        return answer, True

    def _told(self, logits: npt.NDArray[np.float32]) -> Answer:
        if self.monitor is None:
            return Answer(logits)
        status = self.monitor.status
        drift = status.drift
        numbers = (float(drift.drift_detected), drift.distance, drift.threshold, drift.p_value)
        expected = UNKNOWN if self.monitor.reference.expects_accuracy else None
        if status.accuracy is not None:
            expected = status.accuracy.value, status.accuracy.low, status.accuracy.high
        return Answer(logits, numbers, expected, status.sentence)

    def reading(self, model: str) -> Reading:
        """Say what is known of the camera now, for a page."""
        if self.monitor is None:
            return Reading(
                model, self.name, time.time(), self.images, drift=None, threshold=None, drifted=False, warning=False,
                accuracy=None, accuracy_low=None, accuracy_high=None, sentence="",
            )  # fmt: skip
        status = self.monitor.status
        drift, expected, pictures = status.drift, status.accuracy, self._pictures(self.monitor)
        return Reading(
            model, self.name, time.time(), self.images, drift=drift.distance, threshold=drift.threshold,
            drifted=drift.drift_detected, warning=drift.warning_detected,
            accuracy=None if expected is None else expected.value,
            accuracy_low=None if expected is None else expected.low,
            accuracy_high=None if expected is None else expected.high,
            sentence=status.sentence, events=tuple(self.events), before=pictures[0], after=pictures[1],
        )  # fmt: skip

    def _pictures(self, monitor: Monitor) -> tuple[bytes | None, bytes | None]:
        """The last frame as it came and as the model read it, where they are wanted, at most once a second."""
        last, now = self._last, time.monotonic()
        if last is None or now < self._shown + SHOWN_EVERY:
            return None, None
        self._shown, self._last = now, None
        if last.dtype == np.uint8:
            seen = (last if last.shape[0] == self.adapter.engine.spec.channels else np.moveaxis(last, 2, 0)) / 255
        else:
            seen = monitor.quality.pixels(last[None])[0]
        read = self.adapter.last_input
        return _jpeg(seen), None if read is None else _jpeg(monitor.quality.pixels(read[None])[0])

    @property
    def passes_per_image(self) -> float:
        """Forward passes that the latest request cost for each image, with those of the monitor."""
        shadow = 0.0 if self.monitor is None or self.monitor.guarded else self.monitor.passes_per_image
        return self.predictor.passes_per_image + shadow

    @property
    def memories(self) -> int | None:
        """Images that the adapter remembers, where it remembers images."""
        memory = getattr(self.adapter, "memory", None)
        return len(memory) if isinstance(memory, Sized) else None

    def save(self) -> None:
        """Write everything to the folder, where there is one."""
        if self.folder is None or (not self.unsaved and self.folder.generation):
            return
        files: dict[str, Callable[[Path], None]] = {"adapter": self.adapter.save, "answers": self.answers.save}
        if self.monitor is not None:
            files["monitor"] = self.monitor.save
        self.folder.save({"images": self.images, "time": time.time(), "method": self.adapter.info.name}, files)
        self.unsaved = 0

    def let_go(self) -> None:
        """Leave the folder to others."""
        if self.folder is not None:
            self.folder.close()
