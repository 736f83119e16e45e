"""Exported models against the naive pass and the torch engine, on every runtime; and their manners."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import fozo
from fozo.engines.base import Knobs
from fozo.engines.export import export, write_model
from fozo.engines.graph_engine import GraphEngine
from fozo.engines.graph_file import FORMAT, METADATA
from fozo.engines.onnx_engine import OnnxEngine
from fozo.errors import FozoError
from tests.helpers import KNOBS, SMALL, VARIANTS, naive, random_images, random_knobs, random_vit

RUNTIMES = ("onnxruntime", "openvino")


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Files of the variants of the small random ViT, each written once."""
    folder = tmp_path_factory.mktemp("exported")

    def path(variant: str) -> Path:
        file = folder / f"{variant}.onnx"
        if not file.exists():
            export(fozo.load_engine(random_vit(VARIANTS[variant])), file)
        return file

    return path


@pytest.fixture(scope="session")
def engines(exported: Callable[[str], Path]) -> Callable[[str, str], GraphEngine]:
    """Engines on them, each opened once."""
    opened: dict[tuple[str, str], GraphEngine] = {}

    def engine(variant: str, runtime: str) -> GraphEngine:
        if (variant, runtime) not in opened:
            if runtime == "openvino":
                pytest.importorskip("openvino")
            made = fozo.load_engine(exported(variant), runtime=runtime, threads=1)
            assert isinstance(made, GraphEngine)
            opened[variant, runtime] = made
        return opened[variant, runtime]

    return engine


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KNOBS)
@torch.inference_mode()
def test_the_graph_equals_the_naive_pass(
    engines: Callable[[str, str], GraphEngine], variant: str, kind: str, runtime: str
) -> None:
    a, vit, engine = VARIANTS[variant], random_vit(VARIANTS[variant]), engines(variant, runtime)
    images = random_images(3, architecture=a)
    knobs = random_knobs(a, 3, 3, kind)
    expected = [naive(vit, a, images, knobs, k) for k in range(knobs.candidates())]
    for chunk in (1, 2, 4, 64):  # one pass a call; candidates cut; images cut; all at once
        engine.chunk = chunk
        taps = engine.run(engine.embed(images), knobs, patch_moments=True)
        for k, candidate in enumerate(expected):
            for name, value in candidate.items():
                np.testing.assert_allclose(getattr(taps, name)[k], value, atol=2e-5, rtol=2e-5, err_msg=name)
    head = vit.head(torch.from_numpy(taps.pooled)).numpy()
    np.testing.assert_allclose(engine.logits(taps.pooled), head, atol=1e-5, rtol=1e-5)


def test_moments_come_only_when_asked_for(engines: Callable[[str, str], GraphEngine]) -> None:
    engine = engines("plain", "onnxruntime")
    taps = engine.run(engine.embed(random_images(2)))
    assert taps.patch_mean is None and taps.patch_variance is None


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", ["noadapt", "fozo", "foa", "lame", "t3a"])
def test_methods_predict_what_they_predict_on_torch(
    engines: Callable[[str, str], GraphEngine], name: str, runtime: str
) -> None:
    theirs, ours = fozo.load_engine(random_vit()), engines("plain", runtime)
    assert ours.spec == theirs.spec  # so that statistics and states go from one engine to the other
    source = fozo.SourceStatistics.collect(theirs, [random_images(32, seed=100 + i) for i in range(3)])
    info = fozo.methods()[name]
    first, second = (fozo.create(name, engine, source if info.needs_source else None) for engine in (theirs, ours))
    for seed in range(5):
        images = random_images(8, seed=seed)
        expected, got = first(images), second(images)
        np.testing.assert_allclose(got, expected, atol=1e-3, rtol=1e-3)
        np.testing.assert_array_equal(got.argmax(axis=1), expected.argmax(axis=1))


def test_statistics_are_those_of_torch(
    engines: Callable[[str, str], GraphEngine], source: fozo.SourceStatistics
) -> None:
    engine = engines("plain", "onnxruntime")
    ours = fozo.SourceStatistics.collect(engine, [random_images(32, seed=100 + i) for i in range(3)])
    for name in source.PARTS:
        one, other = getattr(ours, name), getattr(source, name)
        assert one.count == other.count
        np.testing.assert_allclose(one.mean, other.mean, atol=1e-5)
        np.testing.assert_allclose(one.std, other.std, atol=1e-5)


def test_the_same_seed_gives_the_same_bits(exported: Callable[[str], Path], source: fozo.SourceStatistics) -> None:
    outputs = []
    for threads in (1, 2, 2):
        method = fozo.FOZO(OnnxEngine(exported("plain"), threads=threads, chunk=3), source, passes=4, seed=7)
        outputs.append(np.stack([method(random_images(5, seed=seed)) for seed in range(3)]))
    np.testing.assert_array_equal(outputs[0], outputs[1])
    np.testing.assert_array_equal(outputs[1], outputs[2])


def test_calls_are_made_side_by_side(exported: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = OnnxEngine(exported("plain"), threads=2, chunk=2)
    together = threading.Barrier(2, timeout=20)  # broken unless two calls are under way at once
    execute = engine.execute

    def meeting(*call: Any) -> Any:
        together.wait()
        return execute(*call)

    tokens = engine.embed(random_images(8))
    expected = engine.run(tokens).pooled
    monkeypatch.setattr(engine, "execute", meeting)
    np.testing.assert_array_equal(engine.run(tokens).pooled, expected)

    def failing(*call: Any) -> Any:
        raise FozoError("a call went wrong")

    monkeypatch.setattr(engine, "execute", failing)
    with pytest.raises(FozoError, match="a call went wrong"):
        engine.run(tokens)


def test_torch_in_torch_out(engines: Callable[[str, str], GraphEngine]) -> None:
    method = fozo.NoAdapt(engines("plain", "onnxruntime"))
    images = random_images(2)
    output = method(torch.from_numpy(images).requires_grad_())
    assert isinstance(output, torch.Tensor) and output.dtype == torch.float32
    np.testing.assert_array_equal(output.numpy(), method(images))
    half = method(torch.from_numpy(images).bfloat16())
    np.testing.assert_allclose(half.numpy(), output.numpy(), atol=0.3)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 3, 16, 15), np.float32), "resize the images"),
        (np.zeros((0, 3, 16, 16), np.float32), "no images"),
        (np.zeros((2, 3, 16, 16), np.uint8), "normalise on uint8"),
        (np.where(np.arange(3)[:, None, None, None] == 1, np.nan, np.zeros((3, 3, 16, 16))), "image 1 of the batch"),
        (np.full((1, 3, 16, 16), 1e300), "image 0 of the batch"),  # finite, but not in float32
    ],
)
def test_bad_images_are_refused_as_on_torch(
    engine: fozo.Engine, engines: Callable[[str, str], GraphEngine], images: np.ndarray, message: str
) -> None:
    sentences = []
    for one in (engine, engines("plain", "onnxruntime")):
        with pytest.raises(FozoError, match=message) as caught:
            one.embed(images)
        sentences.append(str(caught.value))
    assert sentences[0] == sentences[1]


def test_bad_knobs_and_foreign_tokens_are_refused(
    engine: fozo.Engine, engines: Callable[[str, str], GraphEngine]
) -> None:
    ours = engines("plain", "onnxruntime")
    with pytest.raises(FozoError, match="prompts have shape"):
        ours.run(ours.embed(random_images(3)), Knobs(prompts=np.zeros((2, 3, 5))))
    with pytest.raises(FozoError, match="another engine"):
        ours.run(engine.embed(random_images(3)))
    oblong = engines("gray_oblong", "onnxruntime")
    with pytest.raises(FozoError, match="another image size"):
        ours.run(oblong.embed(random_images(3, architecture=VARIANTS["gray_oblong"])))


def test_options_of_load_engine(exported: Callable[[str], Path]) -> None:
    path = exported("plain")
    whole = fozo.load_engine(path)
    some = fozo.load_engine(path, classes=[5, 2], mean=0.5, std=(0.5, 0.25, 1.0))
    assert some.spec.classes == 2 and some.spec.subset == (5, 2) and some.spec.fingerprint == whole.spec.fingerprint
    assert some.spec.mean == (0.5, 0.5, 0.5) and some.spec.std == (0.5, 0.25, 1.0)
    pooled = random_images(1).reshape(-1, 24)[:4]
    np.testing.assert_allclose(some.logits(pooled), whole.logits(pooled)[:, [5, 2]], rtol=1e-6)
    for options, message in (
        ({"classes": [1, 1]}, "distinct"),
        ({"classes": [7]}, "below 7"),
        ({"heads": 3}, "exported model"),
        ({"dtype": "float32"}, "exported model"),
        ({"threads": 0}, "at least 1"),
        ({"chunk": 0}, "at least 1"),
        ({"runtime": "tensorrt"}, "'onnxruntime' or 'openvino'"),
    ):
        with pytest.raises(FozoError, match=message):
            fozo.load_engine(path, **options)
    with pytest.raises(FozoError, match="runs in PyTorch"):
        fozo.load_engine(random_vit(), threads=2)


def plain_classifier(path: Path) -> None:
    """What other exporters write."""
    node = helper.make_node("Flatten", ["input"], ["logits"])
    images = helper.make_tensor_value_info("input", TensorProto.FLOAT, ["B", 3, 4, 4])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["B", 48])
    graph = helper.make_graph([node], "classifier", [images], [logits])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    path.write_bytes(model.SerializeToString())


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_files_that_cannot_be_run_are_refused(exported: Callable[[str], Path], tmp_path: Path, runtime: str) -> None:
    if runtime == "openvino":
        pytest.importorskip("openvino")
    good = exported("plain").read_bytes()
    path = tmp_path / "model.onnx"

    def refused(message: str) -> None:
        with pytest.raises(FozoError, match=message):
            fozo.load_engine(path, runtime=runtime)

    refused("there is no file")
    plain_classifier(path)
    refused("without fozo's prompt inputs.*fozo export MODEL")
    for bad in (b"", b"not a model at all", good[: len(good) // 2], good[:-1]):
        path.write_bytes(bad)
        refused("model.onnx (is not a readable ONNX model|is an ONNX model without|holds damaged metadata)")
    model = onnx.load(exported("plain"))
    metadata = json.loads(model.metadata_props[0].value)
    for content, message in (
        ({**metadata, "format": FORMAT + 1}, f"has format {FORMAT + 1}.*upgrade fozo"),
        ({"format": FORMAT}, "damaged metadata"),
        ({**metadata, "spec": {"name": "half"}}, "damaged metadata"),
    ):
        helper.set_model_props(model, {METADATA: json.dumps(content)})
        path.write_bytes(model.SerializeToString())
        refused(message)


def test_runs_where_torch_cannot_be_imported(exported: Callable[[str], Path], tmp_path: Path) -> None:
    """Everything forward-only, in a process that has neither torch nor onnx."""
    statistics = tmp_path / "source.npz"
    code = f"""
import sys
import threading
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "onnx", "timm", "transformers"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import numpy as np
import fozo
engine = fozo.load_engine({str(exported("plain"))!r}, threads=1)
draw = np.random.default_rng(0)
batch = lambda: draw.standard_normal((8, *engine.spec.image_shape)).astype(np.float32)
source = fozo.SourceStatistics.collect(engine, [batch() for _ in range(3)])
source.save({str(statistics)!r})
for name, info in fozo.methods().items():
    try:
        method = fozo.create(name, engine, source if info.needs_source else None)
    except fozo.FozoError as error:  # those that train or change weights
        assert "torch" in str(error).lower(), error
    else:
        assert method(batch()).shape == (8, engine.spec.classes)
        print(name)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert {"noadapt", "fozo", "foa", "lame", "t3a"} <= set(run.stdout.split())
    assert fozo.SourceStatistics.load(statistics).images == 24


def test_openvino_is_asked_for_where_it_is_missing(
    exported: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(FozoError, match=r"pip install 'fozo\[openvino\]'"):
        fozo.load_engine(exported("plain"), runtime="openvino")


def test_gelu_tanh_and_labels(tmp_path: Path) -> None:
    """What no variant has: the third activation, and names of classes that follow a restricted head."""
    from dataclasses import replace

    vit = random_vit(replace(SMALL, activation="gelu_tanh"))
    theirs = fozo.load_engine(vit)
    names = [f"class {i}" for i in range(7)]
    export(theirs, tmp_path / "model.onnx", labels=names)
    ours = fozo.load_engine(tmp_path / "model.onnx")
    assert ours.spec.labels == tuple(names)
    assert fozo.load_engine(tmp_path / "model.onnx", classes=[4, 0]).spec.labels == ("class 4", "class 0")
    images = random_images(3)
    expected, got = (engine.run(engine.embed(images)).pooled for engine in (theirs, ours))
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_a_model_beyond_one_file_keeps_its_weights_beside_it(
    exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fozo.engines.export.ONE_FILE_BYTES", 1000)
    whole = fozo.load_engine(exported("plain"))
    write_model(onnx.load(exported("plain")), whole.spec, tmp_path / "large.onnx")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["large.onnx", "large.onnx.data"]
    split = fozo.load_engine(tmp_path / "large.onnx")
    images = random_images(2)
    for tap in ("cls", "features", "pooled"):
        one, other = (getattr(engine.run(engine.embed(images)), tap) for engine in (whole, split))
        np.testing.assert_array_equal(one, other)
