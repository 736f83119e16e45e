"""Writing models: the command, INT8, and what is refused before anything is written."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image
from safetensors.torch import save_file

import fozo
from fozo import export
from fozo.engines.onnx.schema import INPUTS, MATRICES, MOVES
from fozo.engines.torch_engine import TorchEngine
from fozo.models.convert import names_by_tag
from fozo.quant.onnx_int8 import fragile_layers, linear_layers
from fozo.types import NO_KNOBS, Knobs, Tap
from tests.helpers import HALF, SMALL, random_images, random_vit, run
from tests.refusals import refuses


@pytest.fixture(scope="module")
def model() -> fozo.Engine:
    return fozo.load_engine(random_vit(), **HALF)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clean images of two classes: not the model's seven, which calibration need not know."""
    root = tmp_path_factory.mktemp("photographs")
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (root / name).mkdir()
        for i in range(5):
            Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(root / name / f"{i}.png")
    return root


def test_names_of_classes_survive_the_export(tmp_path: Path) -> None:
    """Those that timm's tag of a weights file tells; the command line lost them."""
    file = tmp_path / "weights.safetensors"
    for classes in (1000, 7):
        save_file(random_vit(replace(SMALL, classes=classes)).state_dict(), file)
        engine = fozo.load_engine(file, heads=SMALL.heads, architecture="model.augreg_in21k_ft_in1k")
        export(engine, tmp_path / "model.onnx")
        labels = fozo.load_engine(tmp_path / "model.onnx").spec.labels
        assert labels == engine.spec.labels
        if classes == 7:
            assert labels is None
        else:
            assert labels is not None and (labels[0], labels[176]) == ("tench, Tinca tinca", "Saluki, gazelle hound")
    ImageNetInfo = pytest.importorskip("timm.data").ImageNetInfo
    assert names_by_tag("augreg_in1k", 1000) == tuple(ImageNetInfo().label_descriptions())


def error(one: fozo.Engine, other: fozo.Engine, images: np.ndarray, knobs: Knobs = NO_KNOBS) -> float:
    """Root mean square difference of the features, as a part of their deviation."""
    expected, got = (run(engine, images, knobs)[Tap.FEATURES] for engine in (one, other))
    return float(np.sqrt(((got - expected) ** 2).mean() / expected.var()))


def test_the_file_is_a_valid_model_of_standard_operators(model: fozo.Engine, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    spec = export(model, path)
    assert spec == model.spec
    written = onnx.load(path)
    onnx.checker.check_model(written, full_check=True)
    assert [(entry.domain, entry.version) for entry in written.opset_import] == [("", 20)]
    assert {value.name for value in written.graph.input} == set(INPUTS)
    outputs = {value.name for value in written.graph.output}
    assert {tap.value for tap in Tap} - {"logits"} <= outputs  # the head is applied outside
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    again = tmp_path / "again.onnx"
    export(model, again)
    assert again.read_bytes() == path.read_bytes()  # no dates, no order of dictionaries


def test_savings_are_in_the_graph(model: fozo.Engine, tmp_path: Path) -> None:
    """What linear layers are really applied to, with 3 candidates, 2 images of 16 patches, and 2 prompts."""
    export(model, tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx")
    products = [node for node in graph.graph.node if node.name in linear_layers(graph)]
    for node in products:
        graph.graph.output.append(onnx.helper.make_empty_tensor_value_info(node.output[0]))
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])

    def shapes(moves: int) -> dict[str, list[tuple[int, ...]]]:
        feeds = {"images": random_images(2), "prompts": np.zeros((3, 2, 24), np.float32)}
        feeds |= {name: np.ones((moves, 1, 4, 24), np.float32) for name in MOVES}
        feeds[MATRICES] = np.zeros((1, 1, 0, 24, 24), np.float32)
        found: dict[str, list[tuple[int, ...]]] = {}
        outputs = session.run([node.output[0] for node in products], feeds)
        for node, output in zip(products, outputs, strict=True):
            found.setdefault(node.input[1], []).append(output.shape)
        return found

    shared, apart = shapes(1), shapes(3)
    first = "blocks.0.attn.qkv.weight"
    assert shared[first] == [(1, 2, 17, 72), (3, 2, 72)]  # image tokens once for all candidates, prompts once for all
    assert apart[first] == [(3, 2, 17, 72), (3, 2, 72)]  # candidates that move tokens differently cannot share
    assert shared["blocks.1.mlp.fc1.weight"] == [(6, 19, 48)]
    assert shared["blocks.3.attn.qkv.weight.0"] == [(6, 1, 24)]  # in the last block, the query of CLS alone ...
    assert shared["blocks.3.attn.qkv.weight.24"] == [(6, 19, 48)]
    assert shared["blocks.3.mlp.fc1.weight"] == [(6, 1, 48)]  # ... and all that follows


def test_patches_are_multiplied_only_where_there_are_matrices(model: fozo.Engine, tmp_path: Path) -> None:
    export(model, tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx")
    makers = {node.output[0]: node for node in graph.graph.node}
    products = []
    for node in graph.graph.node:
        right = makers.get(node.input[1]) if node.op_type == "MatMul" else None
        if right is not None and MATRICES in right.input:
            products.append(node.output[0])
            graph.graph.output.append(onnx.helper.make_empty_tensor_value_info(node.output[0]))
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"images": random_images(2), "prompts": np.zeros((3, 2, 24), np.float32)}
    feeds |= {name: np.ones((1, 1, 4, 24), np.float32) for name in MOVES}
    for blocks, tokens in ((0, 0), (1, 16)):  # of its four blocks, one is aligned
        feeds[MATRICES] = np.zeros((1, 1, blocks, 24, 24), np.float32)
        outputs = session.run(products, feeds)
        assert [output.size for output in outputs] == [3 * 2 * tokens * 24]


@pytest.mark.parametrize("int8", ["dynamic", "static"])
def test_int8_is_close_and_a_model_of_its_own(model: fozo.Engine, photographs: Path, tmp_path: Path, int8: str) -> None:
    path = tmp_path / "model.onnx"
    spec = export(model, path, int8=int8, calibration=photographs if int8 == "static" else None)
    assert spec.fingerprint.startswith(f"{model.spec.fingerprint}-int8{int8[0]}")
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    written = onnx.load(path)
    assert not linear_layers(written)  # every one of them became INT8 ...
    types = {tensor.name: tensor.data_type for tensor in written.graph.initializer}
    assert onnx.TensorProto.INT8 in types.values()
    assert types["patch_embed.proj.weight"] == onnx.TensorProto.FLOAT  # ... and nothing else
    engine = fozo.load_engine(path)
    assert engine.spec == spec
    images = random_images(6).clip(-1, 1)  # as calibrated: pixels in [0, 1], normalised by 0.5 and 0.5
    for knobs in (NO_KNOBS, Knobs(prompts=0.1 * np.random.default_rng(0).standard_normal((2, 3, 24)))):
        assert 1e-4 < error(model, engine, images, knobs) < 0.08
    source = fozo.calibrate(model, [images])
    refuses("collect them again with this model", fozo.FOZO, engine, source)
    own = fozo.calibrate(engine, [images])
    np.testing.assert_array_equal(fozo.FOZO(engine, own)(images), fozo.FOZO(engine, own)(images))


def test_the_real_vit_tiny_has_one_fragile_layer(real_weights: Path) -> None:
    engine = fozo.load_engine(real_weights)
    assert isinstance(engine, TorchEngine)
    assert fragile_layers(engine.vit, engine.spec) == ["blocks.7.mlp.fc2"]


def test_what_cannot_be_exported_is_refused(model: fozo.Engine, photographs: Path, tmp_path: Path) -> None:
    def refused(message: str, engine: fozo.Engine = model, name: str = "model.onnx", **options: object) -> None:
        refuses(message, export, engine, tmp_path / name, **options)

    refused("must end in .onnx", name="model.bin")
    refused("there is no folder", name="nowhere/model.onnx")
    refused("'dynamic' or 'static'", int8="int4")
    refused("needs clean images", int8="static")
    refused("used by static INT8 only", int8="dynamic", calibration=photographs)
    refused("used by static INT8 only", calibration=photographs)
    refused("no file or folder", int8="static", calibration=tmp_path / "nothing")
    refused("2 labels were given for the 7 classes", labels=["a", "b"])
    refused("mean and std of .* are unknown", fozo.load_engine(random_vit()), int8="static", calibration=photographs)
    assert not list(tmp_path.iterdir())  # nothing was left behind
    export(model, tmp_path / "model.onnx")
    refused("only a torch model", fozo.load_engine(tmp_path / "model.onnx"))


def test_onnx_is_asked_for_where_it_is_missing(
    model: fozo.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    refuses(r"pip install 'fozo\[export\]'", export, model, tmp_path / "model.onnx")
