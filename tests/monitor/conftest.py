"""A monitored adapter on the bundled model, whose images are small and real."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fozo
from fozo.data import sample
from fozo.data.corruptions import corrupt
from fozo.data.images import Pixels
from fozo.data.streams import prepare
from fozo.types import Floats

CALIBRATION, BATCH = 300, 16


@dataclass(frozen=True)
class Material:
    """The bundled images in a random order, the first ones being the reference's."""

    adapter: fozo.Method[Any, Any]
    reference: fozo.Reference
    pixels: Pixels
    labels: npt.NDArray[np.int64]

    def images(self, some: slice | npt.NDArray[np.int64], kind: str = "clean", severity: int = 0) -> Floats:
        pixels = self.pixels[some]
        if severity:
            pixels = np.stack([corrupt(one, kind, severity, 1, image_id=str(i)) for i, one in enumerate(pixels)])
        return self.adapter.engine.spec.normalise(pixels)


@pytest.fixture(scope="session")
def material() -> Material:
    engine, images = fozo.load_engine(sample.MODELS["float32"], threads=1), fozo.open_images(sample.IMAGES)
    order = np.random.default_rng(0).permutation(len(images))
    pixels = np.stack([prepare(images, images.read(int(i)), engine.spec.image_size, 1) for i in order])
    labels = np.array([images.samples[i].label for i in order])
    adapter = fozo.adapter(engine, fozo.calibrate(engine, [engine.spec.normalise(pixels[:CALIBRATION])]))
    left: list[int] = []
    clean = pixels[:CALIBRATION], labels[:CALIBRATION]
    reference = fozo.Reference.collect(
        adapter, *clean, sample=64, progress=lambda doing, done, total: left.append(total - done)
    )
    assert left[-1] == 0 and len(left) > 10
    return Material(adapter, reference, pixels, labels)


def run(method: fozo.Method[Any, Any], images: Floats) -> Floats:
    return np.concatenate([method(images[start : start + BATCH]) for start in range(0, len(images), BATCH)])


def watched(material: Material, **options: Any) -> tuple[fozo.Method[Any, Any], fozo.Monitor]:
    adapter = material.adapter.clone()
    return adapter, fozo.Monitor(material.reference, **options).watch(adapter)


def guarded(material: Material, **options: Any) -> tuple[fozo.Method[Any, Any], fozo.Monitor]:
    monitor = fozo.Monitor(material.reference, **options)
    return fozo.Guarded(material.adapter.clone(), monitor), monitor
