"""First contact: clean images and batches of every kind that is taken, and what is said to all others."""

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset

import fozo
from fozo.data.images import resize_crop
from fozo.errors import FozoError, ImageWarning
from fozo.state import same
from fozo.types import NO_KNOBS, Batch, Knobs, Tap, Taps
from tests.helpers import HALF, SMALL, EngineAround, normalised, pixels, random_images, random_vit


@dataclass
class Pairs(Dataset[Any]):
    """A dataset of (image, label), as torchvision's are."""

    images: Any

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        return self.images[index], index % 3


def as_folder(folder: Path, images: np.ndarray, classes: int = 2) -> Path:
    for number, image in enumerate(images):
        place = folder / "images" / (f"class {number % classes}" if classes else "")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number:02d}.png")
    return folder / "images"


def as_video(folder: Path, frames: np.ndarray) -> Path:
    cv2 = pytest.importorskip("cv2")
    file = folder / "clean.avi"
    writer = cv2.VideoWriter(str(file), cv2.VideoWriter_fourcc(*"MJPG"), 10, frames.shape[2:0:-1])
    for frame in frames:
        writer.write(np.ascontiguousarray(frame[..., ::-1]))
    writer.release()
    return file


def pictures(images: np.ndarray) -> list[Image.Image]:
    return [Image.fromarray(image) for image in images]


def collated(items: list[Any]) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.stack([image for image, _ in items]), "labels": torch.zeros(len(items))}


def tensors(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(normalised(x))


def saved_statistics(folder: Path, engine: fozo.Engine, images: np.ndarray) -> Path:
    fozo.calibrate(engine, [normalised(images)]).save(folder / "statistics.safetensors")
    return folder / "statistics.safetensors"


SOURCES: dict[str, Callable[[np.ndarray, Path, fozo.Engine], Any]] = {
    "loader of (images, labels)": lambda x, _, e: DataLoader(Pairs(tensors(x)), batch_size=5),
    "loader of [images]": lambda x, _, e: DataLoader(TensorDataset(tensors(x)), batch_size=5),
    "loader of dictionaries": lambda x, _, e: DataLoader(Pairs(tensors(x)), batch_size=5, collate_fn=collated),
    "dataset": lambda x, _, e: Pairs(tensors(x)),
    "batches": lambda x, _, e: [normalised(x)[:7], normalised(x)[7:]],
    "arrays one by one": lambda x, _, e: iter(normalised(x)),
    "one array": lambda x, _, e: normalised(x),
    "one array of bytes": lambda x, _, e: x,
    "arrays and labels": lambda x, _, e: (normalised(x), np.zeros(len(x))),
    "pictures": lambda x, _, e: pictures(x),
    "list of frames": lambda x, _, e: list(x),
    "folder of classes": lambda x, folder, e: as_folder(folder, x),
    "flat folder": lambda x, folder, e: as_folder(folder, x, classes=0),
    "path as text": lambda x, folder, e: str(as_folder(folder, x)),
    "set": lambda x, folder, e: fozo.open_images(as_folder(folder, x)),
    "statistics": lambda x, _, e: fozo.calibrate(e, [normalised(x)]),
    "file of statistics": lambda x, folder, e: saved_statistics(folder, e, x),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_clean_images(kind: str, tmp_path: Path) -> None:
    engine, images = fozo.load_engine(random_vit(), **HALF), pixels(70)
    expected = fozo.calibrate(engine, [normalised(images)])
    found = fozo.adapter(engine, SOURCES[kind](images, tmp_path, engine)).statistics
    assert found.images == 70
    for name in found.PARTS:
        np.testing.assert_allclose(getattr(found, name).mean, getattr(expected, name).mean, atol=1e-5)
    assert found.inputs is not None and expected.inputs is not None
    assert same(found.inputs, expected.inputs)
    np.testing.assert_allclose((found.inputs.low, found.inputs.high), [[-1] * 3, [1] * 3], atol=0.02)


VIDEO: dict[str, Callable[[np.ndarray, Path, fozo.Engine], Any]] = {"video": lambda x, folder, e: as_video(folder, x)}
PIXELS = (
    "one array of bytes",
    "pictures",
    "list of frames",
    "folder of classes",
    "flat folder",
    "path as text",
    *VIDEO,
)


@pytest.mark.parametrize("kind", PIXELS)
def test_clean_pixels_are_given_in_one_way_everywhere(kind: str, tmp_path: Path) -> None:
    images = pixels(20, size=(20, 24))
    engine = fozo.load_engine(random_vit(), **HALF)
    clean = (SOURCES | VIDEO)[kind](images, tmp_path, engine)
    adapter = fozo.adapter(engine, clean)
    reference = fozo.Reference.collect(adapter, clean, corruptions=False)
    assert adapter.statistics.images == reference.clean.images == 20
    assert reference.unlabelled or kind in ("folder of classes", "path as text")
    black_box = fozo.adapter(lambda images: images[:, :, 0, 0], clean)
    assert black_box.statistics.images == 20
    if not isinstance(clean, np.ndarray):
        frames = fozo.adapter(lambda frame: frame, clean, channels="rgb")
        assert frames.front.adapters[20, 24].statistics.images == 20


REFUSED_SOURCES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "number": (lambda folder: 7, "cannot calibrate on a int; give a DataLoader, a folder of images, or an iterable"),
    "function": (lambda folder: print, "cannot calibrate on a builtin_function_or_method; give a DataLoader"),
    "picture": (lambda folder: pictures(pixels(1))[0], "cannot calibrate on a Image; give"),
    "one image": (lambda folder: normalised(pixels(1))[0], r"shape \[3, 16, 16\] is not a set of images"),
    "nothing": (lambda folder: [], "at least two clean images, not 0"),
    "single": (lambda folder: [normalised(pixels(1))], "at least two clean images, not 1"),
    "paths": (lambda folder: ["a.jpg", "b.jpg"], "a str is not a batch of images for vit; give .* open files first"),
    "no folder": (lambda folder: folder / "absent", "absent"),
    "empty folder": (lambda folder: folder, "holds no images"),
    "no statistics": (lambda folder: as_folder(folder, pixels(2)) / "class 0" / "00.png", "00.png"),
}


@pytest.mark.parametrize("kind", REFUSED_SOURCES)
def test_refused_clean_images(kind: str, tmp_path: Path) -> None:
    make, sentence = REFUSED_SOURCES[kind]
    with pytest.raises(FozoError, match=sentence):
        fozo.adapter(random_vit(), make(tmp_path), **HALF)


BATCHES: dict[str, tuple[Callable[[np.ndarray], Any], type, float]] = {
    "float32": (normalised, np.ndarray, 0),
    "float64": (lambda x: normalised(x).astype(np.float64), np.ndarray, 1e-5),
    "float16": (lambda x: normalised(x).astype(np.float16), np.ndarray, 0.05),
    "big-endian": (lambda x: normalised(x).astype(">f4"), np.ndarray, 1e-5),
    "tensor": (tensors, torch.Tensor, 0),
    "tensor of bfloats": (lambda x: tensors(x).bfloat16(), torch.Tensor, 0.2),
    "bytes": (lambda x: x, np.ndarray, 0),
    "bytes, channels first": (lambda x: x.transpose(0, 3, 1, 2), np.ndarray, 0),
    "tensor of bytes": (lambda x: torch.from_numpy(x), torch.Tensor, 0),
    "pictures": (pictures, np.ndarray, 0),
    "list of frames": (list, np.ndarray, 0),
    "list of arrays": (lambda x: list(normalised(x)), np.ndarray, 0),
    "list of tensors": (lambda x: list(tensors(x)), torch.Tensor, 0),
    "lists of numbers": (lambda x: normalised(x).tolist(), np.ndarray, 1e-5),
    "images and labels": (lambda x: (tensors(x), torch.zeros(len(x))), torch.Tensor, 0),
    "dictionary": (lambda x: {"labels": 0, "pixel_values": tensors(x)}, torch.Tensor, 0),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_batches(kind: str) -> None:
    make, answer, tolerance = BATCHES[kind]
    engine = fozo.load_engine(random_vit(), **HALF)
    adapter, images = fozo.adapter(engine, [normalised(pixels(20, seed=1))]), pixels(6)
    expected = adapter.clone()(normalised(images))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logits: Any = adapter(make(images))
    assert type(logits) is answer and np.asarray(logits).shape == (6, 7)
    np.testing.assert_allclose(np.asarray(logits), expected, rtol=0, atol=tolerance or 5e-6)


def test_one_image_is_a_batch_of_one() -> None:
    adapter, one = fozo.adapter(random_vit(), [normalised(pixels(20, seed=1))], **HALF), pixels(1)
    expected = adapter.clone()(normalised(one))
    given: list[Any] = [normalised(one)[0], one[0], pictures(one)[0], (pictures(one)[0], 3), {"image": one[0]}]
    for image in [*given, tensors(one)[0], torch.from_numpy(one[0]).permute(2, 0, 1)]:
        logits: Any = adapter.clone()(image)
        assert type(logits) is (torch.Tensor if torch.is_tensor(image) else np.ndarray)
        assert np.asarray(logits).shape == (1, 7)
        np.testing.assert_allclose(np.asarray(logits), expected, atol=1e-6)


def test_frames_of_other_sizes_are_resized_as_streams_do() -> None:
    adapter = fozo.adapter(random_vit(), [normalised(pixels(20, seed=1))], **HALF)
    frames, tall = pixels(2, size=(30, 40)), pixels(1, seed=3, size=(50, 20))
    expected = np.stack([resize_crop(image, (16, 16)) for image in (*frames, tall[0])])
    plain = fozo.NoAdapt(adapter.engine)
    mixed: Any = plain(pictures(frames) + pictures(tall))
    np.testing.assert_allclose(mixed, plain(normalised(expected)), atol=1e-6)
    np.testing.assert_allclose(np.asarray(plain([*frames, tall[0]])), mixed, atol=1e-6)
    np.testing.assert_allclose(np.asarray(plain(frames)), mixed[:2], atol=1e-6)
    gray: Any = pictures(frames)[0].convert("L")
    np.testing.assert_allclose(np.asarray(plain(gray)), np.asarray(plain(gray.convert("RGB"))), atol=1e-6)


REFUSED_BATCHES: dict[str, tuple[Callable[[np.ndarray], Any], str]] = {
    "floats, channels last": (lambda x: normalised(x).transpose(0, 2, 3, 1), "put the channels first: images"),
    "one channel": (lambda x: normalised(x)[:, :1], r"of shape \[B, 3, 16, 16\], but .* has shape \[2, 1"),
    "gray bytes": (lambda x: x[..., :1], r"\[16, 16, 1\]; give \[height, width, 3\]: convert other images to RGB"),
    "another size": (lambda x: normalised(pixels(2, size=(20, 16))), "resize the images to 16x16 px"),
    "five axes": (lambda x: normalised(x)[None], "give a batch of such images"),
    "integers": (lambda x: x.astype(np.int64), "holds int64|has shape"),
    "differing arrays": (lambda x: [x[0] / 255, x[1, :8] / 255], r"0 has \[16, 16, 3\] and image 1 \[8, 16, 3\]"),
    "arrays and tensors": (lambda x: [normalised(x)[0], tensors(x)[1]], "a list of Tensor, ndarray is not a batch"),
    "bytes and floats": (lambda x: [x[0], normalised(x)[1]], "differ in shape"),
    "batches": (lambda x: [normalised(x), normalised(x)], "a list of 2 batches was given where one is read"),
    "nothing": (lambda x: [], "the batch has no images; give at least one"),
    "None": (lambda x: None, "a NoneType is not a batch of images for vit; give"),
    "paths": (lambda x: ["cat.jpg"], "open files first, for example with PIL.Image.open"),
    "dictionary": (lambda x: {"input": x}, "a batch has 'input', and no 'pixel_values' or 'images'"),
    "odd picture": (lambda x: [Image.new("F", (16, 16))], "image 0 of the batch has pixels of unknown range"),
    "masked": (lambda x: np.ma.array(normalised(x), mask=True), "the images have masked pixels; fill them"),
    "NaN": (lambda x: normalised(x) * np.float32("nan"), "NaN"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED_BATCHES)
def test_refused_batches(kind: str) -> None:
    make, sentence = REFUSED_BATCHES[kind]
    adapter = fozo.adapter(random_vit(), [normalised(pixels(20, seed=1))], **HALF)
    adapter(normalised(pixels(4)))
    before = adapter.state()
    with pytest.raises(FozoError, match=sentence) as refusal:
        adapter(make(pixels(2)))
    assert "\n" not in str(refusal.value)
    assert same(adapter.state(), before)


def test_gray_models_take_colour_pictures_and_gray_bytes() -> None:
    vit = random_vit(replace(SMALL, channels=1))
    adapter = fozo.adapter(vit, pictures(pixels(20)), **HALF)
    gray = np.stack([np.array(picture.convert("L")) for picture in pictures(pixels(3))])
    expected = adapter.clone()(normalised(gray[..., None]))
    for given in (pictures(pixels(3)), gray[..., None], gray[:, None], gray, torch.from_numpy(gray), list(gray)):
        np.testing.assert_allclose(np.asarray(adapter.clone()(given)), expected, atol=1e-6)
    for one in (gray[0], gray[:1], gray[0][..., None], [gray[0]]):
        np.testing.assert_array_equal(adapter.clone()(one), adapter.clone()(gray[:1, ..., None]))
    large = np.random.default_rng(0).integers(0, 256, (30, 40), dtype=np.uint8)  # one gray image of another size
    assert np.asarray(fozo.NoAdapt(adapter.engine)([large, gray[0]])).shape == (2, 7)
    with pytest.raises(FozoError, match=r"1 channel, but .* shape \[16, 16, 3\]; give .*convert other images to gray"):
        adapter(pixels(1)[0])


IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
WAYS = {
    "Normalize had been left out": (0.0, 1.0), "mean and std of 0.5": (0.5, 0.5), "ImageNet's": IMAGENET, "CLIP's": CLIP
}  # fmt: skip


NARROWER = {("ImageNet's", "mean and std of 0.5"), ("CLIP's", "mean and std of 0.5")}
"""What the model reads and what it is given, of which the second lies within the range of the first."""
NEARLY_THE_SAME = {("ImageNet's", "CLIP's"), ("CLIP's", "ImageNet's")}


@pytest.mark.parametrize("given", WAYS)
@pytest.mark.parametrize("right", WAYS)
@pytest.mark.parametrize("known", [True, False])
def test_values_that_the_model_does_not_read_are_warned_of_once(
    right: str, given: str, known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    mean, std = WAYS[right]
    options: dict[str, Any] = {"mean": mean, "std": std} if known else {}
    with warnings.catch_warnings(), caplog.at_level(logging.INFO, "fozo"):
        warnings.simplefilter("ignore", ImageWarning)  # which says of an unknown 0 to 1 that few models read it
        adapter = fozo.adapter(random_vit(), [normalised(pixels(8, seed=i), mean, std) for i in range(3)], **options)
    assert known or f"{right}" in caplog.text
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for seed in range(5, 9):
            adapter(normalised(pixels(4, seed=seed), *WAYS[given]))
    sentences = [str(warning.message) for warning in seen if issubclass(warning.category, ImageWarning)]
    noticed = given != right and (right, given) not in NARROWER | NEARLY_THE_SAME
    assert len(sentences) == noticed, sentences


def test_an_unknown_model_normalises_bytes_as_the_clean_images_were() -> None:
    adapter = fozo.adapter(random_vit(), [normalised(pixels(20), *IMAGENET)])
    assert adapter.engine.spec.mean is None
    expected = adapter.clone()(normalised(pixels(3, seed=2), *IMAGENET))
    np.testing.assert_allclose(np.asarray(adapter(pixels(3, seed=2))), expected, atol=1e-5)
    with pytest.raises(FozoError, match="mean and std of vit are unknown; pass mean= and std="):
        fozo.adapter(random_vit(), pixels(2))
    with pytest.raises(FozoError, match="mean and std of vit are unknown"):
        fozo.adapter(random_vit(), [random_images(20)])(pixels(3))


def test_clean_images_of_0_to_1_for_an_unknown_model_are_warned_of() -> None:
    with pytest.warns(ImageWarning, match="look like pixels of 0 to 1 .*, which few models read: normalise them"):
        fozo.calibrate(random_vit(), [normalised(pixels(20), 0.0, 1.0)])
    words = "vit does not state its mean and std; the clean images .* ImageNet's mean and std, and"
    with pytest.warns(ImageWarning, match=words):
        fozo.calibrate(random_vit(), [normalised(pixels(20), *IMAGENET)])


class Discerning(EngineAround):
    """A model that is sure of images whose values reach as far as those of the right normalisation, by ``sureness``.

    It sees as many classes as it is told.
    """

    def __init__(self, normalisation: Any, sureness: float = 1.0, seen: int = 7) -> None:
        super().__init__(fozo.load_engine(random_vit()))
        mean, std = np.broadcast_to(np.reshape(np.array(normalisation, dtype=object), (2, -1)), (2, 3)).astype(float)
        self.black, self.white = -mean / std, (1 - mean) / std
        self.sureness = sureness
        self.seen = seen

    def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
        values = dict(super().run(batch, knobs, taps))
        low, high = batch.images.min(axis=(2, 3)), batch.images.max(axis=(2, 3))
        distance = np.abs(low - self.black).max(axis=1) + np.abs(high - self.white).max(axis=1)
        if Tap.LOGITS in taps:
            values[Tap.LOGITS] = np.zeros_like(values[Tap.LOGITS])
            images = np.arange(len(distance))
            values[Tap.LOGITS][0, images, images % self.seen] = self.sureness / (0.2 + distance)
        return values


@pytest.mark.parametrize("given", ["array", "pictures", "once", "folder", "tensors", "floats to 255"])
@pytest.mark.parametrize("right", WAYS)
def test_an_unknown_normalisation_of_pixels_is_the_one_that_the_model_is_surest_of(
    right: str, given: str, tmp_path: Path
) -> None:
    images = pixels(20)
    clean: Any = {
        "array": images,
        "pictures": pictures(images),
        "once": iter(np.split(images, [16])),  # enough in the first batch
        "folder": as_folder(tmp_path, images) if given == "folder" else None,
        "tensors": torch.from_numpy(images),
        "floats to 255": images.transpose(0, 3, 1, 2).astype(np.float32),
    }[given]
    engine = Discerning(WAYS[right])
    with pytest.warns(ImageWarning, match=f"vit does not state its mean and std; on .* surest of .*{right}"):
        adapter = fozo.adapter(engine, clean)
    assert adapter.engine.spec.mean is None
    expected = fozo.calibrate(Discerning(WAYS[right]), [normalised(images, *WAYS[right])])
    if given != "floats to 255":
        np.testing.assert_allclose(adapter.statistics.cls.mean, expected.cls.mean, atol=1e-4)


def test_an_unknown_normalisation_that_cannot_be_told_is_asked_for() -> None:
    asked = "mean and std of vit are unknown; pass mean= and std= .* surest of .* then of"
    with pytest.raises(FozoError, match=asked):
        fozo.calibrate(Discerning(WAYS["CLIP's"], sureness=0.01), pixels(20))  # in doubt
    with pytest.raises(FozoError, match=asked):
        fozo.calibrate(Discerning(WAYS["CLIP's"], seen=3), pixels(20))  # all of a few scenes
    assert fozo.calibrate(fozo.load_engine(random_vit(), mean=0.5, std=0.5), pixels(8)).images == 8


def test_nothing_is_logged_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    fozo.calibrate(random_vit(), [normalised(pixels(20))])
    assert capsys.readouterr() == ("", "")
