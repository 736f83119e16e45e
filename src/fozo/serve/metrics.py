"""What Prometheus is told. Cameras are named by strangers, so only so many of them get labels of their own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from fozo.serve.cameras import Camera

OTHER = "other"
"""What cameras beyond the first few are called together."""
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class Metrics:
    """Counts and readings of one server, in a registry of its own.

    Args:
        most: cameras that have labels of their own. Counts of the others are added up as ``other``; readings, which
            cannot be added up, they have none.
    """

    def __init__(self, most: int = 100) -> None:
        self.registry, self._most = CollectorRegistry(), most
        self._named: set[tuple[str, str]] = set()
        made = self.registry
        one, camera = ["model"], ["model", "stream"]
        self.requests = Counter("fozo_requests", "Requests by model and HTTP code", ["model", "code"], registry=made)
        self.seconds = Histogram(
            "fozo_request_seconds",
            "Seconds from a request's headers to its answer",
            one,
            buckets=SECONDS,
            registry=made,
        )
        self.images = Counter("fozo_images", "Images predicted", camera, registry=made)
        self.passes = Counter("fozo_passes", "Forward passes of the model, an image at a time", one, registry=made)
        self.repeated = Counter("fozo_repeated_requests", "Requests answered as before", one, registry=made)
        self.rollbacks = Counter(
            "fozo_rollbacks", "Times that the plain model predicted instead", [*camera, "reason"], registry=made
        )
        self.streams = Gauge("fozo_streams", "Cameras in memory", registry=made)
        self.queued = Gauge("fozo_queued_requests", "Requests that wait or are worked on", registry=made)
        self.score = Gauge("fozo_drift_score", "Distance of the images from clean ones", camera, registry=made)
        self.threshold = Gauge("fozo_drift_threshold", "Distance above which it is drift", camera, registry=made)
        self.drifted = Gauge("fozo_drift_detected", "Whether there is drift", camera, registry=made)
        self.accuracy = Gauge("fozo_expected_accuracy", "Expected accuracy of predictions", camera, registry=made)
        self.look = Gauge("fozo_look", "Change of a look against clean images", [*camera, "band"], registry=made)
        self.memories = Gauge("fozo_memories", "Images that a camera's adapter remembers", camera, registry=made)

    def label(self, model: str, camera: str) -> str:
        """What a camera is called: by its name while there is room."""
        if (model, camera) not in self._named:
            if len(self._named) >= self._most:
                return OTHER
            self._named.add((model, camera))
        return camera

    def record(self, model: str, camera: Camera, images: int) -> None:
        """Take in what a request of ``images`` images showed."""
        if not images:
            self.repeated.labels(model).inc()
            return
        name = self.label(model, camera.name)
        self.images.labels(model, name).inc(images)
        self.passes.labels(model).inc(images * camera.passes_per_image)
        fallbacks = camera.adapter.metrics().get("fallbacks", 0.0)
        if fallbacks:
            self.rollbacks.labels(model, name, "fallback").inc(fallbacks)
        for event in camera.events:
            if event.name == "guard":
                self.rollbacks.labels(model, name, "guard").inc()
        if camera.passing or (name == OTHER and camera.name != OTHER):
            return
        memories = camera.memories
        if memories is not None:
            self.memories.labels(model, name).set(memories)
        if camera.monitor is None:
            return
        status = camera.monitor.status
        self.score.labels(model, name).set(status.drift.distance)
        self.threshold.labels(model, name).set(status.drift.threshold)
        self.drifted.labels(model, name).set(status.drift.drift_detected)
        if status.accuracy is not None:
            self.accuracy.labels(model, name).set(status.accuracy.value)
        for band, change in status.quality.items():
            self.look.labels(model, name, band).set(change)

    def forget(self, model: str, camera: str) -> None:
        """Drop the readings of a camera that has left; its counts stay."""
        for gauge in (self.score, self.threshold, self.drifted, self.accuracy, self.memories):
            gauge.remove_by_labels({"model": model, "stream": camera})
        self.look.remove_by_labels({"model": model, "stream": camera})

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)
