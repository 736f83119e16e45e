"""The readers that ``python -m tests.fuzz`` tries, and whole files for each to begin with."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from PIL import Image
from safetensors.torch import save_file

import fozo
from fozo.bench.plan import Experiment, Recipe, StreamPlan
from fozo.bench.report.page import page
from fozo.bench.report.timeline import page as timeline_page
from fozo.bench.report.timeline import read_events
from fozo.bench.store import Store, collect
from fozo.cli.folder_page import folder_page
from fozo.cli.folder_run import BatchLine, read_folder_run
from fozo.core.statistics import SourceStatistics
from fozo.data.images import read_image, resize_crop
from fozo.data.sets import open_images
from fozo.engines.onnx.schema import METADATA
from fozo.io import encode
from fozo.methods.base import Method
from fozo.methods.common.observer import Observation
from fozo.methods.eata import Fisher, measure_fisher
from fozo.quant import Scales, ptq4vit, with_scales
from tests.bench.invented import invent
from tests.fuzz import Parts, Reader
from tests.helpers import random_images, random_vit
from tests.methods.test_states import OPTIONS

Make = Callable[[Path], Reader]
READERS: dict[str, Make] = {}


def reader(make: Make) -> Make:
    """Enter a reader under the name of the function that makes it."""
    READERS[make.__name__] = make
    return make


def joined(parts: Parts) -> bytes:
    return b"".join(parts)


@cache
def engine() -> fozo.Engine:
    torch.set_num_threads(1)
    return fozo.load_engine(random_vit())


@cache
def source() -> SourceStatistics:
    return fozo.calibrate(engine(), [random_images(32, seed=100 + i) for i in range(2)])


# --- archives of arrays: a part is a name, an array's header as text, and its numbers; or fozo's own header ---

MAGIC = b"\x93NUMPY\1\0"


def members(path: Path) -> Parts:
    parts = []
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            data = archive.read(name)
            if data.startswith(MAGIC):
                data = data[10:].partition(b"\n")[2] if name == "__header__.npy" else data[10:]
            parts.append(name.encode() + b"\0" + data)
    return parts


def zipped(parts: Parts, compression: int = zipfile.ZIP_STORED) -> bytes:
    """Give every header its length, and every array its checksum."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for part in parts:
            name, _, data = part.partition(b"\0")
            if name == b"__header__.npy":
                data = b"{'descr': '|u1', 'fortran_order': False, 'shape': (%d,)}\n" % len(data) + data
            if name.endswith(b".npy"):
                data = MAGIC + struct.pack("<H", data.find(b"\n") + 1 & 0xFFFF) + data
            archive.writestr(name.decode("latin-1") or "x", data)
    return stream.getvalue()


@reader
def state(folder: Path) -> Reader:
    methods: dict[str, Method[Any]] = {}
    whole = []
    for name, options in OPTIONS.items():
        given: dict[str, Any] = {"fisher": measure_fisher(engine(), [random_images(8)])} if name == "eata" else {}
        method = methods[name] = fozo.create(name, engine(), source(), **options, **given)
        for seed in range(2):
            method(random_images(6, seed=seed))
        method.save(folder / "state.npz")
        whole.append(members(folder / "state.npz"))
    images = random_images(6, seed=9)
    counter = iter(range(10**9))

    def read(path: Path) -> None:
        header = path.read_bytes()[:4000]
        chosen = [name for name in methods if f'"method": "{name}"'.encode() in header]
        method = methods[chosen[0] if chosen else list(methods)[next(counter) % len(methods)]]
        before = method.state()
        try:
            method.restore(path)
        except fozo.FozoError:
            after = method.state()
            assert before.keys() == after.keys()
            assert all(np.array_equal(before[name], after[name]) for name in before), "a refused state changed it"
            raise
        try:
            assert np.isfinite(method(images)).all()
        finally:
            method.load_state(before)

    return Reader(read, whole, zipped, "state.npz")


@reader
def statistics(folder: Path) -> Reader:
    source().save(folder / "stats.npz")

    def read(path: Path) -> None:
        method = fozo.create("align", engine(), SourceStatistics.load(path))
        assert np.isfinite(method(random_images(4))).all()

    return Reader(read, [members(folder / "stats.npz")], zipped, "stats.npz")


@reader
def fisher(folder: Path) -> Reader:
    measure_fisher(engine(), [random_images(8)]).save(folder / "fisher.npz")

    def read(path: Path) -> None:
        fozo.create("eata", engine(), fisher=Fisher.load(path))(random_images(4))

    return Reader(read, [members(folder / "fisher.npz")], zipped, "fisher.npz")


@reader
def scales(folder: Path) -> Reader:
    ptq4vit(engine(), random_images(4), metric="l2").scales.save(folder / "scales.npz")

    def read(path: Path) -> None:
        quantised = with_scales(engine(), Scales.load(path))
        quantised.run(quantised.check(random_images(1)))

    return Reader(read, [members(folder / "scales.npz")], zipped, "scales.npz")


def use(path: Path) -> None:
    images = open_images(path)
    for index in {0, len(images) - 1}:
        resize_crop(images.read(index, images.domains[-1]), 32)
    assert len(images.fingerprint) == 16


@reader
def arrays(folder: Path) -> Reader:
    path = folder / "set.npz"
    np.savez(path, images=np.zeros((5, 8, 8), np.uint8), labels=np.arange(5), classes=list("abcde"))
    gray = members(path)
    np.savez(path, images=np.zeros((2, 8, 8, 3), np.uint8), labels=np.arange(2, dtype=np.uint8), classes=["a", "bcd"])

    def build(parts: Parts) -> bytes:
        return zipped(parts, zipfile.ZIP_DEFLATED)

    return Reader(use, [gray, members(path)], build, "set.npz")


@reader
def cifar(folder: Path) -> Reader:
    root = folder / "cifar"
    root.mkdir()
    np.save(root / "labels.npy", np.tile(np.arange(3), 5))
    np.save(root / "fog.npy", np.zeros((15, 8, 8, 3), np.uint8))
    good = (root / "fog.npy").read_bytes()

    def read(path: Path) -> None:
        (root / "fog.npy").write_bytes(path.read_bytes())
        use(root)

    return Reader(read, [[good[:10], good[10:128], good[128:]]], joined, "fog")


@cache
def watched() -> tuple[Method[Any], fozo.MonitorReference]:
    known = fozo.load_engine(random_vit(), mean=(0.5,) * 3, std=(0.5,) * 3)
    batches = [random_images(32, seed=100 + i) for i in range(2)]
    adapter = fozo.create("align", known, fozo.calibrate(known, batches))
    shape = known.spec.image_shape
    pixels = np.random.default_rng(0).integers(0, 256, (16, *shape[1:], shape[0]), dtype=np.uint8)
    return adapter, fozo.MonitorReference.collect(adapter, pixels, sample=2)


@reader
def monitor_reference(folder: Path) -> Reader:
    adapter, reference = watched()
    reference.save(folder / "monitor.npz")
    images = random_images(6, seed=9)

    def read(path: Path) -> None:
        monitor = fozo.Monitor(fozo.MonitorReference.load(path)).watch(adapter.clone())
        monitor.adapter(images)
        assert monitor.sentence

    return Reader(read, [members(folder / "monitor.npz")], zipped, "monitor.npz")


@reader
def monitor_state(folder: Path) -> Reader:
    adapter, reference = watched()
    monitor = fozo.Monitor(reference, shadow=1.0).watch(adapter.clone())
    for seed in range(4):
        monitor.adapter(random_images(6, seed=seed))
    monitor.save(folder / "memory.npz")
    images = random_images(6, seed=9)

    def read(path: Path) -> None:
        before = monitor.status
        try:
            monitor.restore(path)
        except fozo.FozoError:
            assert monitor.status is before, "a refused state changed it"
            raise
        try:
            monitor.observe(Observation(adapter.engine.check(images), np.zeros((6, 7), np.float32), None))
            assert monitor.sentence and all(map(np.isfinite, monitor.metrics().values()))
        finally:
            monitor.restore(folder / "memory.npz")

    return Reader(read, [members(folder / "memory.npz")], zipped, "copy.npz")


# --- logs and JSON ---


def lines(parts: Parts) -> bytes:
    """Give every text its checksum."""
    return joined([b"%08x %s\n" % (zlib.crc32(part), part) for part in parts])


@reader
def journal(folder: Path) -> Reader:
    method = fozo.create("fozo", engine(), source(), journal=folder / "run.journal")
    for seed in range(3):
        method(random_images(6, seed=seed))
    texts = [line[9:] for line in (folder / "run.journal").read_bytes().splitlines()]

    def read(path: Path) -> None:
        assert np.isfinite(fozo.replay(path)).all()

    return Reader(read, [texts], lines, "copy.journal")


@reader
def folder_run_log(folder: Path) -> Reader:
    header = {"kind": "fozo adapt", "version": 1, "model": "vit", "labelled": True}
    batch = BatchLine(0, 4, 90, 0.5, 0.6, 1.0, 3, {"shift": 1.5})
    facts = [header, *(asdict(replace(batch, index=i, end=90 * (i + 1))) for i in range(3)), {"finished": True}]
    texts = [encode(each)[9:-1] for each in facts]

    def read(path: Path) -> None:
        run = read_folder_run(path)
        if run.batches:
            assert "<svg" in folder_page(run) and run.images > 0

    return Reader(read, [texts], lines, "copy.log")


@reader
def events(folder: Path) -> Reader:
    facts: list[dict[str, object]] = [
        {"type": "reading", "image": 8, "time": 1.5, "drift_distance": 1.0, "quality": {"contrast": -0.5}},
        {"type": "event", "image": 8, "time": 1.5, "name": "drift", "text": "no", "thumbnails": {"camera": "/9j/"}},
    ]

    def read(path: Path) -> None:
        assert "<h2>Events" in timeline_page(path.name, read_events(path))

    whole = [[json.dumps(each).encode() for each in facts + facts[:1]]]
    return Reader(read, whole, lambda parts: b"".join(part + b"\n" for part in parts), "events.jsonl")


@reader
def report(folder: Path) -> Reader:
    rows = tuple(Experiment(name, name, stream=StreamPlan(kinds=("fog", "contrast"))) for name in ("noadapt", "align"))
    store: Store = invent(folder / "runs", Recipe("mine", "Mine", rows), batches=2)
    run = next(iter(sorted(store.folder.glob("align*"))))
    names = [store.folder / "recipe.json", *(run / name for name in ("result.json", "conditions.json"))]
    logs = [run / name for name in ("records.jsonl", "costs.jsonl")]
    good = {path: path.read_bytes() for path in (*names, *logs)}
    texts = [bytes([place]) + good[path] for place, path in enumerate(names)]
    texts += [
        bytes([len(names) + place]) + b"\n".join(line[9:] for line in good[path].splitlines())
        for place, path in enumerate(logs)
    ]

    def read(path: Path) -> None:
        """The first byte says which file it stands for; a log gets its checksums."""
        data = path.read_bytes()
        for file, content in good.items():
            file.write_bytes(content)
        place = data[0] % len(good) if data else 0
        target = list(good)[place]
        target.write_bytes(data[1:] if target in names else lines(data[1:].split(b"\n")))
        groups = collect(folder / "runs")
        page(groups, list(map(str, store.stale())))

    return Reader(read, [[text] for text in texts], joined, "result")


# --- tars and images ---


def png_chunks(data: bytes) -> Parts:
    parts, place = [data[:8]], 8
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        parts.append(data[place + 4 : place + 8 + length])
        place += 12 + length
    return parts


def png(parts: Parts) -> bytes:
    """Give every chunk its length and checksum."""
    chunks = [struct.pack(">I", max(0, len(p) - 4)) + p + struct.pack(">I", zlib.crc32(p)) for p in parts[1:]]
    return joined([parts[0], *chunks]) if parts[0][:4] == b"\x89PNG" else joined(parts)


@reader
def image(folder: Path) -> Reader:
    y, x = np.mgrid[:40, :60]
    picture = Image.fromarray(np.stack([x * 4, y * 6, x + y], axis=2).astype(np.uint8))
    forms = {"JPEG": {}, "BMP": {}, "GIF": {}, "PPM": {}, "WEBP": {}, "TIFF": {"compression": "tiff_lzw"}}
    whole: list[Parts] = []
    for mode in ("RGB", "L", "P", "RGBA", "1", "I;16"):
        stream = io.BytesIO()
        deep = Image.fromarray((x * y).astype(np.uint16)) if mode == "I;16" else picture.convert(mode)
        deep.save(stream, "PNG")
        whole.append(png_chunks(stream.getvalue()))
    for form, options in forms.items():
        stream = io.BytesIO()
        picture.save(stream, form, **options)
        data = stream.getvalue()
        whole.append([data[:32], data[32:]])
    whole[-1] += [b"tail"]
    picture.save(stream := io.BytesIO(), "JPEG", progressive=True, exif=b"Exif\0\0II*\0" + bytes(40))
    whole.append([stream.getvalue()[:200], stream.getvalue()[200:]])

    def read(path: Path) -> None:
        pixels = read_image(path)
        assert pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3
        assert resize_crop(pixels, 64).shape == (64, 64, 3)

    return Reader(read, whole, png, "image.png", memory=1200 << 20)


def tar_blocks(data: bytes) -> Parts:
    return [data[place : place + 512] for place in range(0, len(data), 512)]


def tar_file(parts: Parts) -> bytes:
    """Give every header its checksum: a block that has ``ustar`` in its place is one."""
    made = []
    for part in parts:
        if part[257:262] == b"ustar" and len(part) == 512:
            blank = part[:148] + b" " * 8 + part[156:]
            part = part[:148] + b"%06o\0 " % sum(blank) + part[156:]
        made.append(part)
    return joined(made)


@reader
def tar(folder: Path) -> Reader:
    stream, picture = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (8, 8)).save(picture, "PNG")
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in {"a.png": picture.getvalue(), "a.cls": b"3", f"{'b' * 120}é.png": picture.getvalue()}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        entry = tarfile.TarInfo(f"{'b' * 120}é.cls")
        entry.size = 1
        archive.addfile(entry, io.BytesIO(b"1"))
    return Reader(use, [tar_blocks(stream.getvalue()[:8192])], tar_file, "set.tar", memory=1200 << 20)


# --- models ---


def load(path: Path, **options: Any) -> None:
    model = fozo.load_engine(path, **options)
    logits = model.run(model.check(random_images(1)))
    assert len(logits) == 1


@reader
def safetensors(folder: Path) -> Reader:
    save_file(random_vit().state_dict(), folder / "vit.safetensors")
    data = (folder / "vit.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])

    def build(parts: Parts) -> bytes:
        return struct.pack("<Q", len(parts[0])) + joined(parts)

    return Reader(
        lambda path: load(path, heads=3), [[data[8 : 8 + length], data[8 + length :]]], build, "v.safetensors"
    )


@reader
def checkpoint(folder: Path) -> Reader:
    """A .pt file, whose pickle torch reads without running code."""
    torch.save(random_vit().state_dict(), folder / "vit.pt")
    return Reader(lambda path: load(path, heads=3), [members(folder / "vit.pt")], zipped, "copy.pt")


@reader
def exported(folder: Path) -> Reader:
    """An .onnx file. Its graph stays whole: what a runtime makes of a damaged one is the runtime's to answer for."""
    fozo.export(engine(), folder / "vit.onnx", labels=[f"class {i}" for i in range(7)])
    model = onnx.load(folder / "vit.onnx")
    text = model.metadata_props[0].value.encode()
    del model.metadata_props[:]
    graph = model.SerializeToString()

    def read(path: Path) -> None:
        """The file is the metadata; messages of protobuf may be put together by writing one after the other."""
        entry = onnx.StringStringEntryProto(key=METADATA, value=path.read_bytes().decode("utf-8", "replace"))
        end = onnx.ModelProto(metadata_props=[entry]).SerializeToString()
        (folder / "model.onnx").write_bytes(graph + end)
        load(folder / "model.onnx", threads=1)

    return Reader(read, [[text]], joined, "metadata")
