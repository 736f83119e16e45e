"""Exported models against the naive pass and the torch engine, on every runtime; and their manners."""

import copy
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
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization

import fozo
from fozo.data import sample
from fozo.engines.onnx import export as module
from fozo.engines.onnx.runtimes import OnnxEngine
from fozo.engines.onnx.schema import FORMAT, MATRICES, METADATA
from fozo.errors import FozoError
from fozo.testing import check_engine
from fozo.types import Knobs, Tap
from tests.engines.conftest import Engines
from tests.engines.test_blackbox import foreign
from tests.helpers import KNOBS, VARIANTS, naive, random_images, random_knobs, random_vit, run
from tests.refusals import refuses


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KNOBS)
@torch.inference_mode()
def test_the_graph_equals_the_naive_pass(
    engines: Engines, variant: str, kind: str, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, vit, engine = VARIANTS[variant], random_vit(VARIANTS[variant]), engines(variant, runtime)
    images = random_images(3, architecture=a)
    knobs = random_knobs(a, 3, 3, kind)
    expected = [naive(vit, a, images, knobs, k) for k in range(knobs.candidates())]
    # One pass a call; candidates cut; images cut; all at once. OpenVINO compiles for every new shape, so it gets one.
    for chunk in (1, 2, 4, 64) if runtime == "onnxruntime" else (4,):
        monkeypatch.setattr(engine, "chunk", chunk)
        taps = run(engine, images, knobs)
        for k, candidate in enumerate(expected):
            for tap, value in candidate.items():
                np.testing.assert_allclose(taps[tap][k], value, atol=2e-5, rtol=2e-5, err_msg=tap.value)


@pytest.mark.parametrize("name", fozo.list_methods(without={"torch", "blocks"}))
def test_methods_predict_what_they_predict_on_torch(engines: Engines, name: str, runtime: str) -> None:
    theirs = fozo.load_engine(random_vit(), mean=0.5, std=0.1)
    ours = copy.copy(engines("plain", runtime)).adjust(None, mean=theirs.spec.mean, std=theirs.spec.std)
    assert ours.spec == theirs.spec  # so that statistics and states go from one engine to the other
    source = fozo.calibrate(theirs, [random_images(32, seed=100 + i) for i in range(3)])
    first, second = (fozo.create(name, engine, source) for engine in (theirs, ours))
    for seed in range(5):
        images = random_images(8, seed=seed)
        expected, got = first(images), second(images)
        np.testing.assert_allclose(got, expected, atol=1e-3, rtol=1e-3)
        np.testing.assert_array_equal(got.argmax(axis=1), expected.argmax(axis=1))


def test_the_same_seed_gives_the_same_bits(exported: Callable[..., Path], source: fozo.Statistics) -> None:
    outputs = []
    for threads in (1, 2, 2):
        method = fozo.FOZO(OnnxEngine(exported("plain"), threads=threads, chunk=3), source, passes=4, seed=7)
        outputs.append(np.stack([method(random_images(5, seed=seed)) for seed in range(3)]))
    np.testing.assert_array_equal(outputs[0], outputs[1])
    np.testing.assert_array_equal(outputs[1], outputs[2])


def test_calls_are_made_side_by_side(exported: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = OnnxEngine(exported("plain"), threads=2, chunk=2)
    together = threading.Barrier(2, timeout=20)  # broken unless two calls are under way at once
    execute = engine.execute

    def meeting(*call: Any) -> Any:
        together.wait()
        return execute(*call)

    batch = engine.check(random_images(8))
    expected = engine.run(batch)[Tap.LOGITS]
    monkeypatch.setattr(engine, "execute", meeting)
    np.testing.assert_array_equal(engine.run(batch)[Tap.LOGITS], expected)

    def failing(*call: Any) -> Any:
        raise FozoError("a call went wrong")

    monkeypatch.setattr(engine, "execute", failing)
    refuses("a call went wrong", engine.run, batch)


def test_a_batch_of_another_model_is_refused(engines: Engines) -> None:
    batch = engines("gray_oblong", "onnxruntime").check(random_images(3, architecture=VARIANTS["gray_oblong"]))
    refuses("another engine", engines("plain", "onnxruntime").run, batch)


def test_options_of_load_engine(exported: Callable[..., Path]) -> None:
    path = exported("plain")
    whole = fozo.load_engine(path)
    some = fozo.load_engine(path, classes=[5, 2], mean=0.5, std=(0.5, 0.25, 1.0))
    assert some.spec.classes == 2 and some.spec.subset == (5, 2) and some.spec.fingerprint == whole.spec.fingerprint
    assert some.spec.mean == (0.5, 0.5, 0.5) and some.spec.std == (0.5, 0.25, 1.0)
    pooled = random_images(1).reshape(-1, 24)[:4]
    np.testing.assert_allclose(some.head()(pooled), whole.head()(pooled)[:, [5, 2]], rtol=1e-6)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"classes": [1, 1]}, "distinct indices below 7"),
        ({"heads": 3}, "exported model"),
        ({"threads": 0}, "is 0; give a whole number from 1 up"),
        ({"chunk": 0}, "is 0; give a whole number from 1 up"),
        ({"runtime": "tensorrt"}, "'onnxruntime' or 'openvino'"),
    ]
    for options, message in wrong:
        refuses(message, fozo.load_engine, path, **options)


def test_files_that_cannot_be_run_are_refused(exported: Callable[..., Path], tmp_path: Path, runtime: str) -> None:
    good = exported("plain").read_bytes()
    path = tmp_path / "model.onnx"

    def refused(message: str) -> None:
        refuses(message, fozo.load_engine, path, runtime=runtime)

    refused("there is no file")
    foreign(path, ["N", 3, 16, 16])
    if runtime == "openvino":
        refused("cannot run a black box")
    refuses(r"without fozo's prompt inputs.*fozo export MODEL.*use it as a black box", OnnxEngine, path)
    for bad in (b"", b"not a model at all", good[: len(good) // 2], good[:-1]):
        path.write_bytes(bad)
        refused("model.onnx (is not a readable ONNX model|is an ONNX model without|holds damaged metadata)")
    model = onnx.load(exported("plain"))
    metadata = json.loads(model.metadata_props[0].value)
    helper.set_model_props(model, {METADATA: json.dumps({**metadata, "format": FORMAT + 1})})
    path.write_bytes(model.SerializeToString())
    refused(f"has format {FORMAT + 1}.*upgrade fozo")


def test_runs_where_torch_cannot_be_imported(exported: Callable[..., Path], tmp_path: Path) -> None:
    """Everything forward-only, in a process that has neither torch nor onnx."""
    statistics = tmp_path / "source.safetensors"
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
engine = fozo.load_engine({str(exported("plain"))!r}, threads=1, mean=0.5, std=0.1)
draw = np.random.default_rng(0)
batch = lambda: draw.standard_normal((8, *engine.spec.image_shape)).astype(np.float32)
source = fozo.calibrate(engine, [batch() for _ in range(3)])
source.save({str(statistics)!r})
for name in fozo.list_methods():
    try:
        method = fozo.create(name, engine, source)
    except fozo.FozoError as error:  # those that train or change weights
        assert "torch" in str(error).lower(), error
    else:
        assert method(batch()).shape == (8, engine.spec.classes)
        print(name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == set(fozo.list_methods(without={"torch", "blocks"}))
    assert fozo.Statistics.load(statistics).images == 24


def test_openvino_is_asked_for_where_it_is_missing(
    exported: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    refuses(r"pip install 'fozo\[openvino\]'", fozo.load_engine, exported("plain"), runtime="openvino")


def test_labels_follow_a_restricted_head(tmp_path: Path) -> None:
    fozo.export(fozo.load_engine(random_vit()), tmp_path / "model.onnx", labels="abcdefg")
    assert fozo.load_engine(tmp_path / "model.onnx").spec.labels == tuple("abcdefg")
    assert fozo.load_engine(tmp_path / "model.onnx", classes=[4, 0]).spec.labels == ("e", "a")


def test_a_model_beyond_one_file_keeps_its_weights_beside_it(
    engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    whole, path = engines("plain", runtime), tmp_path / "large.onnx"
    monkeypatch.setattr(module, "ONE_FILE_BYTES", 1000)
    fozo.export(fozo.load_engine(random_vit()), path)
    (data,) = tmp_path.glob("*.data")
    assert sorted(tmp_path.iterdir()) == [path, data]
    split = fozo.load_engine(path, runtime=runtime)
    images = random_images(2)
    expected, found = (run(engine, images) for engine in (whole, split))
    for tap, value in expected.items():
        np.testing.assert_array_equal(found[tap], value)
    content = bytearray(data.read_bytes())
    content[100] ^= 1
    data.write_bytes(content)
    edited = fozo.load_engine(path, runtime=runtime)
    assert edited.spec.fingerprint.startswith(f"{split.spec.fingerprint}-edited-")


def same_logits(path: Path, expected: fozo.Engine, images: np.ndarray) -> None:
    found, wanted = (run(engine, images)[Tap.LOGITS] for engine in (fozo.load_engine(path), expected))
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_an_old_graph_never_reads_new_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large model is exported over another one, and the machine dies between the moves of its two files."""
    monkeypatch.setattr(module, "ONE_FILE_BYTES", 1000)
    path, images = tmp_path / "large.onnx", random_images(2)
    first, second = fozo.load_engine(random_vit()), fozo.load_engine(random_vit(seed=1))
    fozo.export(first, path)
    (data,) = tmp_path.glob("*.data")
    move = Path.replace

    def dies(self: Path, target: Path) -> Path:
        if target == path:
            raise OSError("the power went")
        return move(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", dies)
        with pytest.raises(OSError, match="the power went"):
            fozo.export(second, path)
    same_logits(path, first, images)
    fozo.export(second, path)
    same_logits(path, second, images)
    (left,) = tmp_path.glob("*.data")  # of its own name; the old one is gone
    assert left.name != data.name
    fozo.export(second, path)
    assert sorted(tmp_path.iterdir()) == [path, left]


def test_a_model_that_a_user_quantised_is_one_of_its_own(exported: Callable[..., Path], tmp_path: Path) -> None:
    """Not the float32 model whose metadata it inherited: statistics of that one must be refused."""
    plain = fozo.load_engine(exported("plain"))
    files = [tmp_path / "one.onnx", tmp_path / "other.onnx"]
    quantization.quantize_dynamic(exported("plain"), files[0], op_types_to_quantize=["MatMul"])
    quantization.quantize_dynamic(exported("plain"), files[1], op_types_to_quantize=["MatMul"], per_channel=True)
    engines = [fozo.load_engine(file) for file in files]
    specs = [engine.spec for engine in engines]
    assert len({plain.spec.fingerprint, *(spec.fingerprint for spec in specs)}) == 3
    for spec in specs:
        assert spec.fingerprint.startswith(f"{plain.spec.fingerprint}-int8-")
    source = fozo.calibrate(plain, [random_images(4)])
    refuses("collect them again with this model", fozo.Align, engines[0], source)
    pytest.importorskip("openvino")
    assert fozo.load_engine(files[0], runtime="openvino").spec == specs[0]  # whatever runs it


@pytest.mark.parametrize(("runtime", "int8"), [("onnxruntime", None), ("onnxruntime", "dynamic"), ("openvino", None)])
def test_edited_weights_are_another_model(tmp_path: Path, runtime: str, int8: str | None) -> None:
    """Training an exported model leaves its metadata; statistics of the old weights must be refused."""
    pytest.importorskip(runtime)
    path = tmp_path / "model.onnx"
    spec = fozo.export(fozo.load_engine(random_vit()), path, int8=int8)
    assert fozo.load_engine(path, runtime=runtime).spec == spec
    source = fozo.calibrate(fozo.load_engine(path), [random_images(8)])
    model = onnx.load(path)
    onnx.save(model, path)  # written again, but not edited
    assert fozo.load_engine(path, runtime=runtime).spec == spec
    weights = next(t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT and len(t.raw_data) > 400)
    weights.raw_data = (np.frombuffer(weights.raw_data, np.float32) * np.float32(1.01)).tobytes()
    onnx.save(model, path)
    edited = fozo.load_engine(path, runtime=runtime)
    assert edited.spec.fingerprint.startswith(f"{spec.fingerprint}-")
    refuses("collect them again with this model", fozo.Align, edited, source)


def test_files_without_matrices_work_as_before(exported: Callable[..., Path], tmp_path: Path, runtime: str) -> None:
    """Files of format 1 have neither the input nor the output."""
    model = onnx.load(exported("plain"))
    graph = model.graph
    inputs = [value for value in graph.input if value.name != MATRICES]
    outputs = [value for value in graph.output if value.name != Tap.PATCH_MOMENTS.value]
    del graph.input[:], graph.output[:]
    graph.input.extend(inputs)
    graph.output.extend(outputs)
    identity = np.eye(24, dtype=np.float32)[None, None, None]
    graph.initializer.append(numpy_helper.from_array(identity, MATRICES))
    metadata = json.loads(model.metadata_props[0].value)
    helper.set_model_props(model, {METADATA: json.dumps({**metadata, "format": 1})})
    onnx.save(model, tmp_path / "old.onnx")
    old = fozo.load_engine(tmp_path / "old.onnx", runtime=runtime)
    new = fozo.load_engine(exported("plain"), runtime=runtime)
    assert new.abilities - old.abilities == {"matrices"}
    check_engine(old)
    batch = random_images(2)
    knobs = random_knobs(VARIANTS["plain"], 3, 2, "moves")
    expected = run(new, batch, knobs)
    for tap, values in run(old, batch, knobs).items():
        np.testing.assert_allclose(values, expected[tap], atol=1e-5)
    matrices = random_knobs(VARIANTS["plain"], 1, 2, "matrices").matrices
    refuses("export the model again", old.run, old.check(batch), Knobs(matrices=matrices))


def test_the_identity_changes_no_bit(engines: Engines, runtime: str) -> None:
    engine = engines("plain", runtime)
    batch = engine.check(random_images(5))
    identity = np.eye(24)[None, None, None]
    plain = engine.run(batch)[Tap.LOGITS]
    np.testing.assert_array_equal(engine.run(batch, Knobs(matrices=identity))[Tap.LOGITS], plain)


def test_the_bundled_models_are_checked_too(tmp_path: Path) -> None:
    for path in sample.MODELS.values():
        whole = path.read_bytes()
        weights = max((tensor.raw_data for tensor in onnx.load(path).graph.initializer), key=len)
        middle = whole.index(weights) + len(weights) // 2
        edited = tmp_path / path.name
        edited.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        before, after = (fozo.load_engine(each, threads=1).spec.fingerprint for each in (path, edited))
        assert after.startswith(f"{before}-")
