"""fozo in Roboflow Workflows: two blocks, for every camera its own memory.

    pip install fozo inference
    export WORKFLOWS_PLUGINS=fozo_workflows PYTHONPATH=integrations/roboflow

``fozo/equalise@v1`` restores contrast and detail that an image lacks; put it before a model.
``fozo/camera_health@v1`` says in words what drifted, since which frame, and how far beyond the threshold. Both compare
with ``clean``: a folder of a few dozen clean frames of the camera, of the size of its frames, on the machine that runs
the workflow.

State is kept by ``image.video_metadata.video_identifier``, as Workflows asks of blocks with a memory; of the videos
seen longest ago it is dropped (MAX_VIDEOS). Written against the interface of inference 0.5x (execution engine 1.x) as
published; tested against a stand-in for it, not against the package itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from inference.core.workflows.execution_engine.entities.base import OutputDefinition, WorkflowImageData
from inference.core.workflows.execution_engine.entities.types import (
    BOOLEAN_KIND,
    FLOAT_KIND,
    IMAGE_KIND,
    INTEGER_KIND,
    STRING_KIND,
    Selector,
)
from inference.core.workflows.prototypes.block import BlockResult, WorkflowBlock, WorkflowBlockManifest
from pydantic import ConfigDict, Field

import fozo
from fozo.data.sets import open_unlabelled

MAX_VIDEOS = 32
V = TypeVar("V")


class Videos(Generic[V]):
    """What is kept of each video, by folder of clean frames and identifier; the longest unseen is dropped first."""

    def __init__(self) -> None:
        self.kept: OrderedDict[tuple[str, str], V] = OrderedDict()

    def get(self, clean: str, image: WorkflowImageData, make: Callable[[], V]) -> V:
        key = (clean, image.video_metadata.video_identifier)
        if key not in self.kept:
            self.kept[key] = make()
        self.kept.move_to_end(key)
        while len(self.kept) > MAX_VIDEOS:
            self.kept.popitem(last=False)
        return self.kept[key]


class Camera:
    """The equaliser of one camera; :attr:`monitors` say what drifted."""

    _fronts: ClassVar[dict[str, fozo.Equaliser]] = {}
    _references: ClassVar[dict[tuple[str, tuple[int, int]], fozo.Reference]] = {}

    def __init__(self, clean: str) -> None:
        if clean not in self._fronts:  # once for all cameras that share a folder
            self._fronts[clean] = fozo.Equaliser(clean, channels="bgr")
        self.front = self._fronts[clean].clone()
        self.clean = clean
        self.monitors: dict[tuple[int, int], fozo.Monitor] = {}

    def status(self, frame: np.ndarray[Any, np.dtype[np.uint8]]) -> Any:  # noqa: ANN401 - the monitor's own type
        """Adapt to a frame and report on its size of frames."""
        size = (frame.shape[0], frame.shape[1])
        if size in self.front.adapters and size not in self.monitors:
            if (self.clean, size) not in self._references:
                files = open_unlabelled(Path(self.clean))
                pixels = [files.read(index) for index in range(len(files))]
                same = np.stack([picture for picture in pixels if picture.shape[:2] == size])
                made = fozo.Reference.collect(self.front.adapters[size], same, corruptions=False)
                self._references[self.clean, size] = made
            self.monitors[size] = fozo.Monitor(self._references[self.clean, size]).watch(self.front.adapters[size])
        self.front(frame)
        return self.monitors[size].status


class Manifest(WorkflowBlockManifest):
    """What both blocks read."""

    image: Selector(kind=[IMAGE_KIND]) = Field(description="The camera's image.", examples=["$inputs.image"])  # type: ignore[valid-type]
    clean: Selector(kind=[STRING_KIND]) | str = Field(  # type: ignore[valid-type]
        description="Folder of clean frames of this camera.", examples=["/data/clean", "$inputs.clean"]
    )

    @classmethod
    def get_execution_engine_compatibility(cls) -> str | None:
        return ">=1.3.0,<2.0.0"


def block_info(name: str, sentence: str) -> ConfigDict:
    shown = {"name": name, "version": "v1", "short_description": sentence, "license": "Apache-2.0"}
    return ConfigDict(json_schema_extra={**shown, "block_type": "classical_computer_vision"})


class EqualiseManifest(Manifest):
    """Of ``fozo/equalise@v1``."""

    type: Literal["fozo/equalise@v1"]
    model_config = block_info("fozo Equalise", "Restore contrast and detail that an image lacks against clean ones.")

    @classmethod
    def describe_outputs(cls) -> list[OutputDefinition]:
        return [OutputDefinition(name="image", kind=[IMAGE_KIND])]


class HealthManifest(Manifest):
    """Of ``fozo/camera_health@v1``."""

    type: Literal["fozo/camera_health@v1"]
    model_config = block_info("fozo Camera Health", "Say in words what drifted in a camera's images, and since when.")

    @classmethod
    def describe_outputs(cls) -> list[OutputDefinition]:
        kinds = {"sentence": STRING_KIND, "drift": BOOLEAN_KIND, "score": FLOAT_KIND, "since": INTEGER_KIND}
        return [OutputDefinition(name=name, kind=[kind]) for name, kind in kinds.items()]


class EqualiseBlock(WorkflowBlock):
    """Image in, equalised image out."""

    def __init__(self) -> None:
        self.videos = Videos[Camera]()

    @classmethod
    def get_manifest(cls) -> type[WorkflowBlockManifest]:
        return EqualiseManifest

    def run(self, image: WorkflowImageData, clean: str) -> BlockResult:
        camera = self.videos.get(clean, image, lambda: Camera(clean))
        frame = camera.front(image.numpy_image)
        return {"image": WorkflowImageData.copy_and_replace(origin_image_data=image, numpy_image=frame)}


class HealthBlock(WorkflowBlock):
    """Image in; a sentence, whether there is drift, how far, and the frame it began with (0: none) out."""

    def __init__(self) -> None:
        self.videos = Videos[Camera]()

    @classmethod
    def get_manifest(cls) -> type[WorkflowBlockManifest]:
        return HealthManifest

    def run(self, image: WorkflowImageData, clean: str) -> BlockResult:
        status = self.videos.get(clean, image, lambda: Camera(clean)).status(image.numpy_image)
        drift = status.drift
        found = {"drift": drift.drift_detected, "score": drift.ratio, "since": drift.since or 0}
        return {"sentence": status.sentence, **found}


def load_blocks() -> list[type[WorkflowBlock]]:
    """What Workflows asks a plugin for."""
    return [EqualiseBlock, HealthBlock]
