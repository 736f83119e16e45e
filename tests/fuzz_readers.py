"""The readers that ``python -m tests.fuzz`` tries, and whole files for each to begin with."""

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from safetensors.torch import save_file

import fozo
from fozo.bench.plan import Experiment, Recipe, StreamPlan
from fozo.bench.report.page import read_events, timeline_page, write_report
from fozo.bench.store import Store
from fozo.cli.folder_run import BatchLine, read_folder_run
from fozo.core.statistics import SourceStatistics
from fozo.engines.onnx.schema import METADATA
from fozo.io import encode
from fozo.methods.eata import Fisher, measure_fisher
from fozo.methods.method import Method
from fozo.quant import Scales, ptq4vit, with_scales
from fozo.state import same
from tests.bench.invented import invent
from tests.fuzz import Parts, Reader
from tests.helpers import random_images, random_vit

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
    return fozo.load_engine(random_vit(), mean=(0.5,) * 3, std=(0.5,) * 3)


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


# --- files of states: a part is what the file says of itself, its table of arrays, and the numbers ---


def state_parts(path: Path) -> Parts:
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    table = json.loads(data[8:end])
    about = table.pop("__metadata__")["fozo"]
    return [about.encode(), json.dumps(table).encode(), data[end:]]


def state_file(parts: Parts) -> bytes:
    """Give a file its length and its checksum, so that what is wrong in it is seen."""
    about, table, *body = [*parts, b"", b""][: max(2, len(parts))]
    text = about.decode("latin-1")
    try:
        known = json.dumps(json.loads(table))
    except ValueError:
        known = table.decode("latin-1")
    numbers = b"".join(body)
    checksum = zlib.crc32(numbers, zlib.crc32(f"{text} {known}".encode()))
    metadata = json.dumps({"fozo": text, "crc32": str(checksum)})
    rest = known[1:] if known.startswith("{") else f" {known}"
    comma = "" if rest.strip() == "}" else ", "
    header = f'{{"__metadata__": {metadata}{comma}{rest}'.encode()
    return len(header).to_bytes(8, "little") + header + numbers


def measured(save: Callable[[Path], object], read: Callable[[Path], None], path: Path) -> Reader:
    save(path)
    return Reader(read, [state_parts(path)], state_file, f"copy of {path.name}")


def archive(save: Callable[[Path], object], read: Callable[[Path], None], path: Path) -> Reader:
    save(path)
    return Reader(read, [members(path)], zipped, f"copy of {path.name}")


OPTIONS: dict[str, dict[str, Any]] = {
    "align": {"retrieval.capacity": 16},
    "fozo": {"window": 8},
    "foa": {"window": 8},
    "zoa": {"window": 8, "capacity": 2},
}


@reader
def state(folder: Path) -> Reader:
    methods: dict[str, Method[Any, Any]] = {}
    whole = []
    for name, options in OPTIONS.items():
        method = methods[name] = fozo.create(name, engine(), source(), **options)
        for seed in range(2):
            method(random_images(6, seed=seed))
        method.save(folder / "state")
        whole.append(state_parts(folder / "state"))
    images = random_images(6, seed=9)
    counter = iter(range(10**9))

    def read(path: Path) -> None:
        header = path.read_bytes()[:4000].replace(b"\\", b"")
        chosen = [name for name in methods if f'"method": "{name}"'.encode() in header]
        method = methods[chosen[0] if chosen else list(methods)[next(counter) % len(methods)]]
        before = method.state()
        try:
            method.restore(path)
        except fozo.FozoError:
            assert same(before, method.state()), "a refused state changed it"
            raise
        try:
            assert np.isfinite(method(images)).all()
        finally:
            method.load_state(before)

    return Reader(read, whole, state_file, "state")


@reader
def statistics(folder: Path) -> Reader:
    def read(path: Path) -> None:
        method = fozo.create("align", engine(), SourceStatistics.load(path))
        assert np.isfinite(method(random_images(4))).all()

    return measured(source().save, read, folder / "stats")


@reader
def fisher(folder: Path) -> Reader:
    def read(path: Path) -> None:
        fozo.create("eata", engine(), fisher=Fisher.load(path))(random_images(4))

    return measured(measure_fisher(engine(), [random_images(8)]).save, read, folder / "fisher")


@reader
def scales(folder: Path) -> Reader:
    def read(path: Path) -> None:
        quantised = with_scales(engine(), Scales.load(path))
        quantised.run(quantised.check(random_images(1)))

    return measured(ptq4vit(engine(), random_images(4), metric="l2").scales.save, read, folder / "scales")


@cache
def watched() -> tuple[Method[Any, Any], fozo.MonitorReference]:
    adapter = fozo.create("align", engine(), source())
    shape = adapter.engine.spec.image_shape
    pixels = np.random.default_rng(0).integers(0, 256, (16, *shape[1:], shape[0]), dtype=np.uint8)
    return adapter, fozo.MonitorReference.collect(adapter, pixels, sample=2)


@reader
def monitor_reference(folder: Path) -> Reader:
    adapter, reference = watched()

    def read(path: Path) -> None:
        monitor = fozo.Monitor(fozo.MonitorReference.load(path)).watch(adapter.clone())
        monitor.adapter(random_images(6, seed=9))
        assert monitor.sentence

    return measured(reference.save, read, folder / "monitor")


@reader
def monitor_state(folder: Path) -> Reader:
    """What a monitor remembers, beside the state of what it watches."""
    adapter, reference = watched()
    adapter = adapter.clone()
    monitor = fozo.Monitor(reference, shadow=1.0).watch(adapter)
    for seed in range(4):
        adapter(random_images(6, seed=seed))
    images = random_images(6, seed=9)

    def read(path: Path) -> None:
        before = monitor.status
        try:
            adapter.restore(path)
        except fozo.FozoError:
            assert monitor.status is before, "a refused state changed it"
            raise
        try:
            adapter(images)
            assert monitor.sentence and all(map(np.isfinite, monitor.metrics().values()))
        finally:
            adapter.restore(folder / "memory")

    return measured(adapter.save, read, folder / "memory")


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
    entries = [header, *(asdict(replace(batch, index=i, end=90 * (i + 1))) for i in range(3)), {"finished": True}]
    texts = [encode(each)[9:-1] for each in entries]

    def read(path: Path) -> None:
        run = read_folder_run(path)
        if run.batches:
            assert run.images >= 0 and run.summary is not None

    return Reader(read, [texts], lines, "copy.log")


@reader
def events(folder: Path) -> Reader:
    entries: list[dict[str, object]] = [
        {"type": "reading", "image": 8, "time": 1.5, "drift_distance": 1.0, "quality": {"contrast": -0.5}},
        {"type": "event", "image": 8, "time": 1.5, "name": "drift", "text": "no", "thumbnails": {"camera": "/9j/"}},
    ]

    def read(path: Path) -> None:
        assert "<h2>Events" in timeline_page(path.name, read_events(path))

    whole = [[json.dumps(each).encode() for each in entries + entries[:1]]]
    return Reader(read, whole, lambda parts: b"".join(part + b"\n" for part in parts), "events.jsonl")


@reader
def report(folder: Path) -> Reader:
    rows = tuple(Experiment(name, name, stream=StreamPlan(kinds=("fog", "contrast"))) for name in ("noadapt", "align"))
    store: Store = invent(folder / "runs", Recipe("mine", "Mine", rows), batches=2)
    run = next(iter(sorted(store.folder.glob("align*"))))
    names = ("result.json", "conditions.json", "records.jsonl", "costs.jsonl")
    good = {path: path.read_bytes() for path in (store.folder / "recipe.json", *(run / name for name in names))}
    texts = []
    for place, (path, data) in enumerate(good.items()):
        text = b"\n".join(line[9:] for line in data.splitlines()) if path.suffix == ".jsonl" else data
        texts.append(bytes([place]) + text)

    def read(path: Path) -> None:
        """The first byte says which file it stands for; a log gets its checksums."""
        data = path.read_bytes()
        for file, content in good.items():
            file.write_bytes(content)
        target = list(good)[data[0] % len(good) if data else 0]
        target.write_bytes(lines(data[1:].split(b"\n")) if target.suffix == ".jsonl" else data[1:])
        write_report(folder / "runs", folder / "report.html")

    return Reader(read, [[text] for text in texts], joined, "result")


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

    whole = [[data[8 : 8 + length], data[8 + length :]]]
    return Reader(lambda path: load(path, heads=3), whole, build, "v.safetensors")


@reader
def checkpoint(folder: Path) -> Reader:
    """A .pt file, whose pickle torch reads without running code."""
    save = partial(torch.save, random_vit().state_dict())
    return archive(save, lambda path: load(path, heads=3), folder / "vit.pt")


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
