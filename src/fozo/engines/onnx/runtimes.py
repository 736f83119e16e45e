"""Running ONNX files without PyTorch: engines over ONNX Runtime and OpenVINO, and files of other programs.

In ONNX Runtime cores are used by several calls at a time, each on one thread, not by several threads in one call: a
call's products are too small to cut, and between any two of them all threads would wait for the slowest. The calls
share one session, so its weights are in memory once. Both ways were measured: results/settled.md.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnxruntime

from fozo.core.normalisation import check_images
from fozo.engines.base import HeadEngine, foreign
from fozo.engines.blackbox import to_numpy
from fozo.engines.onnx import schema
from fozo.engines.onnx.rows import Execute, Float32, Rows, Shapes, filled
from fozo.engines.precision import faster_dtype
from fozo.errors import FozoError, check_counts
from fozo.io.system import usable_cpus
from fozo.types import NO_KNOBS, Affine, Batch, Engine, Floats, Images, Knobs, Move, Spec, Tap, Taps, Threads

ADOPTED_MOVE_AXES = 3  # of moves in an adopted graph, [n, L, d]
WHOLE = slice(None)
CALL_TOKENS = 800
"""How many tokens go through the blocks in one call: half of what the torch engine takes at a time is as fast, and the
eight images of one of Align's groups are then two calls, which go side by side. Not by the number of threads: INT8
measures ranges by the call, so results would too."""
CHANNELS = (1, 3, 4)
PRECISIONS = {"float32": ("FP32", "f32"), "bfloat16": ("BF16", "bf16"), "float16": ("FP16", "f16")}
"""What OpenVINO calls a processor's ability, and the precision itself."""
MEASURED_IMAGES = 4
DTYPES: dict[str, npt.DTypeLike] = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16
}  # fmt: skip


@dataclass(frozen=True)
class GraphBatch:
    """Checked images. The graph embeds them again in every call, which is under one percent of the call's work."""

    images: Float32

    def __len__(self) -> int:
        return len(self.images)

    def part(self, images: slice) -> GraphBatch:
        return GraphBatch(self.images[images])

    def with_images(self, images: Floats) -> GraphBatch:
        return GraphBatch(np.ascontiguousarray(images, dtype=np.float32))


def model_path(path: str | os.PathLike[str]) -> Path:
    file = Path(path)
    if not file.is_file():
        raise FozoError(f"there is no file {file}; check the path, or write it with: fozo export MODEL -o {file.name}")
    return file


def unreadable(path: Path, error: Exception) -> FozoError:
    return FozoError(
        f"{path} is not a readable ONNX model ({type(error).__name__}); it may be truncated: export it again"
    )


def thread_count(threads: int | None) -> int:
    """Check the user's choice, or take every processor that this process may use."""
    count = usable_cpus() if threads is None else threads
    check_counts(threads=count)
    return count


class GraphEngine(HeadEngine):
    """An engine over a file written by ``fozo export``: all of it but the runtime itself.

    A runtime computes named outputs from named inputs; a subclass brings it. What is here is the rest of the engine's
    contract: checks, knobs as arrays, chunks, and the head.

    A call takes some images under some candidates, at most ``chunk`` passes in all, so activations stay in the
    processor's cache and peak memory does not grow with the batch or with the number of candidates. Candidates of the
    same images share a call, because that is where the graph shares their work.
    """

    device = "cpu"
    reopen: Callable[[], Engine]
    """Opens it again, in another process for example; the file is not part of a pickle."""

    def __init__(
        self,
        spec: Spec,
        execute: Execute,
        inputs: Shapes,
        chunk: int | None,
        threads: Threads,
        calls: Threads | None = None,
    ) -> None:
        """Read the head. ``calls`` are the threads that make calls at a time; all ``threads`` by default."""
        self.threads = threads
        self.calls = calls or threads
        self.chunk = max(1, CALL_TOKENS // (1 + spec.patches)) if chunk is None else chunk
        check_counts(chunk=self.chunk)
        self.spec = spec
        adopted = len(inputs[schema.MOVES[0]]) == ADOPTED_MOVE_AXES
        self.execute = Rows(execute, inputs) if adopted else execute
        abilities = {"tokens"}
        if schema.PROMPTS in inputs:
            abilities.add("prompts")
        if schema.MATRICES in inputs or not spec.aligned:  # a model of one block has nothing to multiply
            abilities.add("matrices")
        self.abilities = frozenset(abilities)
        self._warned: set[str] = set()
        layers = (1, 1, spec.depth, spec.dim)
        scale = np.ones(layers, np.float32)
        shift = np.zeros(layers, np.float32)
        self._unmoved = Move(scale, shift)
        self._unmultiplied = np.zeros((1, 1, 0, spec.dim, spec.dim), np.float32)
        self._takes_matrices = schema.MATRICES in inputs
        feeds = {
            schema.IMAGES: np.zeros((1, *spec.image_shape), np.float32),
            schema.PROMPTS: np.zeros((1, 0, spec.dim), np.float32),
        }
        feeds |= dict(zip(schema.MOVES, (scale, shift, scale, shift), strict=True))
        if self._takes_matrices:
            feeds[schema.MATRICES] = self._unmultiplied
        try:
            weight, bias = self.execute([schema.HEAD_WEIGHT, schema.HEAD_BIAS], feeds)
        except Exception as error:  # whatever a runtime raises
            raise FozoError(
                f"the graph of {spec.name} does not run ({type(error).__name__}); export it again"
            ) from error
        if (weight.shape, bias.shape) != ((spec.head_width, spec.classes), (spec.classes,)):
            raise FozoError(
                f"the head of {spec.name} is {list(weight.shape)}, not {[spec.head_width, spec.classes]} as its "
                f"metadata says; export it again"
            )
        self._head = Affine(weight, bias)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.reopen, self.spec)

    def check(self, images: Images) -> GraphBatch:
        check_images(images, self.spec, self._warned)
        return GraphBatch(np.ascontiguousarray(to_numpy(images), dtype=np.float32))

    def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
        spec = self.spec
        if not isinstance(batch, GraphBatch) or batch.images.shape[1:] != spec.image_shape:
            raise foreign(batch)
        count = len(batch.images)
        k = knobs.check(spec, count)
        if knobs.prompts is not None and "prompts" not in self.abilities:
            raise FozoError(
                f"the graph of {spec.name} has a fixed number of tokens, so it takes no prompts; use a method that "
                f"needs none, such as align, or export the original weights with fozo export"
            )
        if "matrices" not in self.abilities and (knobs.matrices is not None or Tap.PATCH_MOMENTS in taps):
            raise FozoError(
                f"the graph of {spec.name} neither multiplies patch tokens nor reports their moments; export the model "
                f"again with this version of fozo"
            )
        widths: dict[Tap, tuple[int, ...]] = {
            Tap.POOLED: (spec.head_width,),
            Tap.PATCH_MOMENTS: (len(spec.aligned), spec.dim + 1, spec.dim),
        }
        results: Taps = {}
        for tap in taps:
            read = Tap.POOLED if tap is Tap.LOGITS else tap
            results[read] = np.empty((k, count, *widths.get(read, (spec.depth, spec.dim))), dtype=np.float32)
        outputs = [tap for tap, values in results.items() if values.size]
        prompts = np.zeros((k, 0, spec.dim)) if knobs.prompts is None else knobs.prompts
        matrices = self._unmultiplied if knobs.matrices is None else knobs.matrices
        cls = knobs.cls or self._unmoved
        patches = knobs.patches or self._unmoved
        moves = np.broadcast_arrays(cls.scale, cls.shift, patches.scale, patches.shift)  # [K or 1, B or 1, L, d]

        def call(part: tuple[slice, slice]) -> None:
            candidates, images = part
            rows = _rows_of(moves[0], part)
            feeds = {
                schema.IMAGES: batch.images[images],
                schema.PROMPTS: np.ascontiguousarray(prompts[candidates], np.float32),
            }
            for name, move in zip(schema.MOVES, moves, strict=True):
                feeds[name] = np.ascontiguousarray(move[rows], np.float32)
            if self._takes_matrices:
                feeds[schema.MATRICES] = np.ascontiguousarray(matrices[_rows_of(matrices, part)], np.float32)
            for tap, value in zip(outputs, self.execute(outputs, feeds), strict=True):
                results[tap][part] = value

        candidates = min(k, self.chunk)
        images = max(1, self.chunk // candidates)
        parts = []
        for first in range(0, count, images):
            for start in range(0, k, candidates):
                parts.append((slice(start, start + candidates), slice(first, first + images)))
        if outputs:
            self.calls.each(call, parts)
        if Tap.LOGITS in taps:
            # Applied to the whole batch, outside of the graph: methods may shift what the head reads, and do so there.
            results[Tap.LOGITS] = self._head(results[Tap.POOLED])
            if Tap.POOLED not in taps:
                del results[Tap.POOLED]
        return results


def _reopened(reopen: Callable[[], Engine], spec: Spec) -> GraphEngine:
    """Open a file again as it was; another file in its place is refused."""
    engine = reopen()
    assert isinstance(engine, GraphEngine)
    _check_unchanged(spec.name, engine.spec.fingerprint, spec.fingerprint)
    if engine.spec.subset != spec.subset:
        engine.adjust(spec.subset)
    engine.spec = spec
    return engine


def _check_unchanged(name: str, fingerprint: str, pickled: str) -> None:
    if fingerprint != pickled:
        raise FozoError(f"the file of {name} has changed since it was pickled ({pickled}, now {fingerprint}); load it")


def _rows_of(values: Floats, part: tuple[slice, slice]) -> tuple[slice, slice]:
    """Where ``[K or 1, B or 1, ...]`` has what some candidates and images need."""
    candidates, images = part
    return candidates if len(values) > 1 else WHOLE, images if values.shape[1] > 1 else WHOLE


def open_session(path: Path, threads: int) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
    options = onnxruntime.SessionOptions()
    for pool in ("intra_op", "inter_op"):  # threads that spin take processor time and gain none
        options.add_session_config_entry(f"session.{pool}.allow_spinning", "0")
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    options.log_severity_level = 4  # errors are raised anyhow; warnings about the graph do not help its users
    try:
        return onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions share no class of their own
        raise unreadable(path, error) from error


class OnnxEngine(GraphEngine):
    """Runs a file of ``fozo export`` on the CPU. The same inputs give the same outputs, bit for bit."""

    def __init__(self, path: str | os.PathLike[str], *, threads: int | None = None, chunk: int | None = None) -> None:
        """Open a file; ``threads`` calls are made at a time, each on one processor (:class:`fozo.LoadOptions`)."""
        file = model_path(path)
        session = open_session(file, 1)
        metadata = session.get_modelmeta().custom_metadata_map
        inputs = {value.name: value.shape for value in session.get_inputs()}
        spec = schema.read_spec(file, metadata, inputs)
        self.reopen = partial(OnnxEngine, file.resolve(), threads=threads, chunk=chunk)
        super().__init__(spec, session.run, inputs, chunk, Threads(thread_count(threads)))


class OpenvinoEngine(GraphEngine):
    """Runs a file of ``fozo export`` on the CPU.

    A forked child of a process that has used OpenVINO is refused: it hangs in one run of fourteen, or is aborted.
    """

    _process: ClassVar[int | None] = None  # the process that made the first engine

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        threads: int | None = None,
        chunk: int | None = None,
        dtype: str = "float32",
    ) -> None:
        try:
            openvino = importlib.import_module("openvino")
        except ImportError as error:
            raise FozoError("this engine needs OpenVINO; install it with pip install 'fozo[openvino]'") from error
        file = model_path(path)
        self._refuse_fork()
        OpenvinoEngine._process = os.getpid()
        core = openvino.Core()
        try:
            model = core.read_model(os.fspath(file))
        except Exception as error:  # OpenVINO raises plain RuntimeErrors of many origins
            raise unreadable(file, error) from error
        stored = ["framework", schema.METADATA]  # where its ONNX reader keeps a model's metadata
        metadata = {schema.METADATA: str(model.get_rt_info(stored).astype(str))} if model.has_rt_info(stored) else {}
        shapes = {
            value.any_name: [side.get_length() if side.is_static else None for side in value.partial_shape]
            for value in model.inputs
        }
        spec = schema.read_spec(file, metadata, shapes)
        count = thread_count(threads)

        def run_in(dtype: str) -> Callable[[], object]:
            engine = OpenvinoEngine(file, threads=threads, chunk=chunk, dtype=dtype)
            return partial(engine.run, engine.check(np.zeros((MEASURED_IMAGES, *spec.image_shape), np.float32)))

        abilities = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if dtype == "auto":
            dtype = "float32"
            if PRECISIONS["bfloat16"][0] in abilities:
                dtype = faster_dtype(f"OpenVINO {openvino.__version__}, {count} threads, {spec.fingerprint}", run_in)
        ability, precision = PRECISIONS.get(dtype, ("", ""))
        if ability not in abilities:
            raise FozoError(f"OpenVINO has no {dtype} on this processor; give float32, or auto")
        if dtype != "float32":
            spec = replace(spec, fingerprint=f"{spec.fingerprint}-{dtype}")
        settings = {
            "INFERENCE_NUM_THREADS": count,
            "PERFORMANCE_HINT": "LATENCY",
            # Otherwise newer processors would compute in bfloat16, and the numbers would depend on the machine.
            "INFERENCE_PRECISION_HINT": precision,
        }
        request = core.compile_model(model, "CPU", settings).create_infer_request()
        lock = threading.Lock()

        def execute(outputs: Sequence[str], feeds: dict[str, Float32]) -> list[Float32]:
            self._refuse_fork()
            with lock:  # adapters in several threads may share this engine, and a request serves one at a time
                request.infer(feeds)
                # The request's tensors are overwritten by the next call, so what leaves here is a copy.
                return [request.get_tensor(name).data.copy() for name in outputs]

        self.reopen = partial(OpenvinoEngine, file.resolve(), threads=threads, chunk=chunk, dtype=dtype)
        super().__init__(
            spec, execute, shapes, chunk, Threads(count), calls=Threads(1)
        )  # every call has its own threads

    @classmethod
    def _refuse_fork(cls) -> None:
        if cls._process not in (None, os.getpid()):
            raise FozoError(
                "OpenVINO does not work in a forked child of a process that has used it; spawn the child, or use "
                "runtime='onnxruntime'"
            )


class ForeignGraph:
    """Calls an ONNX file of another program. One output is returned as an array, several as a dictionary by name.

    It has no token inputs, so it is run as a black box. The one input is images, ``[B, channels, height, width]``, or
    with the channels last as TensorFlow has them. A file whose batch is fixed (to one image, often) is called as often
    as it takes.
    """

    def __init__(
        self, path: str | os.PathLike[str], image_size: tuple[int, int] | None = None, threads: int | None = None
    ) -> None:
        """Open a file. ``image_size`` is the user's, which must not contradict the file's own."""
        self.path = model_path(path)
        self._threads = thread_count(threads)
        self._sessions: dict[int, Any] = {}
        session = self._session()
        inputs = session.get_inputs()
        if len(inputs) != 1 or inputs[0].type not in DTYPES or len(inputs[0].shape) != 4:
            taken = ", ".join(f"{value.name} {value.type} {value.shape}" for value in inputs)
            raise FozoError(
                f"{self.path} takes {taken}, where one float input [B, channels, height, width] is needed; wrap it in "
                f"a function of such images, and give that to fozo"
            )
        self._input = inputs[0].name
        self._dtype = DTYPES[inputs[0].type]
        # Dimensions that are not fixed have a name, or none.
        batch, *shape = (side if type(side) is int and side > 0 else None for side in inputs[0].shape)
        self._batch: int | None = batch
        self._last = shape[2] in CHANNELS and shape[0] not in CHANNELS
        channels, height, width = (shape[2], *shape[:2]) if self._last else shape
        stated_size = (height, width) if height is not None and width is not None else None
        if stated_size is not None and image_size not in (None, stated_size):
            raise FozoError(f"{self.path} takes images of {stated_size}, not of {image_size}; leave image_size= out")
        self.channels = channels or 3
        self.image_size = stated_size or image_size
        outputs = session.get_outputs()
        self.outputs = {output.name: [side if type(side) is int else -1 for side in output.shape] for output in outputs}
        width = outputs[0].shape[1] if len(outputs) == 1 and len(outputs[0].shape) == 2 else None
        self.classes = width if type(width) is int and "float" in outputs[0].type else 0
        self.fingerprint = f"onnx-{schema.model_fingerprint(self.path)}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "path": self.path.resolve(), "_sessions": {}}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        _check_unchanged(self.path.stem, f"onnx-{schema.model_fingerprint(model_path(self.path))}", self.fingerprint)

    def _session(self) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
        """Give this process's session: threads do not survive a fork, so a child makes its own."""
        process = os.getpid()
        if process not in self._sessions:
            # Beside the parent's, which must not be closed in a child.
            self._sessions[process] = open_session(self.path, self._threads)
        return self._sessions[process]

    def __call__(self, images: Floats) -> Floats | dict[str, Floats]:
        x = np.asarray(images, dtype=self._dtype)
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1) if self._last else x)
        outputs = self._run(x) if self._batch in (None, len(x)) else self._in_parts(x, self._batch or 1)
        return outputs[0] if len(outputs) == 1 else dict(zip(self.outputs, outputs, strict=True))

    def _run(self, x: Floats) -> list[Floats]:
        session = self._session()
        try:
            outputs: list[Floats] = session.run(None, {self._input: x})
        except Exception as error:
            raise FozoError(f"{self.path} does not run on images of shape {list(x.shape)} ({error})") from error
        return outputs

    def _in_parts(self, x: Floats, size: int) -> list[Floats]:
        """Run a file of a fixed batch; the last part is filled up with its last image."""
        answers = []
        for start in range(0, len(x), size):
            rows = x[start : start + size]
            outputs = self._run(filled(rows, size))
            if any(np.ndim(output) == 0 or len(output) != size for output in outputs):
                raise FozoError(
                    f"{self.path} takes {size} images at a time, and what it returns cannot be put together; give it "
                    f"batches of {size}"
                )
            answers.append([output[: len(rows)] for output in outputs])
        return [np.concatenate(column) for column in zip(*answers, strict=True)]
