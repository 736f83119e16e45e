"""The readers that ``python -m tests.fuzz`` tries, and whole files for each to begin with."""

import io
import itertools
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
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
from fozo.core.statistics import Statistics
from fozo.engines.onnx.schema import METADATA
from fozo.io import encode
from fozo.io.logs import CHECKSUM
from fozo.methods.eata import Fisher, measure_fisher
from fozo.methods.pea import Covariances, measure_covariances
from fozo.methods.registry import AnyMethod
from fozo.quant import Scales, ptq4vit, with_scales
from fozo.state import Measured, same
from tests.bench.invented import invent
from tests.fuzz import Parts, Reader
from tests.helpers import REPO, random_images, random_vit
from tests.methods.test_every_method import METHODS, create, engine, source

Make = Callable[[Path], Reader]
READERS: dict[str, Make] = {}


def reader(make: Make) -> Make:
    """Enter a reader under the name of the function that makes it."""
    READERS[make.__name__] = make
    return make


def joined(parts: Parts) -> bytes:
    return b"".join(parts)


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


def archive(save: Callable[[Path], object], read: Callable[[Path], None], path: Path) -> Reader:
    save(path)
    return Reader(read, [members(path)], zipped, f"copy of {path.name}")


# --- states, and what is measured: a part is the JSON about the file, the JSON of its arrays, or their bytes ---


def unsealed(path: Path) -> Parts:
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    about = header.pop("__metadata__")["fozo"]
    return [about.encode(), json.dumps(header).encode(), data[end:]]


def sealed(parts: Parts) -> bytes:
    """Give a file its lengths and its checksum, unless its JSON is none."""
    about, header, body = (*parts, b"", b"")[:3]
    with suppress(ValueError, RecursionError):
        tensors = json.loads(header)
        text = about.decode("utf-8", "replace")
        checksum = zlib.crc32(body, zlib.crc32(f"{text} {json.dumps(tensors)}".encode()))
        header = json.dumps({"__metadata__": {"fozo": text, "crc32": str(checksum)}, **tensors}).encode()
    return len(header).to_bytes(8, "little") + header + body


@reader
def state(folder: Path) -> Reader:
    methods: dict[str, AnyMethod] = {}
    whole = []
    for name in METHODS:
        method = methods[name] = create(name)
        if name == "align":
            fozo.Monitor(reference_of(method), shadow=1.0).watch(method)
        for seed in range(2):
            method(random_images(6, seed=seed))
        method.save(folder / "camera.state")
        whole.append(unsealed(folder / "camera.state"))
    images = random_images(6, seed=9)
    counter = itertools.count()

    def read(path: Path) -> None:
        header = path.read_bytes()[:4000]
        chosen = [name for name in methods if f'\\"method\\": \\"{name}\\"'.encode() in header]
        method = methods[chosen[0] if chosen else METHODS[next(counter) % len(METHODS)]]
        before = method.state()
        try:
            method.restore(path)
        except fozo.FozoError:
            assert same(before, method.state()), "a refused state changed it"
            raise
        try:
            assert np.isfinite(method(images)).all()
            assert all(map(np.isfinite, method.metrics().values()))
        finally:
            method.load_state(before)

    return Reader(read, whole, sealed, "camera.state")


def reference_of(adapter: AnyMethod) -> fozo.Reference:
    shape = adapter.engine.spec.image_shape
    pixels = np.random.default_rng(0).integers(0, 256, (16, *shape[1:], shape[0]), dtype=np.uint8)
    return fozo.Reference.collect(adapter, pixels, sample=2)


def use_statistics(path: Path) -> None:
    method = fozo.create("align", engine(), Statistics.load(path))
    assert np.isfinite(method(random_images(4))).all()


def use_fisher(path: Path) -> None:
    fozo.create("eata", engine(), fisher=Fisher.load(path))(random_images(4))


def use_covariances(path: Path) -> None:
    fozo.create("pea", engine(), covariances=Covariances.load(path))(random_images(4))


def use_scales(path: Path) -> None:
    quantised = with_scales(engine(), Scales.load(path))
    quantised.run(quantised.check(random_images(1)))


def use_reference(path: Path) -> None:
    monitor = fozo.Monitor(fozo.Reference.load(path)).watch(create("align"))
    monitor.adapter(random_images(6, seed=9))
    assert monitor.sentence


@reader
def measured(folder: Path) -> Reader:
    clean = [random_images(8)]
    files: dict[str, tuple[Measured, Callable[[Path], None]]] = {
        "source statistics": (source(), use_statistics),
        "fisher information": (measure_fisher(engine(), clean), use_fisher),
        "token covariances": (measure_covariances(engine(), clean), use_covariances),
        "scales": (ptq4vit(engine(), random_images(4), metric="l2").scales, use_scales),
        "monitor reference": (reference_of(create("align")), use_reference),
    }
    whole = []
    for content, _ in files.values():
        content.save(folder / "measured")
        whole.append(unsealed(folder / "measured"))
    by_kind = {content.KIND.encode(): use for content, use in files.values()}
    counter = itertools.count()

    def read(path: Path) -> None:
        header = path.read_bytes()[:400]
        uses = [use for kind, use in by_kind.items() if kind in header] or list(by_kind.values())
        uses[next(counter) % len(uses)](path)

    return Reader(read, whole, sealed, "copy")


@reader
def statistics_of_version_02(folder: Path) -> Reader:
    old = REPO / "tests" / "golden" / "statistics-0.2.npz"

    def read(path: Path) -> None:
        assert Statistics.load(path).images > 1

    return Reader(read, [members(old)], zipped, "stats.npz")


def lines(parts: Parts) -> bytes:
    """Give every text its checksum."""
    return joined([b"%s%s%d}\n" % (part, CHECKSUM, zlib.crc32(part)) for part in parts])


def texts_of(log: bytes) -> list[bytes]:
    """The lines of a log without their checksums."""
    return [line.rpartition(CHECKSUM)[0] for line in log.splitlines()]


@reader
def journal(folder: Path) -> Reader:
    method = fozo.create("fozo", engine(), source(), journal=folder / "run.journal")
    for seed in range(3):
        method(random_images(6, seed=seed))
    texts = texts_of((folder / "run.journal").read_bytes())

    def read(path: Path) -> None:
        assert np.isfinite(fozo.replay_prompts(path)).all()

    return Reader(read, [texts], lines, "copy.journal")


@reader
def folder_run_log(folder: Path) -> Reader:
    header = {"kind": "fozo adapt", "version": 1, "model": "vit", "labelled": True}
    batch = BatchLine(0, 4, 90, 0.5, 0.6, 1.0, 3, {"shift": 1.5})
    entries = [header, *(asdict(replace(batch, index=i, end=90 * (i + 1))) for i in range(3)), {"finished": True}]
    texts = texts_of(b"".join(map(encode, entries)))

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
        text = b"\n".join(texts_of(data)) if path.suffix == ".jsonl" else data
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
