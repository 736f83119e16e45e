"""``fozo watch``: a camera's day, from files to sentences."""

import base64
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from rich.console import Console

import fozo
from fozo.bench.report.page import write_timeline
from fozo.cli.folder import Frame, frames
from fozo.cli.watch import batches, view
from fozo.data import sample
from fozo.data.corruptions import corrupt
from fozo.data.images import Pixels
from fozo.data.sets import ImageSet
from fozo.data.streams import prepare
from fozo.errors import FozoError, ImageWarning
from tests.cli.conftest import Call

MODEL = sample.MODELS["float32"]


def prepared(images: ImageSet, indices: npt.NDArray[np.int64]) -> Pixels:
    return np.stack([prepare(images, images.read(int(index)), 28, 1) for index in indices])


@pytest.fixture(scope="module")
def camera(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders ``clean``, in which classes are folders, and ``live``: 24 clean frames, then 24 of low contrast."""
    root, images = tmp_path_factory.mktemp("camera"), fozo.open_images(sample.IMAGES)
    order = np.random.default_rng(3).permutation(len(images))
    order = np.array([i for i in order if "/" not in images.classes[images.samples[i].label]])  # no folder's name
    for number, index in enumerate(order[:120]):
        pixels = prepared(images, order[number : number + 1])[0, ..., 0]
        folder = root / "live"
        if number < 72:
            folder = root / "clean" / images.classes[images.samples[index].label]
        elif number >= 96:
            pixels = corrupt(pixels, "contrast", 4, 0, image_id=str(number))
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number:03}.png")
    engine = fozo.load_engine(MODEL, threads=1)
    fozo.calibrate(engine, [engine.spec.normalise(prepared(images, order[:72]))]).save(root / "statistics.safetensors")
    return root


@pytest.fixture(autouse=True)
def few_corrupted_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """References take seconds otherwise."""
    monkeypatch.setitem(fozo.Reference.collect.__kwdefaults__ or {}, "sample", 8)


def test_a_camera_is_watched_and_its_drift_is_reported(call: Call, camera: Path, tmp_path: Path) -> None:
    reference, events = tmp_path / "reference.safetensors", tmp_path / "events.jsonl"
    given = ("watch", MODEL, camera / "live", "--statistics", camera / "statistics.safetensors")
    arguments = (*given, "--reference", reference, "--events", events)
    code, _, error = call(*arguments)
    assert code == 2 and "there is no monitor reference" in error and not events.exists()
    code, said, error = call(*arguments, "--clean", camera / "clean")
    assert code == 0, error
    assert "was made from 72 clean images" in error and not fozo.Reference.load(reference).unlabelled
    assert "image 25: drift: " in said and "contrast -" in said
    assert "48 images, " in said and "expected accuracy" in said.splitlines()[-1]
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    readings = [line for line in lines if line["type"] == "reading"]
    assert [line["image"] for line in readings] == list(range(8, 49, 8))
    assert [line["drift"] for line in readings] == [0, 0, 0, 1, 1, 1]
    event = next(line for line in lines if line["type"] == "event")
    assert event["name"] == "drift" and event["image"] == 25 and event["time"] > 1e9
    page = tmp_path / "timeline.html"
    code, said, error = call("report", events, "-o", page)
    assert code == 0 and said.strip() == str(page), error
    text = page.read_text()
    assert "Expected accuracy" in text and ">drift</td>" in text and text.count("<svg") == 3
    assert call(*arguments, "--guard")[0] == 0  # the reference is there now


def test_a_camera_that_is_watched_again_goes_on_where_it_was(call: Call, camera: Path, tmp_path: Path) -> None:
    for number, frame in enumerate(sorted((camera / "live").iterdir())):
        folder = tmp_path / ("first" if number < 32 else "second")
        folder.mkdir(exist_ok=True)
        shutil.copy2(frame, folder)
    given = (
        "--statistics",
        camera / "statistics.safetensors",
        "--reference",
        tmp_path / "reference.safetensors",
        "--clean",
        camera / "clean",
    )
    code, whole, error = call("watch", MODEL, camera / "live", *given)
    assert code == 0, error
    state = tmp_path / "state"
    for name in ("first", "second"):
        code, said, error = call("watch", MODEL, tmp_path / name, *given, "--state", state)
        assert code == 0, error
    assert said.splitlines()[-1] == whole.splitlines()[-1] and said.splitlines()[-1].startswith("48 images")
    assert not list(tmp_path.glob("state?*"))  # one file keeps both
    code, _, error = call("watch", MODEL, tmp_path / "second", *given, "--state", state, "--guard")
    assert code == 2 and "saved with method='align', but this run has 'guarded'" in error
    state.write_bytes(state.read_bytes()[:-1])
    code, _, error = call("watch", MODEL, tmp_path / "second", *given, "--state", state)
    assert code == 2 and str(state) in error


def test_calibration_makes_the_reference_too_and_thumbnails_are_optional(
    call: Call, camera: Path, tmp_path: Path
) -> None:
    stats, monitor, events = (
        tmp_path / "statistics.safetensors",
        tmp_path / "reference.safetensors",
        tmp_path / "events.jsonl",
    )
    clean = shutil.copytree(camera / "clean", tmp_path / "clean")
    damaged = min(clean.rglob("*.png"))
    damaged.write_bytes(damaged.read_bytes()[:60])
    with pytest.warns(ImageWarning, match=f"{damaged.name} .*; it is left out"):
        code, said, error = call("calibrate", MODEL, clean, "-o", stats, "--reference", monitor)
    assert code == 0 and f"{stats}: statistics" in said and f"{monitor} was made from 71 clean images" in error, error
    plain = tmp_path / "plain.safetensors"
    made = ("-o", tmp_path / "again.safetensors", "--reference", plain, "--no-corruptions")
    assert call("calibrate", MODEL, camera / "clean", *made)[0] == 0
    assert fozo.Reference.load(plain).signatures is None and fozo.Reference.load(monitor).signatures is not None
    given = ("watch", MODEL, camera / "live", "--statistics", stats, "--reference", monitor)
    code, _, error = call(*given, "--thumbnails")
    assert code == 2 and "give its name as --events" in error
    assert call(*given, "--events", events, "--thumbnails")[0] == 0
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    drift = next(line for line in lines if line.get("name") == "drift")
    jpegs = [base64.b64decode(drift["thumbnails"][name]) for name in ("camera", "equalised")]
    seen, equalised = (np.asarray(Image.open(io.BytesIO(jpeg))) for jpeg in jpegs)
    assert seen.shape == equalised.shape == (28, 28) and len(drift["thumbnails"]) == 2
    assert equalised.std() > seen.std()  # contrast was lost, and is given back
    page = write_timeline(events, tmp_path / "page.html").read_text()
    assert page.count('src="data:image/jpeg;base64,') == sum(len(line.get("thumbnails", ())) for line in lines) >= 2


def test_a_torn_last_line_is_left_out_and_text_is_escaped(tmp_path: Path) -> None:
    events = tmp_path / "<b>.jsonl"
    event = {"type": "event", "image": 3, "time": 0, "name": "<i>", "text": "a < b"}
    reading = {"type": "reading", "image": 8, "time": 0, "drift_ratio": 0.5}
    reading |= {"relative_accuracy": 0.8, "relative_accuracy_low": 0.7, "relative_accuracy_high": 0.9}
    lines = [json.dumps(line) for line in (reading, event, reading | {"image": 16})]
    events.write_text("\n".join([*lines, '{"type": "rea']))
    text = write_timeline(events, tmp_path / "page.html").read_text()
    assert "<i>" not in text and "&lt;i&gt;" in text and "a &lt; b" in text and "16 images, 1 events" in text
    assert "<h1>A camera over time: drift and expected accuracy</h1>" in text
    assert "Expected accuracy relative to clean images" in text and "Distance from clean images over its" in text


def test_frames_come_from_folders_that_grow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fozo.cli.folder.POLL", 0.0)
    picture = np.zeros((8, 8, 3), dtype=np.uint8)
    (tmp_path / "b.png").write_bytes(b"half a file")
    Image.fromarray(picture).save(tmp_path / "c.png")
    source = frames(str(tmp_path), follow=True)

    def until_none() -> list[str]:
        return [frame.name for frame in iter(lambda: next(source), None) if frame is not None]

    assert until_none() == ["c.png"]
    Image.fromarray(picture).save(tmp_path / "a.png")
    Image.fromarray(picture).save(tmp_path / "b.png")  # now it is whole
    assert until_none() == ["a.png", "b.png"] and until_none() == []
    (tmp_path / "d.png").write_bytes(b"never whole")
    assert [until_none() for _ in range(4)] == [[]] * 4
    assert "d.png" in capsys.readouterr().err


def test_a_video_is_calibrated_on_and_watched_in_its_own_time(call: Call, camera: Path, tmp_path: Path) -> None:
    """24 clean frames in 12 seconds, then 24 of low contrast; dates were of 1970."""
    cv2 = pytest.importorskip("cv2")
    path, stats, monitor = (
        tmp_path / "camera.mp4",
        tmp_path / "statistics.safetensors",
        tmp_path / "reference.safetensors",
    )
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), 2, (112, 112))
    for image in sorted((camera / "live").iterdir()):
        writer.write(cv2.resize(cv2.imread(str(image)), (112, 112), interpolation=cv2.INTER_CUBIC))
    writer.release()
    calibrate = ("calibrate", MODEL, path, "-o", stats, "--reference", monitor)
    code, said, error = call(*calibrate, "--first", "12s", "--sample", 3)
    assert code == 0 and "over 24 images" in said and "made from 24 clean images" in error, error
    reference = fozo.Reference.load(monitor)
    assert reference.signatures is not None and reference.signatures.images == 3
    code, said, error = call("watch", MODEL, path, "--statistics", stats, "--reference", monitor)
    assert code == 0 and re.search(r"since image \d+ \(00:00:1\d\)", said) and "1970" not in said, said + error
    assert "over 48 images" in call(*calibrate[:5])[1]
    for given, message in (
        ((path, "--first", "soon"), "--first is 'soon'; give how long the video is clean, such as 60s"),
        ((camera / "clean", "--first", "60s"), "--first is for a video"),
        ((camera / "clean", "--reference", monitor, "--sample", 1), "sample is 1; give at least 2 images"),
    ):
        code, _, error = call("calibrate", MODEL, *given, "-o", stats)
        assert code == 2 and message in error


@pytest.mark.parametrize(
    ("source", "message"),
    [("nowhere", "no folder or video nowhere"), ("{}", "holds no images"), ("{}/no.avi", "cannot read a frame")],
)
def test_what_gives_no_frames_is_refused(source: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "no.avi").write_bytes(b"no video")
    with pytest.raises(FozoError, match=message):
        next(frames(source.format(tmp_path)))
    with pytest.raises(FozoError, match="only a folder can be followed"):
        frames(str(tmp_path / "no.avi"), follow=True)


def test_frames_are_batched_and_none_waits_for_ever() -> None:
    frame = Frame("a", np.zeros((1, 1, 3), dtype=np.uint8), 0.0)
    stream = iter([frame, frame, frame, None, None, frame])
    assert [len(batch) for batch in batches(stream, 2)] == [2, 1, 1]


def test_the_table_shows_the_status(camera: Path) -> None:
    engine = fozo.load_engine(MODEL, threads=1)
    adapter = fozo.NoAdapt(engine)
    pixels = np.stack([frame.pixels[..., :1] for frame in frames(str(camera / "live")) if frame is not None])
    monitor = fozo.Monitor(fozo.Reference.collect(adapter, pixels[:24], corruptions=False)).watch(adapter)
    adapter(engine.spec.normalise(np.zeros((8, 28, 28, 1), dtype=np.uint8)))
    console = Console(file=io.StringIO(), width=120)
    console.print(view(monitor, "[red]door"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[red]door: 8 images" in text and "drift" in text and "the picture is black" in text
