"""Forks an adapter after a call, in a process of its own: ``python forking.py KIND FOLDER``.

Prints ``hung``, ``died`` or how far the child's logits are from the parent's, which goes on from the same state.
"""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import fozo
from fozo.data import sample
from fozo.methods.method import Method, Result
from fozo.state import State
from fozo.types import Batch, Floats

LIMIT = 60  # seconds after which a child hangs
SAMPLE = sample.MODELS["float32"]


def forked(work: Callable[[], Floats], folder: Path) -> Floats | str:
    """What ``work`` returns in a forked child."""
    file = folder / "child.npy"
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT)  # ends a child that hangs
        try:
            np.save(file, work())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    if status:
        return "hung" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM else "died"
    return np.asarray(np.load(file))


def images_for(spec: fozo.Spec, count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, *spec.image_shape)).astype(np.float32)


def on_sample(**options: Any) -> Method[Any, Any]:
    return fozo.Align(fozo.load_engine(SAMPLE, **options), sample.statistics(SAMPLE))


def on_torch(name: str, **options: Any) -> Method[Any, Any]:
    """On a model large enough that torch cuts its work into threads."""
    import torch

    from fozo.models.vit import Architecture, ViT

    torch.set_num_threads(2)
    torch.manual_seed(0)
    vit = ViT(Architecture((16, 16), (4, 4), channels=3, dim=96, depth=4, heads=3, hidden=384, classes=7))
    engine = fozo.load_engine(vit, chunk=64)
    return fozo.create(name, engine, fozo.calibrate(engine, [images_for(engine.spec, 32, 9)]), **options)


def while_another_thread_adapts(method: Method[Any, Any]) -> None:
    """Return in the middle of a batch, which does not end before this program does."""
    step = method.step
    inside = threading.Event()

    def slow(state: State, batch: Batch) -> Result[Any]:
        inside.set()
        time.sleep(2 * LIMIT)
        return step(state, batch)

    method.step = slow  # type: ignore[method-assign]
    threading.Thread(target=lambda: method(images_for(method.engine.spec, 8, 5)), daemon=True).start()
    inside.wait()
    method.step = step  # type: ignore[method-assign]


def refused(method: Method[Any, Any], images: Floats) -> Floats:
    """What OpenVINO would hang in, or abort this process for, is said in a sentence instead."""
    went_on = 0
    for use in (lambda: method(images), lambda: on_sample(runtime="openvino")):
        try:
            use()
            went_on += 1
        except fozo.FozoError as error:
            assert "spawn the child" in str(error)
    return np.array([float(went_on)])


KINDS: dict[str, Callable[[], Method[Any, Any]]] = {
    "onnxruntime": lambda: on_sample(threads=2, chunk=2),
    "openvino": lambda: on_sample(runtime="openvino"),
    "torch": lambda: on_torch("align"),
    "gradient": lambda: on_torch("tent"),
    "under way": lambda: on_sample(threads=2),
}


def main(kind: str, folder: str) -> None:
    method = KINDS[kind]()
    images = images_for(method.engine.spec, 64, 1)
    method(images)
    twin = method.clone()
    twin.load_state(method.state())
    if kind == "under way":
        while_another_thread_adapts(method)
    logits = forked(lambda: refused(method, images) if kind == "openvino" else method(images), Path(folder))
    if isinstance(logits, str):
        print(logits)
    elif kind == "openvino":
        print(logits[0])
    else:  # the child goes on from where the last whole batch has led
        print(float(np.abs(logits - twin(images)).max()))
    sys.stdout.flush()
    os._exit(0)  # a thread may still be adapting


if __name__ == "__main__":
    main(*sys.argv[1:])
