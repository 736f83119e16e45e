"""Any model at all as an engine: modules, functions, files of other programs."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import PIL.Image
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import fozo
from fozo.engines.blackbox import UNNAMED, black_box
from fozo.engines.onnx.runtimes import ForeignGraph
from fozo.testing import check_engine
from fozo.types import Knobs, Tap
from tests.helpers import random_images
from tests.refusals import refuses

CLASSES = 7
WEIGHTS = np.random.default_rng(0).standard_normal((3 * 16 * 16, CLASSES)).astype(np.float32) / 10


def network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(784, 7)).eval()


def linear(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1) @ WEIGHTS


@pytest.mark.parametrize("kind", ["function", "module", "file"])
def test_a_folder_calibrates_any_model_in_one_line(kind: str, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """As the README prints it: size of the clean images, pixels in [0, 1], no warning."""
    seen = []

    def detect(images: np.ndarray) -> list[int]:
        seen.append((images.shape, float(images.min()), float(images.max())))
        return [3] * len(images)

    size = (24, 16) if kind == "function" else (16, 16)
    frames = write_frames(tmp_path / "clean", 6, size=size)
    model: Any = {"function": lambda: detect, "module": network}.get(
        kind, lambda: foreign(tmp_path / "m.onnx", [1, 3, None, None])
    )()
    adapter = fozo.adapter(model, tmp_path / "clean")
    answer: Any = adapter(frames[:2])
    assert adapter.engine.spec.image_size == size and not recwarn.list
    if kind == "function":
        assert answer == [3, 3] and seen[0][0] == (2, 3, *size) and 0 <= seen[0][1] < 0.2 < 0.8 < seen[0][2] <= 1
    else:
        assert answer.shape == (2, CLASSES)
    PIL.Image.new("RGB", (20, 20)).save(tmp_path / "clean" / "another.png")
    refuses(
        r"states no image size and the clean images have several \(.*20x20.* px\)",
        fozo.adapter,
        detect,
        tmp_path / "clean",
    )


def write_frames(folder: Path, count: int, size: tuple[int, int]) -> list[PIL.Image.Image]:
    folder.mkdir()
    images = [PIL.Image.fromarray(p) for p in np.random.default_rng(0).integers(0, 256, (count, *size, 3), np.uint8)]
    for i, image in enumerate(images):
        image.save(folder / f"{i}.png")
    return images


def foreign(path: Path, shape: list[Any], outputs: int = 1, kind: int = TensorProto.FLOAT, boxes: bool = False) -> Path:
    """A file like those of other programs: flat images times weights, once for each output."""
    values = [numpy_helper.from_array(WEIGHTS, "w"), numpy_helper.from_array(np.array([-1, 768]), "flat")]
    source, nodes = "pixels", []
    if kind != TensorProto.FLOAT:
        nodes.append(helper.make_node("Cast", [source], ["float"], to=TensorProto.FLOAT))
        source = "float"
    if shape[3] == 3:
        nodes.append(helper.make_node("Transpose", [source], ["first"], perm=[0, 3, 1, 2]))
        source = "first"
    nodes.append(helper.make_node("Reshape", [source, "flat"], ["x"]))
    results = []
    for i in range(outputs):
        nodes.append(helper.make_node("MatMul", ["x", "w"], [f"y{i}"]))
        if boxes:
            nodes[-1].output[0] = "m"
            nodes.append(helper.make_node("ReduceSum", ["m"], ["y0"], keepdims=0))
        results.append(helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, None))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("pixels", kind, shape)], results, initializer=values
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 9
    onnx.save(model, path)
    return path


def test_a_module_a_function_and_a_file_keep_every_promise(tmp_path: Path) -> None:
    check_engine(black_box(network(), image_size=16))
    check_engine(black_box(linear, image_size=(16, 16), mean=0.5, std=0.25))
    check_engine(black_box(foreign(tmp_path / "a.onnx", ["N", 3, 16, 16]), threads=1))


def test_what_is_not_given_is_taken_from_the_first_batch() -> None:
    engine = black_box(linear)
    assert engine.spec.image_size == (0, 0) and engine.spec.classes == 0
    for bad in (random_images(2)[0], np.full((2, 3, 16, 16), np.nan), random_images(2).transpose(0, 2, 3, 1)):
        with pytest.raises(fozo.FozoError):
            engine.check(bad)
    assert engine.spec.image_size == (0, 0)  # a refused batch changes nothing
    engine.run(engine.check(random_images(2)))
    assert engine.spec.image_size == (16, 16) and engine.spec.classes == CLASSES
    refuses(r"reads float images of shape \[B, 3, 16, 16\]", engine.check, random_images(2)[:, :, :8])


def test_a_module_gets_tensors_and_a_function_what_came() -> None:
    images, seen = random_images(2), list[Any]()

    def model(batch: Any) -> Any:
        seen.append(batch)
        return batch.reshape(len(batch), -1)

    engine = black_box(model)
    engine.run(engine.check(images))
    assert seen.pop() is images  # not even a copy
    given = torch.from_numpy(images).double()
    engine.run(engine.check(given))
    assert seen.pop() is given
    changed = engine.check(given).with_images(images + 1)
    engine.run(changed)
    assert isinstance(seen[-1], torch.Tensor) and seen[-1].dtype == torch.float64
    for takes, kind in (("torch", torch.Tensor), ("numpy", np.ndarray)):
        engine = black_box(model, takes=takes)
        for batch in (images, given):
            engine.run(engine.check(batch))
            assert isinstance(seen[-1], kind)
    module = network()
    with torch.no_grad():
        expected = module(torch.from_numpy(images)).numpy()
    engine = black_box(module)
    for batch in (images, torch.from_numpy(images), torch.from_numpy(images).double()):
        logits = engine.run(engine.check(batch))[Tap.LOGITS][0]
        np.testing.assert_allclose(logits, expected, rtol=1e-5)


def test_fingerprints_distinguish_weights_files_and_names(tmp_path: Path) -> None:
    def of(*arguments: Any, **options: Any) -> str:
        return black_box(*arguments, **options).spec.fingerprint

    assert of(network()) == of(network()) == of(network().double()) != of(network(1))
    other = network()
    other[2].num_batches_tracked.add_(1)  # type: ignore[operator]
    assert of(other) != of(network())
    assert of(linear) == UNNAMED and of(linear, name="a") == of(lambda x: x, name="a") != of(linear, name="b")
    one, two = (foreign(tmp_path / name, ["N", 3, 16, 16], n) for name, n in (("a.onnx", 1), ("b.onnx", 2)))
    assert of(one) != of(two) and black_box(one).spec.name == "a"


def test_files_of_every_layout(tmp_path: Path) -> None:
    images = random_images(5)
    expected = linear(images)
    layouts: dict[str, tuple[list[Any], int]] = {
        "last": (["N", 16, 16, 3], TensorProto.FLOAT),
        "one": ([1, 3, 16, 16], TensorProto.FLOAT),
        "two": ([2, 3, 16, 16], TensorProto.FLOAT),
        "open": (["N", "C", "H", "W"], TensorProto.FLOAT),
        "half": (["N", 3, 16, 16], TensorProto.FLOAT16),
    }
    for name, (shape, kind) in layouts.items():
        engine = black_box(foreign(tmp_path / f"{name}.onnx", shape, kind=kind), threads=1)
        logits = engine.run(engine.check(torch.from_numpy(images)))[Tap.LOGITS][0]
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=2e-2 if name == "half" else 1e-4, err_msg=name)
    both = black_box(foreign(tmp_path / "both.onnx", ["N", 3, 16, 16], outputs=2), threads=1)
    answer = both.answer(both.check(images))
    assert isinstance(answer, dict) and list(answer) == ["y0", "y1"]
    refuses("returned dict and no logits", both.run, both.check(images))


def test_refusals_say_what_to_do(tmp_path: Path) -> None:
    good = foreign(tmp_path / "good.onnx", ["N", 3, 16, 16])
    (tmp_path / "bad.onnx").write_bytes(good.read_bytes()[:-50])
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (5, {}, "int cannot be called; give a function"),
        (network().train(), {}, r"in training mode.*call model.eval\(\)"),
        (linear, {"takes": "jax"}, "takes must be 'torch' or 'numpy'"),
        (linear, {"image_size": (3,)}, "image_size must be"),
        (linear, {"threads": 2}, "threads= is for .onnx files"),
        (linear, {"mean": 123.0}, "looks like 0..255 units"),
        (tmp_path / "model.pt", {}, "is not an .onnx file"),
        (tmp_path / "no.onnx", {}, "there is no file"),
        (tmp_path / "bad.onnx", {}, "not a readable ONNX model"),
        (good, {"image_size": 32}, r"takes images of \(16, 16\), not of \(32, 32\)"),
        (foreign(tmp_path / "int.onnx", ["N", 3, 16, 16], kind=TensorProto.UINT8), {}, "wrap it in a function"),
    ]
    for model, options, sentence in cases:
        refuses(sentence, black_box, model, **options)
    single = ForeignGraph(foreign(tmp_path / "sum.onnx", [1, 3, 16, 16], boxes=True), threads=1)
    assert np.ndim(np.asarray(single(random_images(1)))) == 0
    refuses("give it batches of 1", single, random_images(2))
    engine = black_box(good)
    batch = engine.check(random_images(2))
    for call, sentence in (
        (lambda: engine.run(batch, taps=(Tap.CLS,)), "'cls' cannot be read"),
        (lambda: engine.run(batch, Knobs(prompts=np.zeros((2, 1, 3)))), "its tokens cannot be moved"),
        (engine.head, "head cannot be read"),
        (lambda: engine.run(list(batch.images)), "another engine's"),  # type: ignore[arg-type]
    ):
        refuses(sentence, call)
    wavering = iter((3, 4))
    engine = black_box(lambda images: np.zeros((len(images), next(wavering))))
    engine.run(engine.check(random_images(2)))
    refuses("4 logits for each image, where it has 3", engine.run, engine.check(random_images(2)))
