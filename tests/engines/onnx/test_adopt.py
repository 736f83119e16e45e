"""Transformers that other programs wrote as ONNX: their tokens are found and proved, or it is said why not."""

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper

import fozo
from fozo.engines.blackbox import BlackBoxEngine, black_box
from fozo.engines.onnx.adopt import adopt
from fozo.engines.onnx.runtimes import GraphEngine
from fozo.engines.onnx.stream import Probe, Stream, find_stream
from fozo.engines.tokens import NoTokensError
from fozo.errors import FozoError
from fozo.testing import check_engine
from fozo.types import Knobs, Tap, taps_of
from tests.engines.onnx import zoo
from tests.engines.onnx.zoo import images, random_knobs
from tests.refusals import refuses

OWN = {  # those that fozo converts to its own ViT, too
    "timm ViT", "timm ViT, mean of patches without CLS", "timm ViT, attention pooling (SigLIP)",
    "timm ViT, 4 registers", "timm ViT, pre-norm (CLIP)", "timm ViT, layer scale (DeiT-3)", "transformers ViT, sdpa",
    "transformers DINOv2", "torchvision ViT",
}  # fmt: skip
NOT_FOUND = {
    "timm Swin": "sums, which are not two for each block",
    "transformers Swin": "attends 2 times after the 2 blocks",
    "transformers Swin v2": "not a norm of their tokens alone",
    "transformers DINOv3 under a linear layer": "its graph branches (If)",
    "timm CaiT": "attends 2 times after the 3 blocks",
    "timm XCiT": "9 sums, which are not two for each block",
    "timm ResNet": "not a transformer",
    "timm ConvNeXt": "not a transformer",
}
NO_TORCHSCRIPT = {"timm EVA-02", "timm DINOv3", "transformers DINOv2, registers"}  # its exporter cannot write them
MUTILATED = 40


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Files of the small models, each written once."""
    folder = tmp_path_factory.mktemp("foreign")

    def path(name: str = "timm ViT", writer: str = "TorchScript, opset 17") -> Path:
        file = folder / f"{name}-{writer}.onnx".replace(" ", "_").replace("/", "")
        if not file.exists():
            module = zoo.module(name)
            try:
                if writer == "TorchScript, opset 17":
                    zoo.by_torchscript(module, file, size=zoo.size_of(name))
                else:
                    zoo.WRITERS[writer](module, file)
            except ImportError as error:
                pytest.skip(f"{error.name} is not installed")
        return file

    return path


def answers(path: Path, batch: np.ndarray) -> np.ndarray:
    """What ONNX Runtime makes of a file, image by image."""
    session = onnxruntime.InferenceSession(str(path))
    (value,) = session.get_inputs()
    rows = value.shape[0] if isinstance(value.shape[0], int) else 1
    kind = np.float16 if "float16" in value.type else np.float32
    each = [
        session.run(None, {value.name: np.repeat(image[None], rows, axis=0).astype(kind)})[0][:1] for image in batch
    ]
    return np.concatenate(each).astype(np.float64)


def assert_same_logits(path: Path, engine: fozo.Engine, tolerance: float, batch: np.ndarray | None = None) -> None:
    batch = images() if batch is None else batch
    logits = engine.run(engine.check(batch))[Tap.LOGITS][0].astype(np.float64)
    expected = answers(path, batch)
    if np.allclose(expected.sum(axis=1), 1, atol=1e-5):  # probabilities
        logits = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("name", sorted(zoo.MODULES.keys() - NOT_FOUND.keys() - NO_TORCHSCRIPT))
def test_tokens_are_found_and_every_promise_is_kept(name: str, written: Callable[..., Path]) -> None:
    engine = fozo.load_engine(written(name), threads=1)
    assert isinstance(engine, GraphEngine) and (engine.spec.depth, engine.spec.dim) == (zoo.DEPTH, zoo.WIDTH)
    assert engine.spec.patches == (zoo.SIZE // zoo.PATCH) ** 2
    assert_same_logits(written(name), engine, 1e-5)
    check_engine(engine)


@pytest.mark.parametrize("name", sorted(OWN))
def test_knobs_and_taps_are_those_of_the_converted_module(name: str, written: Callable[..., Path]) -> None:
    adopted = fozo.load_engine(written(name), threads=1)
    module = zoo.module(name)
    own = fozo.load_engine(getattr(module, "model", module))
    assert adopted.spec.class_token == own.spec.class_token
    knobs = random_knobs(own.spec)
    wishes = [Knobs(), knobs]
    if "prompts" in adopted.abilities:
        wishes.append(replace(knobs, prompts=np.random.default_rng(7).standard_normal((2, 3, own.spec.dim))))
    for wish in wishes:
        got = adopted.run(adopted.check(images()), wish, taps_of(adopted))
        expected = own.run(own.check(images()), wish, tuple(Tap))
        for tap in taps_of(adopted):
            scale = np.abs(expected[tap]).max()
            np.testing.assert_allclose(got[tap], expected[tap], rtol=0, atol=2e-5 * scale, err_msg=f"{name}, {tap}")


@pytest.mark.parametrize("writer", sorted(zoo.WRITERS))
def test_whatever_wrote_the_file(writer: str, written: Callable[..., Path]) -> None:
    path = written("timm ViT", writer)
    engine = fozo.load_engine(path, threads=1)
    assert "tokens" in engine.abilities, getattr(engine, "reason", "")
    rough = 0.15 if "INT8" in writer else 2e-2 if "fp16" in writer else 1e-5
    assert_same_logits(path, engine, rough)
    check_engine(engine, tolerance=max(1e-4, 4 * rough))


def test_a_fixed_number_of_tokens_takes_no_prompts(written: Callable[..., Path]) -> None:
    engine = fozo.load_engine(written("timm ViT", "TorchScript, opset 13, one image"), mean=0.5, std=0.5)
    assert engine.abilities == {"tokens", "matrices"}
    source = fozo.calibrate(engine, [images(8)])
    refuses("fixed number of tokens", engine.run, engine.check(images()), Knobs(prompts=np.zeros((1, 2, zoo.WIDTH))))
    refuses("no fixed number of tokens, as fozo export writes it", fozo.FOZO, engine, source)
    assert not {"fozo", "foa"} & set(fozo.describe_model(engine).methods)
    refuses("pea needs to move all tokens between blocks: use a torch engine", fozo.create, "pea", engine, source)


@pytest.mark.parametrize("method", ["neo", "t3a", "lame", "gain"])
def test_rivals_do_on_adopted_graphs_what_they_do_on_converted_ones(method: str, written: Callable[..., Path]) -> None:
    answers = []
    models: tuple[Any, ...] = (written("transformers ViT"), zoo.module("transformers ViT").model)
    for model in models:
        engine = fozo.load_engine(model)
        adapter = fozo.create(method, engine, fozo.calibrate(engine, [images(8)]))
        answers.append(np.concatenate([adapter(images()) for _ in range(3)]))
    adopted, converted = answers
    np.testing.assert_allclose(adopted, converted, rtol=0, atol=1e-4 * np.abs(adopted).max())


@pytest.mark.parametrize("name", sorted(NOT_FOUND))
def test_what_is_no_plain_transformer_stays_a_black_box(name: str, written: Callable[..., Path]) -> None:
    engine = fozo.load_engine(written(name), image_size=None if "Swin" in name else zoo.SIZE, threads=1)
    assert isinstance(engine, BlackBoxEngine) and NOT_FOUND[name] in engine.reason
    assert NOT_FOUND[name] in fozo.describe_model(engine).sentence


@pytest.mark.parametrize(
    "change",
    [
        lambda stream: replace(stream, prefix=0),
        lambda stream: replace(stream, prefix=2),
        lambda stream: replace(stream, tokens=stream.tokens - 1),
        lambda stream: replace(stream, entries=[stream.entries[0], *stream.entries[:2], stream.entries[-1]]),
        lambda stream: replace(stream, head=replace(stream.head, weight=stream.head.weight * 1.001)),
        lambda stream: replace(stream, head=replace(stream.head, bias=stream.head.bias + 0.001)),
    ],
)
def test_a_wrong_finding_does_not_pass_the_proof(
    change: Callable[[Stream], Stream], written: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(model: onnx.ModelProto, probe: Probe) -> Stream:
        return change(find_stream(model, probe))

    monkeypatch.setattr("fozo.engines.onnx.adopt.find_stream", mistaken)
    with pytest.raises(NoTokensError):
        adopt(written())


def test_an_adopted_file_needs_neither_onnx_nor_torch(written: Callable[..., Path], tmp_path: Path) -> None:
    path = written()
    adopted = adopt(path)
    adopted.write(tmp_path / "hers.onnx")
    code = (
        "import sys; sys.modules['onnx'] = sys.modules['torch'] = None; import fozo; "
        "engine = fozo.load_engine(sys.argv[1]); print(engine.spec.fingerprint, sorted(engine.abilities)); "
        "print(fozo.load_engine(sys.argv[2]).reason)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "hers.onnx"), str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"{fozo.load_engine(path).spec.fingerprint} ['matrices', 'prompts', 'tokens']" in result
    assert "pip install 'fozo[export]'" in result


def test_options_are_those_of_other_graphs(written: Callable[..., Path]) -> None:
    path = written()
    engine = fozo.load_engine(path, classes=[1, 4], labels=list("abcdefg"), mean=0.5, std=0.5, architecture="mine")
    assert engine.spec.labels == ("b", "e") and engine.spec.name == "mine"
    plain = fozo.load_engine(path)
    blue_first = fozo.load_engine(path, channels="bgr")
    reversed_images = np.ascontiguousarray(images()[:, ::-1])
    np.testing.assert_allclose(
        blue_first.run(blue_first.check(reversed_images))[Tap.LOGITS], plain.run(plain.check(images()))[Tap.LOGITS]
    )
    refuses(r"takes images of \(32, 32\), not of \(64, 64\)", fozo.load_engine, path, image_size=64)


def test_openvino_runs_it_too(written: Callable[..., Path]) -> None:
    pytest.importorskip("openvino")
    check_engine(fozo.load_engine(written(), runtime="openvino", threads=1), tolerance=1e-3)


def test_external_data_is_part_of_the_fingerprint(written: Callable[..., Path], tmp_path: Path) -> None:
    model = onnx.load(written())
    path = tmp_path / "her.onnx"
    onnx.save_model(model, str(path), save_as_external_data=True, location="her.data", size_threshold=0)
    before = fozo.load_engine(path).spec.fingerprint
    black_box_before = black_box(path).spec.fingerprint
    data = bytearray((tmp_path / "her.data").read_bytes())
    weight = next(
        tensor for tensor in onnx.load(path, load_external_data=False).graph.initializer if len(tensor.dims) == 2
    )
    offset = next(int(entry.value) for entry in weight.external_data if entry.key == "offset")
    data[offset + 2] ^= 1
    (tmp_path / "her.data").write_bytes(data)
    assert fozo.load_engine(path).spec.fingerprint != before
    assert black_box(path).spec.fingerprint != black_box_before


def mutilate(model: onnx.ModelProto, numbers: random.Random) -> None:
    """Break a graph in one of the ways in which graphs are broken."""
    graph = model.graph
    node = numbers.choice([node for node in graph.node if node.input])
    tensor = numbers.choice(list(graph.initializer))
    names = [name for other in graph.node for name in other.output] + [other.name for other in graph.initializer]
    array = numpy_helper.to_array(tensor)
    kind = numbers.randrange(10)
    if kind == 0:
        graph.node.remove(node)
    elif kind == 1:  # skipped
        for other in graph.node:
            other.input[:] = [node.input[0] if name == node.output[0] else name for name in other.input]
    elif kind == 2:
        node.input[numbers.randrange(len(node.input))] = numbers.choice(names)
    elif kind == 3:
        node.output[0] = "another name"
    elif kind == 4 and array.ndim:
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array[:-1]), tensor.name))
    elif kind == 5 and array.dtype.kind == "f":
        noise = np.random.default_rng(numbers.randrange(1000)).standard_normal(array.shape).astype(array.dtype)
        tensor.CopyFrom(numpy_helper.from_array(noise * numbers.choice([1, 1000, np.nan]), tensor.name))
    elif kind == 6:
        node.op_type = numbers.choice(["Relu", "Identity", "Transpose", "Softmax", "Nonsense"])
    elif kind == 7:
        node.input[:] = list(node.input)[::-1]
    elif kind == 8:  # something is added on the way, or tokens are turned round
        name = node.output[0]
        for other in graph.node:
            other.input[:] = [f"{name} changed" if text == name else text for text in other.input]
        graph.node.append(onnx.helper.make_node("Add", [name, numbers.choice(names)], [f"{name} changed"]))
    elif kind == 9:
        side = numbers.choice(list(graph.input[0].type.tensor_type.shape.dim))
        side.dim_value = numbers.choice([1, 2, 16, 64])


@pytest.mark.parametrize("seed", range(MUTILATED))
def test_mutilated_graphs_are_refused_or_right(seed: int, written: Callable[..., Path], tmp_path: Path) -> None:
    numbers = random.Random(seed)
    source = written(numbers.choice(["timm ViT", "timm DeiT, distilled", "transformers ViT", "torchvision ViT"]))
    model = onnx.load(source)
    mutilate(model, numbers)
    path = tmp_path / "broken.onnx"
    onnx.save(model, path)
    if numbers.random() < 0.1:
        path.write_bytes(path.read_bytes()[: numbers.randrange(path.stat().st_size)])
    try:
        engine = fozo.load_engine(path, threads=1)
    except FozoError as error:
        assert "\n" not in str(error)
        return
    if "tokens" in engine.abilities:
        assert_same_logits(path, engine, 1e-4)


def test_a_description_says_what_is_given_up(written: Callable[..., Path]) -> None:
    described: Any = fozo.describe_model(written(), fozo.LoadOptions(mean=0.5, std=0.25))
    assert "align" in described.methods and "tent" not in described.methods and not described.reason
    assert "mean 0.5, std 0.25" in str(described) and "16 patches, width 48, 3 blocks" in str(described)
    with torch.random.fork_rng():
        module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)).eval()
    black = fozo.describe_model(module)
    assert "align" not in black.methods and "equalise" in black.methods and "given up" in str(black)


def test_the_commands_say_what_was_found(written: Callable[..., Path], tmp_path: Path) -> None:
    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fozo", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    result = run("adopt", written(), "-o", tmp_path / "hers.onnx")
    assert result.returncode == 0 and "3 blocks of 16 patches, 7 classes; takes prompts" in result.stdout
    assert "the head reads a class token" in run("model", tmp_path / "hers.onnx").stdout
    refused = run("adopt", written("timm CaiT"), "-o", tmp_path / "not.onnx")
    assert refused.returncode == 2 and "stays a black box, because it attends 2 times" in refused.stderr
    assert not (tmp_path / "not.onnx").exists()
