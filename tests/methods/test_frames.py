"""Frames as OpenCV gives them: any size, blue first, letterboxes, and answers as the detector gave them."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fozo
from fozo.methods.frames import FrameAdapter, floats, picture
from tests.refusals import refuses

HAZE = 0.25
LIGHT = 120


def scenes(count: int, height: int = 48, width: int = 64, seed: int = 0) -> np.ndarray:
    """Frames ``uint8 [n, height, width, 3]``, blue first, with detail at every scale and a cast of blue."""
    rng = np.random.default_rng(seed)
    falling = 1 / (1 + np.hypot(*np.mgrid[:height, :width]))
    down, across = (np.cos(np.pi * np.arange(n)[:, None] * (np.arange(n) + 0.5) / n) for n in (height, width))
    waves = down.T @ (rng.standard_normal((count, 3, height, width)) * falling) @ across
    scaled = 110 + 12 * waves.transpose(0, 2, 3, 1) + np.array([40.0, 0, -40])
    return np.asarray(scaled).clip(0, 255).astype(np.uint8)


def hazy(frames: np.ndarray) -> np.ndarray:
    return np.asarray(HAZE * frames + (1 - HAZE) * LIGHT).astype(np.uint8)


def boxed(frames: np.ndarray, top: int = 8, bottom: int = 8, value: int = 114) -> np.ndarray:
    return np.pad(frames, ((0, 0), (top, bottom), (0, 0), (0, 0)), constant_values=value)


class Detector:
    """Remembers frames, and returns one box, as a float array of one row: not logits."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, frame: Any) -> np.ndarray:
        self.seen.append(frame)
        return np.array([[1.0, 2.0, 3.0, 4.0, len(self.seen)]], dtype=np.float16)


def contrast(frames: np.ndarray) -> float:
    return float(np.std(frames.astype(np.float64), axis=(-3, -2)).mean())


def test_clear_frames_are_left_alone_and_a_hazy_one_gets_its_contrast_back() -> None:
    detector = Detector()
    adapter = fozo.adapter(detector, list(scenes(32)), channels="bgr")
    assert isinstance(adapter, FrameAdapter) and "64x48 px" in repr(adapter)
    for frame in scenes(4, seed=1):
        boxes = adapter(frame)
        assert np.abs(detector.seen[-1].astype(int) - frame).mean() < 2
        assert boxes.dtype == np.float16 and boxes.tolist() == [[1, 2, 3, 4, len(detector.seen)]]
    clear = scenes(32, seed=1)
    adapter(clear)
    assert np.shares_memory(detector.seen[-1], clear)  # the very frames
    faint = hazy(scenes(24, seed=2))
    for frame in faint:
        adapter(frame)
    last = detector.seen[-1]
    assert last.dtype == np.uint8 and last.shape == frame.shape and last.flags.c_contiguous
    assert contrast(last) > 1.5 * contrast(faint[-1])
    cast = last.mean((0, 1)) - faint[-1].mean((0, 1))  # colours are in the order in which they came
    assert np.abs(cast).max() < 3


def test_colours_are_not_exchanged() -> None:
    seen = {}
    for channels in ("bgr", "rgb"):
        detector = Detector()
        order = slice(None, None, -1 if channels == "rgb" else 1)
        adapter = fozo.adapter(detector, list(scenes(32)[..., order]), channels=channels)
        for frame in hazy(scenes(16, seed=2))[..., order]:
            adapter(frame)
        seen[channels] = detector.seen[-1][..., order]
    np.testing.assert_array_equal(seen["bgr"], seen["rgb"])


def test_each_size_has_its_own_memory_behind_one_adapter() -> None:
    detector = Detector()
    clean = [*scenes(16), *scenes(16, 32, 32)]
    adapter = fozo.adapter(detector, clean, channels="bgr")
    assert sorted(adapter.front.adapters) == [(32, 32), (48, 64)]
    mixed = [frame for pair in zip(hazy(scenes(16, seed=3)), scenes(16, 32, 32, seed=4), strict=True) for frame in pair]
    answers = adapter(mixed)
    assert [int(answer[0, 4]) for answer in answers] == list(range(1, 33))
    assert contrast(detector.seen[-2]) > 1.5 * contrast(mixed[-2])  # the hazy camera
    np.testing.assert_array_equal(detector.seen[-1], mixed[-1])  # the clear one
    alone = fozo.adapter(Detector(), list(scenes(16)), channels="bgr")
    alone(mixed[::2])
    np.testing.assert_array_equal(alone.detector.seen[-1], detector.seen[-2])  # type: ignore[attr-defined]
    adapter.reset()
    adapter(mixed[0])
    np.testing.assert_array_equal(detector.seen[-1], detector.seen[0])


@pytest.mark.parametrize(("top", "bottom", "value"), [(8, 8, 114), (0, 16, 114), (8, 8, 0)])
def test_a_letterbox_is_no_picture_and_is_put_back(top: int, bottom: int, value: int) -> None:
    detector = Detector()
    adapter = fozo.adapter(detector, boxed(scenes(32), top, bottom, value), channels="bgr")
    faint = boxed(hazy(scenes(16, seed=2)), top, bottom, value)
    for frame in faint:
        adapter(frame)
    last, inside = detector.seen[-1], slice(top, 64 - bottom)
    outside = np.delete(last, np.arange(top, 64 - bottom), axis=0)
    assert (outside == value).all()
    assert contrast(last[inside]) > 1.5 * contrast(faint[-1][inside])
    images = floats(faint[-1:])
    assert images.shape == (1, 3, 64, 64) and np.std(images) < 1.2 * contrast(faint[-1][inside]) / 255 + 0.05


@pytest.mark.parametrize(
    ("frame", "rows", "columns"),
    [
        (scenes(1)[0], (0, 48), (0, 64)),
        (boxed(scenes(1), 3, 5)[0], (3, 51), (0, 64)),
        (boxed(scenes(1), 0, 5)[0].swapaxes(0, 1), (0, 64), (0, 48)),
        (np.zeros((48, 64, 3), np.uint8), (0, 48), (0, 64)),  # a covered lens
        (boxed(scenes(1), 100, 100)[0], (0, 248), (0, 64)),  # more border than picture
    ],
)
def test_where_the_picture_is(frame: np.ndarray, rows: tuple[int, int], columns: tuple[int, int]) -> None:
    assert picture(frame) == (slice(*rows), slice(*columns))


def test_clean_frames_may_be_files(tmp_path: Path) -> None:
    frames = scenes(16)
    for i, frame in enumerate(frames):
        Image.fromarray(frame[..., ::-1]).save(tmp_path / f"{i:02}.png")
    files = fozo.adapter(Detector(), tmp_path, channels="bgr").front.adapters[48, 64]
    arrays = fozo.adapter(Detector(), frames, channels="bgr").front.adapters[48, 64]
    np.testing.assert_allclose(files.statistics.descriptor.mean, arrays.statistics.descriptor.mean, atol=1e-6)


def as_tensor(frame: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(frame[..., ::-1].swapaxes(-1, -2).swapaxes(-2, -3).copy())


KINDS: dict[str, tuple[Callable[[np.ndarray], Any], Callable[[Any], np.ndarray]]] = {
    "array": (lambda frame: frame, lambda image: image),
    "picture": (lambda frame: Image.fromarray(frame[..., ::-1].copy()), lambda image: np.asarray(image)[..., ::-1]),
    "bytes in a tensor": (as_tensor, lambda image: image.numpy().transpose(1, 2, 0)[..., ::-1]),
    "floats in a tensor": (
        lambda frame: as_tensor(frame) / 255, lambda image: np.rint(255 * image.numpy().transpose(1, 2, 0)[..., ::-1])
    ),
}  # fmt: skip
"""How a frame with blue first is given, and a frame again made of what came back."""


@pytest.mark.parametrize("kind", KINDS)
def test_an_equaliser_gives_back_what_it_is_given(kind: str) -> None:
    give, read = KINDS[kind]
    front = fozo.Equaliser(map(give, scenes(32)), channels="bgr")
    clear = [give(frame) for frame in scenes(4, seed=1)]
    for image, same in zip(clear, front(clear), strict=True):
        assert type(same) is type(image)
        np.testing.assert_array_equal(read(same), read(image))
    adapter = fozo.adapter(np.copy, scenes(32), channels="bgr")
    adapter(list(scenes(4, seed=1)))
    for frame in hazy(scenes(16, seed=2)):
        image, label = front(give(frame), "label")
        assert label == "label" and type(image) is type(clear[0])
        np.testing.assert_array_equal(read(image), adapter(frame))
    assert contrast(read(image)) > 1.5 * contrast(frame)


def test_a_batch_of_tensors_is_one_batch() -> None:
    front = fozo.Equaliser(torch.utils.data.DataLoader(list(as_tensor(scenes(32))), batch_size=8))  # type: ignore[arg-type]
    frames = hazy(scenes(16, seed=2))
    restored = front(as_tensor(frames))
    arrays = fozo.Equaliser(scenes(32)[..., ::-1])(frames[..., ::-1])
    np.testing.assert_array_equal(restored.numpy().transpose(0, 2, 3, 1), arrays)
    half = fozo.Equaliser(scenes(32)[..., ::-1])(as_tensor(frames).half() / 255)
    assert half.dtype == torch.float16 and half.shape == restored.shape and half.min() >= 0 and half.max() <= 1


def test_an_equaliser_is_a_transform_of_torchvision() -> None:
    transforms = pytest.importorskip("torchvision.transforms.v2")
    from torchvision import tv_tensors

    front = fozo.Equaliser(scenes(32)[..., ::-1])
    front(hazy(scenes(16, seed=2))[..., ::-1])
    frame = hazy(scenes(1, seed=3))[0, ..., ::-1]
    expected = copy.deepcopy(front)(frame)
    again = pickle.loads(pickle.dumps(front))  # noqa: S301 - the test's own
    steps = transforms.Compose([transforms.ToImage(), again, transforms.ToDtype(torch.uint8)])
    image, label = steps(frame.copy(), 7)
    assert isinstance(image, tv_tensors.Image) and label == 7
    np.testing.assert_array_equal(image.numpy().transpose(1, 2, 0), expected)


def test_what_an_equaliser_learnt_is_a_file(tmp_path: Path) -> None:
    clean = [*scenes(16), *scenes(16, 32, 32)]
    front = fozo.Equaliser(clean)
    for frame in hazy(scenes(16, seed=2)):
        front(frame)
    front.save(tmp_path / "camera.state")
    other = front.clone()
    faint = hazy(scenes(1, seed=3))[0]
    assert not np.array_equal(other(faint), copy.deepcopy(front)(faint))  # a clone knows nothing of the camera
    other.restore(tmp_path / "camera.state")
    np.testing.assert_array_equal(other(faint), front(faint))
    front.reset()
    np.testing.assert_array_equal(front(faint), fozo.Equaliser(clean)(faint))
    for wrong, words in ((clean[:16], "sizes='64x48 px, 32x32 px'"), (clean, "strength")):
        refusing = fozo.Equaliser(wrong, strength=0.5)
        refuses(words, refusing.restore, tmp_path / "camera.state")
        np.testing.assert_array_equal(refusing(faint), fozo.Equaliser(wrong, strength=0.5)(faint))


@pytest.mark.parametrize(
    ("clean", "frame", "options", "words"),
    [
        (scenes(4), scenes(1, 32, 32)[0], {}, "an image has 32x32 px, which no clean image of .* of 64x48 px> has"),
        (scenes(4), scenes(1)[0] / 255, {}, "an image is .*not float64"),
        (scenes(4), "frame.png", {}, "an image is .*not str of shape"),
        ([scenes(1, 8 + i, 16)[0] for i in range(9)] * 2, None, {}, "more than 8 sizes"),
        (scenes(1), None, {}, "one clean image of 64x48 px; give at least two"),
        ([], None, {}, "there is no clean image"),
        (scenes(4), None, {"channels": "grb"}, "channels is 'grb'; give 'bgr'"),
        (scenes(4), None, {"mean": 0.5}, "takes no mean="),
    ],
)
def test_refusals(clean: Any, frame: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(fozo.FozoError, match=words):
        fozo.adapter(Detector(), clean, **({"channels": "bgr"} | options))(frame)


def test_a_file_that_reads_blue_first(tmp_path: Path) -> None:
    """Commands give it RGB images."""
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    node = helper.make_node("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=1)
    ends = [
        helper.make_tensor_value_info(name, kind, shape) for name, shape in (("x", [1, 3, 48, 64]), ("y", [1, 3, 1, 1]))
    ]
    graph = helper.make_graph([node], "means", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "m.onnx")
    frames = scenes(8)
    refuses("is for a function of frames", fozo.adapter, tmp_path / "m.onnx", frames, channels="bgr")
    engine: Any = fozo.load_engine(tmp_path / "m.onnx", channels="bgr", mean=0, std=1 / 255)
    rgb = engine.spec.normalise(np.ascontiguousarray(frames[:1, ..., ::-1]))
    np.testing.assert_allclose(np.asarray(engine.answer(engine.check(rgb))).ravel(), frames[0].mean((0, 1)), rtol=1e-4)
