"""``fozo adapt --out-dir``: many streams in one command, whole after any kill."""

import csv
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fozo.cli.streams import Camera, write_cameras
from fozo.data import sample
from fozo.io import locked
from tests.cli.conftest import Call
from tests.helpers import REPO
from tests.ray_process import run_cases

MODEL = sample.MODELS["float32"]
STATS = MODEL.with_suffix(".statistics.safetensors")
REFERENCE = MODEL.with_suffix(".monitor.safetensors")


PLAIN = (1.0, 0)


def plant(root: Path, streams: int, images: int, change: Callable[[int, int], tuple[float, int]] | None = None) -> Path:
    """Folders of photographs, whose pixels are multiplied and raised by ``change(stream, image)``."""
    with np.load(sample.IMAGES) as archive:
        photos = archive["images"]
    for stream in range(streams):
        folder = root / f"cam{stream:03}"
        folder.mkdir(parents=True)
        for image in range(images):
            gain, offset = change(stream, image) if change else PLAIN
            pixels = gain * photos[(stream * images + image) % len(photos)] + offset
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{image:03}.png", compress_level=1)
    return root


def files(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def table(out: Path) -> list[dict[str, str]]:
    with (out / "cameras.csv").open() as file:
        return list(csv.DictReader(file))


def start(*arguments: object, **options: object) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "tests.cli.archive", "adapt", str(MODEL), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(program, cwd=REPO, **{**pipes, **options})  # type: ignore[call-overload, no-any-return]


def rows(out: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in out.glob("*/predictions.csv"))


def test_cameras_are_ordered_by_what_is_wrong_with_them(call: Call, tmp_path: Path) -> None:
    """There is haze before the second one from half-way on, the third is black from then on."""
    later = {1: (0.25, 100), 2: (0.0, 0)}
    root = plant(tmp_path / "archive", 3, 96, lambda stream, image: later.get(stream, PLAIN) if image >= 48 else PLAIN)
    command = ("adapt", MODEL, root, "--each", "--statistics", STATS, "--out-dir", tmp_path / "out", "--batch-size", 16)
    code, said, errors = call(*command, "--reference", REFERENCE)
    assert (code, errors) == (0, "") and said.count("cam001") == 2
    black, hazy, clean = table(tmp_path / "out")
    assert (black["camera"], hazy["camera"], clean["camera"]) == ("cam002", "cam001", "cam000")
    assert "black" in black["faults"] and not hazy["faults"]
    assert "contrast" in hazy["drift"] and 33 <= int(hazy["since_image"]) <= 64 and hazy["since_time"].endswith("Z")
    assert float(hazy["accuracy_now"]) < float(hazy["accuracy_first"])
    assert (clean["drift"], clean["faults"], clean["images"]) == ("", "", "96")
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.index("cam002") < page.index("cam001") < page.index("cam000") and 'href="cam001/"' in page
    before = files(tmp_path / "out")
    assert call(*command, "--reference", REFERENCE)[:2] == (0, said) and files(tmp_path / "out") == before


def test_a_killed_command_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    root = plant(tmp_path / "archive", 6, 40)
    command = (root, "--each", "--statistics", STATS, "--batch-size", 1, "--out-dir")
    whole = start(*command, tmp_path / "whole", "--workers", 1)
    assert whole.wait(200) == 0, whole.communicate()
    for goal in (30, 150):
        cut = start(*command, tmp_path / "cut", "--workers", 2)
        while rows(tmp_path / "cut") < goal and cut.poll() is None:
            time.sleep(0.002)
        cut.kill()
        assert cut.wait() == -signal.SIGKILL, "it had ended before it was killed"
    cut = start(*command, tmp_path / "cut", "--workers", 2)
    assert cut.wait(200) == 0, cut.communicate()
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_a_fault_of_one_stream_leaves_the_others_whole(call: Call, tmp_path: Path) -> None:
    root = plant(tmp_path / "archive", 4, 6)
    command = ("adapt", MODEL, root, "--each", "--statistics", STATS, "--workers", 2, "--out-dir")
    assert call(*command, tmp_path / "whole")[0] == 0
    damaged = root / "cam000" / "003.png"
    damaged.write_bytes(damaged.read_bytes()[:60])
    bury(root / "cam001")
    shutil.rmtree(root / "cam002")
    (root / "cam002").mkdir()
    code, said, errors = call(*command, tmp_path / "out")
    assert code == 2 and "cam000: 5 images; 1 left out" in said
    assert len(errors.splitlines()) == 3, errors
    assert "fozo: cam001: cannot list" in errors and "fozo: cam002: " in errors and "holds no images" in errors
    assert "2 of 4 streams failed" in errors
    assert [row["camera"] for row in table(tmp_path / "out")][:2] == ["cam001", "cam002"]
    for name in ("predictions.csv", "predictions.csv.log", "state.safetensors"):
        of_camera = Path("cam003") / name
        assert (tmp_path / "out" / of_camera).read_bytes() == (tmp_path / "whole" / of_camera).read_bytes()
    with locked(tmp_path / "out"):
        code, said, errors = call(*command, tmp_path / "out")
    assert (code, said, len(errors.splitlines())) == (2, "", 1) and "another process is working in" in errors


def bury(folder: Path) -> None:
    """Add folders inside each other that nobody can list by their path, which is too long for the system."""
    before = os.open(".", os.O_RDONLY)
    os.chdir(folder)
    try:
        for _ in range(20):
            Path("d" * 250).mkdir()
            os.chdir("d" * 250)
    finally:
        os.fchdir(before)
        os.close(before)


def test_a_full_disk_is_one_sentence_for_each_stream_and_the_command_goes_on(tmp_path: Path) -> None:
    root = plant(tmp_path / "archive", 2, 8)
    plant(tmp_path / "long", 1, 400)
    (tmp_path / "long" / "cam000").rename(root / "long")
    command = (root, "--each", "--method", "noadapt", "--batch-size", 8, "--out-dir", tmp_path / "out")
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (16_000, resource.RLIM_INFINITY))
    full = start(*command, preexec_fn=limit)
    said, errors = full.communicate(timeout=200)
    assert full.returncode == 2 and len(errors.splitlines()) == 2, errors
    assert "fozo: long: cannot write" in errors and "1 of 3 streams failed" in errors
    assert said.startswith("cam000: 8 images\ncam001: 8 images\n")
    again = start(*command)
    assert again.wait(200) == 0 and [row["images"] for row in table(tmp_path / "out")] == ["8", "8", "400"]


def test_five_hundred_streams(tmp_path: Path) -> None:
    """The parent keeps a row of each stream, and no files are left behind."""
    root = plant(tmp_path / "archive", 500, 20)
    command = (root, "--each", "--method", "noadapt", "--batch-size", 20, "--workers", 2, "--out-dir", tmp_path / "out")
    run = start(*command)
    assert run.stdout is not None
    memory = []
    for _ in range(500):
        assert run.stdout.readline().endswith(": 20 images\n")
        memory.append(resident(run.pid))
    assert run.wait(100) == 0
    assert memory[-1] - memory[100] < 4 << 20
    names = {"predictions.csv", "predictions.csv.log", "state.safetensors"}
    left = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").glob("**/*") if path.is_file()}
    assert left == {".lock", "cameras.csv", "index.html", *(f"cam{i:03}/{name}" for i in range(500) for name in names)}


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_page_of_many_cameras_is_small_and_escapes_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "fine detail -99 %, contrast -99 %, brightness -13.3 stops, unlike all that was seen at calibration"
    row = partial(Camera, images=2500, drift=words, since_image=77, since_time="2026-11-20 00:59:30Z", measure=2.5)
    cameras = [row(f"<b>{i}", accuracy_first=0.9, accuracy_now=0.9 - i / 1000, files=f"<b>{i}") for i in range(500)]
    write_cameras(cameras, tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert len(page) < 1_000_000 and page.count("&lt;b&gt;") == 500 and "<b>" not in page
    assert [row["camera"] for row in table(tmp_path)][:2] == ["<b>499", "<b>498"]
    assert "and 480 more" in capsys.readouterr().out


def test_videos_are_streams_with_the_times_of_their_frames(call: Call, tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    folder = plant(tmp_path / "archive", 1, 12) / "cam000"
    writer = cv2.VideoWriter(str(tmp_path / "gate.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 4, (28, 28))
    for path in sorted(folder.iterdir()):
        writer.write(cv2.imread(str(path)))
    writer.release()
    given = ("--statistics", STATS, "--batch-size", 5, "--out-dir", tmp_path / "out", "--jsonl")
    code, said, errors = call("adapt", MODEL, tmp_path / "gate.avi", folder, *given)
    assert (code, errors) == (0, ""), said
    lines = [json.loads(line) for line in (tmp_path / "out" / "gate.avi" / "predictions.jsonl").open()]
    assert [(line["image"], line["time"]) for line in lines] == [(i + 1, i / 4) for i in range(12)]
    of_folder = [json.loads(line) for line in (tmp_path / "out" / "cam000" / "predictions.jsonl").open()]
    assert of_folder[3].keys() == {"image", "classes", "probabilities"} and len(of_folder[3]["classes"]) == 5


@contextmanager
def without(monkeypatch: pytest.MonkeyPatch, module: str) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, module, None)
        yield


def test_what_is_missing_or_wrong_is_said_before_any_work(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = plant(tmp_path / "archive", 2, 2)
    video = tmp_path / "gate.avi"
    video.write_bytes(b"no video")
    (tmp_path / "empty").mkdir()
    out = ("--out-dir", tmp_path / "out")
    nowhere = tmp_path / "nowhere.onnx"
    given = ("--statistics", STATS)
    with without(monkeypatch, "cv2"):
        for command in (
            ("adapt", nowhere, video, *given, *out),
            ("watch", nowhere, video, *given),
            ("calibrate", nowhere, video),
        ):
            code, _, errors = call(*command)
            assert code == 2 and "pip install 'fozo[video]'" in errors, command
        made = ("-o", tmp_path / "s.safetensors", "--reference", tmp_path / "r.safetensors")
        code, _, errors = call("calibrate", nowhere, root / "cam000", *made)
        assert code == 2 and "OpenCV" in errors and "--no-corruptions" in errors
        code, _, errors = call("calibrate", nowhere, root / "cam000", *made, "--no-corruptions")
        assert code == 2 and "nowhere.onnx" in errors  # which comes after OpenCV is looked for
    with without(monkeypatch, "ray"):
        code, _, errors = call("adapt", MODEL, root, "--each", *given, *out, "--ray")
        assert code == 2 and "pip install 'fozo[ray]'" in errors
    for arguments, sentence in (
        ((root, "--each", *given), "give the folder for these as --out-dir"),
        ((root, root, *given), "give the folder for these as --out-dir"),
        ((root, "--each", *given, *out, "-o", "p.csv"), "leave out --out"),
        ((tmp_path / "empty", "--each", *given, *out), "holds no folders and no videos"),
        ((root / "cam000", root / "cam000", *given, *out), "would both be called cam000"),
        ((tmp_path / "none", *given, *out), "is not a folder and not a video"),
        ((root, "--each", *given, *out, "--workers", 0), "workers is 0"),
    ):
        code, _, errors = call("adapt", MODEL, *arguments)
        assert code == 2 and len(errors.splitlines()) == 1 and sentence in errors, (arguments, errors)
    code, _, errors = call("adapt", nowhere, root, "--each", *given, *out)
    assert code == 2 and len(errors.splitlines()) == 1 and "nowhere.onnx" in errors


def test_ray_is_imported_only_where_it_is_asked_for() -> None:
    program = "import sys, fozo.cluster, fozo.cli.streams; sys.exit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.ray
def test_a_ray_cluster_whose_workers_are_killed(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'fozo[ray]'")
    run_cases([REPO / "tests" / "cli" / "ray_cases.py"], 1, tmp_path)
