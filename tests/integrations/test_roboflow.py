"""The Workflows plugin, against a STAND-IN for the interface of ``inference`` (which brings 83 packages along).

The stand-in has the names and signatures that the plugin uses, as published. It shows that the blocks do what they
say; it cannot show that a release of ``inference`` accepts them.
"""

import importlib.util
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.helpers import REPO
from tests.methods.test_frames import contrast, hazy, scenes

pydantic = pytest.importorskip("pydantic")
ROOT = "inference.core.workflows"


@dataclass(frozen=True)
class Metadata:
    video_identifier: str


@dataclass(frozen=True)
class ImageData:
    numpy_image: np.ndarray
    video_metadata: Metadata

    @classmethod
    def copy_and_replace(cls, origin_image_data: "ImageData", **changes: Any) -> "ImageData":
        return replace(origin_image_data, **changes)


class Output(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    name: str
    kind: list[str]


class Block:
    pass


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    kinds = {f"{name}_KIND": name.lower() for name in ("BOOLEAN", "FLOAT", "IMAGE", "INTEGER", "STRING")}
    names: dict[str, dict[str, Any]] = {
        f"{ROOT}.execution_engine.entities.base": {"OutputDefinition": Output, "WorkflowImageData": ImageData},
        f"{ROOT}.execution_engine.entities.types": {**kinds, "Selector": lambda kind: str},
        f"{ROOT}.prototypes.block": {
            "BlockResult": dict, "WorkflowBlock": Block, "WorkflowBlockManifest": pydantic.BaseModel
        },
    }  # fmt: skip
    for path, members in names.items():
        parts = path.split(".")
        for end in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(parts[end - 1]))
        module = ModuleType(path)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, path, module)
    file = REPO / "integrations" / "roboflow" / "fozo_workflows.py"
    spec = importlib.util.spec_from_file_location("fozo_workflows", file)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fozo_workflows", made)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def clean(tmp_path: Path) -> str:
    for i, frame in enumerate(scenes(32)):
        Image.fromarray(np.ascontiguousarray(frame[..., ::-1])).save(tmp_path / f"{i:02}.png")
    return str(tmp_path)


def images(frames: np.ndarray, video: str) -> list[ImageData]:
    return [ImageData(frame, Metadata(video)) for frame in frames]


def test_manifests(plugin: ModuleType) -> None:
    kinds = {"fozo/equalise@v1": {"image"}, "fozo/camera_health@v1": {"sentence", "drift", "score", "since"}}
    for block in plugin.load_blocks():
        manifest = block.get_manifest()
        (name,) = manifest.model_fields["type"].annotation.__args__
        assert {output.name for output in manifest.describe_outputs()} == kinds.pop(name)
        manifest(type=name, image="$inputs.image", clean="/data/clean")
        assert manifest.model_config["json_schema_extra"]["version"] == "v1"
    assert kinds == {}


def test_each_video_has_its_own_memory(plugin: ModuleType, clean: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block = plugin.EqualiseBlock()
    foggy, clear = hazy(scenes(16, seed=2)), scenes(16, seed=3)
    for one, other in zip(images(foggy, "a"), images(clear, "b"), strict=True):
        equalised = block.run(image=one, clean=clean)["image"]
        same = block.run(image=other, clean=clean)["image"]
    assert contrast(equalised.numpy_image) > 1.5 * contrast(foggy[-1]) and equalised.video_metadata == Metadata("a")
    assert np.abs(same.numpy_image.astype(int) - clear[-1]).mean() < 2
    alone = plugin.EqualiseBlock()
    for one in images(foggy, "a"):
        last = alone.run(image=one, clean=clean)["image"]
    np.testing.assert_array_equal(last.numpy_image, equalised.numpy_image)
    monkeypatch.setattr(plugin, "MAX_VIDEOS", 2)
    block.run(image=images(clear, "c")[0], clean=clean)
    assert [video for _, video in block.videos.kept] == ["b", "c"]


def test_health_is_a_sentence(plugin: ModuleType, clean: str) -> None:
    block = plugin.HealthBlock()
    for image in images(scenes(24, seed=4), "a"):
        found = block.run(image=image, clean=clean)
    assert (found["sentence"], found["drift"], found["since"]) == ("no drift", False, 0)
    for image in images(hazy(scenes(24, seed=5)), "a"):
        found = block.run(image=image, clean=clean)
    assert found["drift"] and found["score"] > 1 and 20 <= found["since"] <= 30 and "contrast" in found["sentence"]
