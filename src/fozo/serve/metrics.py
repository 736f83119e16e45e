"""Metrics for Prometheus. Clients name the cameras, so the number of labels is limited."""

import math
import time
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from fozo.monitor.faults import LASTING
from fozo.serve.board import SILENT
from fozo.serve.cameras import Camera

OTHER = "other"  # label of the cameras beyond the first `max_labels`
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class Metrics:
    """Counters and gauges of one server, in its own registry.

    Args:
        max_labels: cameras with counts of their own, those that came first; the others are added up as ``other``. As
            many in memory have gauges: one that leaves makes room for another.
    """

    def __init__(self, max_labels: int = 100) -> None:
        self.registry = CollectorRegistry()
        self._max_labels = max_labels
        self._counted = set[tuple[str, str]]()
        self._gauged = set[tuple[str, str]]()
        self._without = set[tuple[str, str]]()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        one = ["model"]
        camera = ["model", "stream"]
        self.requests = counter("fozo_requests", "Requests by model and HTTP code", ["model", "code"])
        seconds = "Seconds from a request's headers to its answer"
        self.seconds = Histogram("fozo_request_seconds", seconds, one, buckets=SECONDS, registry=self.registry)
        self.images = counter("fozo_images", "Images predicted", camera)
        self.passes = counter("fozo_passes", "Forward passes of the model, an image at a time", one)
        self.repeated = counter("fozo_repeated_requests", "Requests answered from the cache", one)
        self.rollbacks = counter("fozo_rollbacks", "Times that the plain model predicted instead", [*camera, "reason"])
        self.streams = gauge("fozo_streams", "Cameras in memory")
        gauge("fozo_streams_without_gauges", "Cameras in memory beyond max_labels").set_function(
            lambda: len(self._without)
        )
        self.aside = gauge("fozo_states_set_aside", "States that could not be restored, and were kept", one)
        self.queued = gauge("fozo_queued_requests", "Requests that wait or are worked on")
        self.ratio = gauge("fozo_drift_ratio", "Distance over threshold: above 1 is drift", camera)
        self.score = gauge("fozo_drift_score", "Distance of the images from clean ones", camera)
        self.threshold = gauge("fozo_drift_threshold", "Distance above which it is drift", camera)
        self.drifted = gauge("fozo_drift_detected", "Whether there is drift", camera)
        self.accuracy = gauge("fozo_expected_accuracy", "Expected accuracy of predictions", camera)
        self.relative = gauge("fozo_relative_accuracy", "The same, over that on clean images: without labels", camera)
        self.quality = gauge("fozo_image_quality", "Change of a statistic against clean images", [*camera, "band"])
        self.last = gauge("fozo_last_image_seconds", "When the last image came, in seconds since 1970", camera)
        self.silent = gauge("fozo_silent", f"Whether no image came for {SILENT:g} s", camera)
        self.fault = gauge("fozo_fault", "Whether a camera has a fault", [*camera, "kind"])
        self.memories = gauge(
            "fozo_memories", "Effective images of the current domain that a camera's adapter remembers", camera
        )

    def record(self, model: str, camera: Camera, images: int) -> None:
        if not images:
            self.repeated.labels(model).inc()
            return
        key = (model, camera.name)
        if len(self._counted) < self._max_labels:
            self._counted.add(key)
        name = camera.name if key in self._counted else OTHER
        self.images.labels(model, name).inc(images)
        self.passes.labels(model).inc(images * camera.passes_per_image)
        if fallbacks := camera.adapter.metrics().get("fallbacks", 0.0):
            self.rollbacks.labels(model, name, "fallback").inc(fallbacks)
        for event in camera.events:
            if event.name == "guard":
                self.rollbacks.labels(model, name, "guard").inc()
        if camera.stateless:
            return
        if key not in self._gauged and len(self._gauged) >= self._max_labels:
            self._without.add(key)
            return
        self._without.discard(key)
        self._gauged.add(key)
        self._show(model, camera)

    def _show(self, model: str, camera: Camera) -> None:
        name = camera.name
        now = time.time()
        self.last.labels(model, name).set(now)
        self.silent.labels(model, name).set_function(lambda: time.time() - now > SILENT)
        samples = camera.adapter.metrics().get("effective_sample_size")
        if samples is not None:
            self.memories.labels(model, name).set(samples)
        if camera.monitor is None:
            return
        status = camera.monitor.status
        self.ratio.labels(model, name).set(status.drift.ratio)
        self.score.labels(model, name).set(status.drift.distance)
        self.threshold.labels(model, name).set(status.drift.threshold)
        self.drifted.labels(model, name).set(status.drift.drift_detected)
        for kind in LASTING:
            self.fault.labels(model, name, kind).set(kind in status.faults)
        reference = camera.monitor.reference
        if reference.adapted is not None:
            accuracy = self.relative if reference.unlabelled else self.accuracy
            accuracy.labels(model, name).set(math.nan if status.expected is None else status.expected.value)
        for band, change in status.quality.items():
            self.quality.labels(model, name, band).set(change)

    def forget(self, model: str, camera: str, ended: bool = False) -> None:
        """Drop the gauges of an evicted camera; its counts stay, and its silence if nobody has ended it."""
        self._gauged.discard((model, camera))
        self._without.discard((model, camera))
        scores = (self.ratio, self.score, self.threshold, self.drifted, self.accuracy, self.relative)
        key = (model, camera)
        lasting = () if key in self._counted and not ended else (self.last, self.silent)
        for gauge in (*scores, self.memories, self.quality, self.fault, *lasting):
            gauge.remove_by_labels({"model": model, "stream": camera})

    def text(self) -> bytes:
        return generate_latest(self.registry)
