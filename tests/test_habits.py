"""What scikit-learn, PyTorch, timm and transformers have taught people to type works with fozo."""

import copy
import json
import pickle
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import fozo
from fozo.bench.plan import Experiment, Recipe
from fozo.bench.store import collect
from fozo.cli import main
from fozo.data import sample
from fozo.engines.torch_engine import TorchEngine
from fozo.io import Log, read_log
from fozo.methods.method import Method
from fozo.serve.config import read_config
from fozo.state import leaves, same
from tests.bench.invented import invent
from tests.engines.onnx import zoo
from tests.engines.test_blackbox import foreign, network
from tests.helpers import HALF, REPO, VARIANTS, pixels, random_images, random_vit
from tests.methods.test_contract import Counting
from tests.methods.test_every_method import METHODS, create, stream

SAMPLE = sample.MODELS["float32"]


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - the test's own


def mean_colours(images: Any) -> Any:
    return images[:, :, 0, 0]


@pytest.mark.parametrize("copied_by", [copy.deepcopy, pickled])
@pytest.mark.parametrize("name", METHODS)
def test_a_copy_of_an_adapted_method_goes_on_by_itself(name: str, copied_by: Callable[[Any], Any]) -> None:
    method = create(name)
    batches = stream(4)
    for images in batches[:2]:
        method(images)
    twin = copied_by(method)
    assert same(twin.state(), method.state())
    np.testing.assert_array_equal(twin(batches[2]), method(batches[2]))
    learnt = method.state()
    twin(batches[3])
    assert same(method.state(), learnt)


def test_a_copy_has_neither_the_journal_nor_the_observer(tmp_path: Path) -> None:
    method = create("neo", journal=tmp_path / "camera.journal")
    method.attach(Counting())
    method(random_images(4))
    twin = pickled(method)
    assert twin.reading is None
    twin(random_images(4, seed=1))
    method(random_images(4, seed=2))
    again = create("neo")
    again.replay(tmp_path / "camera.journal")
    assert same(again.state(), method.state())
    with pytest.raises(ValueError, match="read-only"):
        next(leaf for _, leaf in leaves(twin.state()) if isinstance(leaf, np.ndarray))[...] = 0


ENGINES: dict[str, Callable[[Path], Any]] = {
    "exported": lambda folder: fozo.load_engine(SAMPLE, classes=[3, 1], mean=0.4, threads=1),
    "OpenVINO": lambda folder: fozo.load_engine(SAMPLE, runtime="openvino", classes=[3, 1]),
    "adopted": lambda folder: fozo.load_engine(
        zoo.by_torchscript(zoo.timm_vit(), folder / "vit.onnx"), classes=[3, 1], **HALF
    ),
    "foreign": lambda folder: fozo.load_engine(foreign(folder / "linear.onnx", [None, 3, 16, 16]), channels="bgr"),
    "module": lambda folder: fozo.load_engine(random_vit(), classes=[3, 1]),
    "quick GELU": lambda folder: fozo.load_engine(random_vit(VARIANTS["quick_gelu"])),
    "hooked": lambda folder: fozo.load_engine(zoo.module("timm BEiT")),
    "convolutions": lambda folder: fozo.load_engine(network(), image_size=16),
    "function": lambda folder: fozo.load_engine(mean_colours, image_size=8),
}


@pytest.mark.parametrize("kind", ENGINES)
def test_every_engine_can_be_pickled_and_called(kind: str, tmp_path: Path) -> None:
    if kind == "OpenVINO":
        pytest.importorskip("openvino")
    engine = ENGINES[kind](tmp_path)
    images = np.random.default_rng(0).standard_normal((3, *engine.spec.image_shape)).astype(np.float32)
    again = pickled(engine)
    logits = engine(images)
    np.testing.assert_array_equal(again(images), logits)
    np.testing.assert_array_equal(logits, engine.run(engine.check(images))[fozo.Tap.LOGITS][0])
    assert again.spec == engine.spec and repr(again) == repr(engine)
    tensor = engine(torch.from_numpy(images))
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(tensor.numpy(), logits)


@pytest.mark.parametrize("kind", ["exported", "foreign"])
def test_another_file_in_the_place_of_a_pickled_one_is_refused(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    other = tmp_path / "other.onnx"
    if kind == "exported":
        shutil.copy(SAMPLE, file)
        fozo.export(fozo.load_engine(random_vit()), other)
    else:
        foreign(file, [None, 3, 16, 16])
        foreign(other, [None, 3, 16, 16], outputs=2)
    data = pickle.dumps(fozo.load_engine(file))
    shutil.copy(other, file)
    with pytest.raises(fozo.FozoError, match="has changed since it was pickled"):
        pickle.loads(data)  # noqa: S301 - the test's own


class Predicted(Dataset[Any]):
    """Images, and what an adapter says of them in a worker."""

    def __init__(self, adapter: Method[Any, Any], images: np.ndarray) -> None:
        self.adapter = adapter
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        return self.adapter.predict(self.images[index])[0]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_loader_hold_an_adapter(start: str) -> None:
    """In a process of its own: forks of one that has used OpenVINO, as other tests do, crash."""
    code = f"from tests.test_habits import predict_in_workers; predict_in_workers({start!r})"
    subprocess.run([sys.executable, "-c", code], cwd=REPO, check=True, timeout=200)


def predict_in_workers(start: str) -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 1, 28, 28), np.uint8)
    adapter = fozo.adapter(SAMPLE, images)
    adapter(images)
    data = Predicted(pickled(adapter), images)
    loader = DataLoader(data, batch_size=3, num_workers=2, multiprocessing_context=start)
    logits = torch.cat(list(loader)).numpy()
    expected = np.concatenate([adapter.predict(image) for image in images])
    np.testing.assert_array_equal(logits, expected)


def test_joblib_keeps_an_adapter(tmp_path: Path) -> None:
    joblib = pytest.importorskip("joblib")
    method = create("align")
    method(random_images(4))
    joblib.dump(method, tmp_path / "adapter.joblib")
    again = joblib.load(tmp_path / "adapter.joblib")
    np.testing.assert_array_equal(again(random_images(4, seed=1)), method(random_images(4, seed=1)))


def test_what_a_processor_of_transformers_gives_is_taken_as_it_is() -> None:
    transformers = pytest.importorskip("transformers")
    processor = transformers.ViTImageProcessor(size={"height": 16, "width": 16})
    adapter = create("align")
    pictures = [Image.fromarray(image) for image in pixels(2)]
    inputs = processor(pictures, return_tensors="pt")
    twin = pickled(adapter)
    output = adapter(**inputs)
    assert isinstance(output.logits, torch.Tensor)
    logits = twin(inputs["pixel_values"])
    for of_output in (output.logits, output["logits"], output[0]):
        np.testing.assert_array_equal(of_output, logits)
    classify = transformers.ImageClassificationPipeline(model=create("align").module(), image_processor=processor)
    assert classify(pictures[0])[0]["label"] == twin.names(logits)[0]


def test_what_was_learnt_is_a_state_dict() -> None:
    method = create("align")
    method(random_images(4))
    learnt = method.state_dict()
    assert all(isinstance(name, str) for name in learnt)
    other = create("align")
    other.load_state_dict(learnt)
    assert same(other.state(), method.state())
    for broken in ({}, {**learnt, "more": 1}, {**learnt, "recent": np.full((2, 2), np.nan)}):
        with pytest.raises(fozo.FozoError, match="the state is damaged or of something else"):
            other.load_state_dict(broken)
    assert same(other.state(), method.state())
    held: dict[str, Any] = {
        name: leaf.copy() if isinstance(leaf, np.ndarray) else leaf for name, leaf in learnt.items()
    }
    other.load_state_dict(held)
    held["recent"][...] = 0  # a user's own arrays stay the user's
    assert same(other.state(), method.state())


def test_an_adapter_is_a_module(tmp_path: Path) -> None:
    adapter = create("align")
    twin = create("align")
    module = adapter.module().to("cpu", torch.float64).eval()
    assert list(module.parameters()) == [] and not module.training
    model = torch.nn.Sequential(module, torch.nn.Softmax(dim=1))
    images = torch.from_numpy(random_images(4)).requires_grad_()
    probabilities = model(images)
    assert not probabilities.requires_grad
    torch.testing.assert_close(probabilities, twin(images.detach()).softmax(dim=1))
    torch.save(module.state_dict(), tmp_path / "learnt.pt")
    other = create("align").module()
    other.load_state_dict(torch.load(tmp_path / "learnt.pt", weights_only=True))
    assert same(other.adapter.state(), adapter.state()) and other.device.type == "cpu"


COMPILED: dict[str, Callable[[Method[Any, Any]], Any]] = {
    "adapter": lambda adapter: adapter,
    "module": lambda adapter: adapter.module(),
    "predict": lambda adapter: adapter.predict,
    "engine": lambda adapter: adapter.engine,
    "function": lambda adapter: lambda images: adapter(images),
}


@pytest.mark.parametrize("kind", COMPILED)
def test_what_is_compiled_runs_as_it_is(kind: str) -> None:
    images = torch.from_numpy(random_images(4))
    compiled: Any = torch.compile(COMPILED[kind](create("align")))
    expected = COMPILED[kind](create("align"))(images)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        np.testing.assert_array_equal(compiled(images), expected)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        *(
            (name, "'Align' object has no attribute .*adapter.module")
            for name in ("eval", "to", "device", "parameters")
        ),
        *((name, "is called statistics now") for name in ("source", "stats")),
        ("no_such_name", "no_such_name'$"),
    ],
)
def test_what_an_adapter_does_not_have_is_said_in_a_sentence(name: str, sentence: str) -> None:
    with pytest.raises(AttributeError, match=sentence):
        getattr(create("align"), name)


@pytest.mark.parametrize("wrap", [torch.compile, torch.nn.DataParallel])
def test_a_wrapper_that_is_taken_off_is_named(wrap: Any) -> None:
    with pytest.warns(UserWarning, match="is not used.*; give the module inside") as caught:
        engine = fozo.load_engine(wrap(random_vit()))
    assert caught[0].filename == __file__
    images = random_images(2)
    np.testing.assert_array_equal(engine(images), fozo.load_engine(random_vit())(images))  # type: ignore[operator]


def clean_video(folder: Path, frames: np.ndarray) -> Path:
    cv2 = pytest.importorskip("cv2")
    file = folder / "clean.avi"
    writer = cv2.VideoWriter(str(file), cv2.VideoWriter_fourcc(*"MJPG"), 10, frames.shape[2:0:-1])
    for frame in frames:
        writer.write(np.ascontiguousarray(frame[..., ::-1]))
    writer.release()
    return file


def clean_folder(folder: Path, images: np.ndarray, classes: int) -> Path:
    for number, image in enumerate(images):
        inside = folder / "clean" / (str(number % classes) if classes else "")
        inside.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(inside / f"{number}.png")
    return folder / "clean"


CLEAN: dict[str, Callable[[Path, np.ndarray], Any]] = {
    "video": clean_video,
    "flat folder": lambda folder, images: clean_folder(folder, images, 0),
    "folder of classes": lambda folder, images: clean_folder(folder, images, 3),
    "path as text": lambda folder, images: str(clean_folder(folder, images, 0)),
    "list of pictures": lambda folder, images: [Image.fromarray(image) for image in images],
    "list of arrays": lambda folder, images: list(images),
    "array": lambda folder, images: images,
}


@pytest.mark.parametrize("kind", CLEAN)
def test_clean_images_are_given_in_one_way_everywhere(kind: str, tmp_path: Path) -> None:
    images = pixels(20, size=(20, 24))
    clean = CLEAN[kind](tmp_path, images)
    adapter = fozo.adapter(random_vit(), clean, **HALF)
    assert adapter.statistics.images == 20
    reference = fozo.Reference.collect(adapter, clean, corruptions=False)
    assert reference.clean.images == 20
    assert reference.unlabelled or kind == "folder of classes"
    black_box = fozo.adapter(mean_colours, clean)
    assert black_box.statistics.images == 20
    if not isinstance(clean, np.ndarray):
        frames = fozo.adapter(mean_colours, clean, channels="rgb")
        assert frames.front.adapters[20, 24].statistics.images == 20


def test_the_error_for_an_old_word_names_the_new_one(
    capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for old, new in (("SourceStatistics", "Statistics"), ("MonitorReference", "Reference")):
        with pytest.raises(AttributeError, match=f"{old}.*called {new} now"):
            getattr(fozo, old)
    with pytest.raises(fozo.FozoError, match="'source'; it is called statistics now"):
        fozo.Align(SAMPLE, source=sample.statistics(SAMPLE))
    for command, old, new in (("adapt", "stats", "statistics"), ("calibrate", "monitor", "reference")):
        monkeypatch.setattr("sys.argv", ["fozo", command, "model", "images", f"--{old}", "file"])
        with pytest.raises(SystemExit):
            main()
        assert f"--{old} is called --{new} now" in capsys.readouterr().err
    settings = tmp_path / "serve.toml"
    settings.write_text('[models.x]\nmodel = "y"\nstats = "z"\n')
    with pytest.raises(fozo.FozoError, match="no setting 'stats': did you mean 'statistics'"):
        read_config(settings)


def test_pixels_are_asked_for_where_they_are_needed() -> None:
    with pytest.raises(fozo.FozoError, match="float32 where pixels are needed; give uint8 or PIL images"):
        fozo.Reference.collect(create("align"), random_images(4))


def test_statistics_of_the_float_file_say_in_what_an_int8_file_differs(tmp_path: Path) -> None:
    engine = fozo.load_engine(random_vit(), **HALF)
    fozo.export(engine, tmp_path / "int8.onnx", int8="dynamic")
    statistics = fozo.calibrate(engine, [random_images(8)])
    whole = engine.spec.fingerprint[:12]
    with pytest.raises(fozo.FozoError, match=rf"\({whole}\), not of vit \({whole}-int8[-0-9a-z]+\)"):
        fozo.Align(tmp_path / "int8.onnx", statistics)


def test_a_log_is_json_lines_with_the_checksum_inside(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    payloads: list[dict[str, Any]] = [{"loss": 0.1, "text": 'a "crc32": 7}'}, {}, {"more": [1, 2]}]
    log = Log(path)
    for payload in payloads:
        log.append(payload)
    log.close()
    lines = path.read_text().splitlines()
    for line, payload in zip(lines, payloads, strict=True):
        values = json.loads(line)
        assert isinstance(values.pop("crc32"), int) and values == payload
    assert list(read_log(path)) == payloads
    path.write_text(lines[0].replace("0.1", "0.2") + "\n" + lines[1] + "\n")
    with pytest.raises(fozo.FozoError, match="is damaged in line 1"):
        list(read_log(path))
    path.write_bytes(b'cc47beaf {"loss":0.1}\n')  # of fozo 0.2
    assert list(read_log(path)) == [{"loss": 0.1}]


def test_a_report_of_several_folders_has_the_models_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (Experiment("plain", "noadapt"), Experiment("ours", "align"))
    for folder, images in (("A", 2000), ("B", 64)):
        invent(tmp_path / folder, Recipe("mine", "Mine", rows), batches=2, calibration=images)
    page = tmp_path / "page.html"
    monkeypatch.setattr("sys.argv", ["fozo", "report", str(tmp_path / "A"), str(tmp_path / "B"), "-o", str(page)])
    with suppress(SystemExit):
        main()
    assert "Mine: side by side" in page.read_text()
    text = page.with_suffix(".md").read_text()
    head = text.partition("\n## ")[0].splitlines()
    assert head[0] == "## Mine: side by side"
    columns = next(line for line in head if "calibrated on" in line)
    assert columns.index("2000 clean images") < columns.index("64 clean images")
    averages = [
        f"{run.measures.average:.2f}" for folder in ("A", "B") for run in collect(tmp_path / folder)[0].of("plain")
    ]
    plain = next(line for line in head if line.startswith("| plain |"))
    assert [cell.strip() for cell in plain.split("|")[2:-1]] == averages


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_an_option(dtype: str) -> None:
    whole = fozo.load_engine(random_vit(), **HALF)
    half = fozo.load_engine(random_vit(), dtype=dtype, **HALF)
    assert isinstance(half, TorchEngine) and half.dtype == getattr(torch, dtype)
    assert half.spec.fingerprint.endswith(f"-{dtype}") and not whole.spec.fingerprint.endswith(dtype)
    images = random_images(8)
    statistics = fozo.calibrate(half, [images])
    assert statistics.pooled.mean.dtype == np.float64
    with pytest.raises(fozo.FozoError, match=f"{dtype}"):
        fozo.Align(whole, statistics)
    for method in ("align", "fozo"):
        adapter = fozo.create(method, half, statistics)
        logits = adapter(images)
        assert logits.dtype == np.float32 and np.isfinite(logits).all()
        in_full = fozo.create(method, whole, fozo.calibrate(whole, [images]))
        in_full(images)
        kinds, expected = (
            {name: leaf.dtype for name, leaf in leaves(one.state()) if isinstance(leaf, np.ndarray)}
            for one in (adapter, in_full)
        )
        assert kinds == expected
    exact = whole.run(whole.check(images))[fozo.Tap.LOGITS]
    rounded = half.run(half.check(images))[fozo.Tap.LOGITS]
    assert 0 < np.abs(rounded - exact).max() < 0.1 * np.abs(exact).max()


@pytest.mark.parametrize("runtime", ["torch", "openvino"])
def test_auto_is_one_of_the_two_measured_once(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if runtime == "openvino":
        pytest.importorskip("openvino")

    def load(dtype: str) -> Any:
        if runtime == "openvino":
            return fozo.load_engine(SAMPLE, dtype=dtype, runtime=runtime)
        return fozo.load_engine(random_vit(), dtype=dtype)

    kept = tmp_path / "fozo" / "precision.json"
    with caplog.at_level("INFO", "fozo"):
        first = load("auto")
        assert "is faster here" in caplog.text or runtime == "openvino"  # which may know that it has no bfloat16
        caplog.clear()
        assert load("auto").spec == first.spec and "is faster here" not in caplog.text
    if kept.exists():
        (key,) = json.loads(kept.read_text())
        for dtype in ("float32", "bfloat16"):
            kept.write_text(json.dumps({key: dtype}))
            assert load("auto").spec == load(dtype).spec
        kept.write_text("{damaged")
        assert load("auto").spec in (load("float32").spec, load("bfloat16").spec)
        assert key in json.loads(kept.read_text())
    with pytest.raises(fozo.FozoError, match="dtype must be one of auto, bfloat16"):
        load("int8")


def test_openvino_runs_in_half_precision_where_the_processor_does() -> None:
    openvino = pytest.importorskip("openvino")
    able = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if not able:
        with pytest.raises(fozo.FozoError, match="no bfloat16 on this processor"):
            fozo.load_engine(SAMPLE, runtime="openvino", dtype="bfloat16")
        return
    whole: Any = fozo.load_engine(SAMPLE, runtime="openvino")
    half: Any = fozo.load_engine(SAMPLE, runtime="openvino", dtype="bfloat16")
    assert half.spec.fingerprint == f"{whole.spec.fingerprint}-bfloat16"
    images = whole.spec.normalise(pixels(8, size=(28, 28))[..., :1])
    ours = half(images)
    expected = whole(images)
    assert 0 < np.abs(ours - expected).max() < 0.05 * np.abs(expected).max()
    np.testing.assert_array_equal(pickled(half)(images), ours)
