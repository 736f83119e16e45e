"""Which transformers fozo finds the tokens of: small random models, as torch modules and as ONNX files of any exporter.

    python -m benchmarks.adopted [--work DIR] [--only NAME ...]

Prints the table of docs/models.md. *equality* is the largest difference of logits from the original's, as a part of the
largest logit. All that are found pass ``fozo.testing.check_engine``. Exporters that are not installed are named.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import fozo
from fozo.engines.blackbox import BlackBoxEngine, black_box
from fozo.errors import FozoError
from fozo.testing import check_engine
from fozo.types import Floats, Tap
from tests.engines.onnx import zoo

BATCH = 4
BY_TORCHSCRIPT = "TorchScript, opset 17"
BY_DYNAMO = "dynamo, opset 18"
ROUGH = {"INT8": 0.5, "fp16": 0.1}
"""What check_engine tolerates where numbers are rounded, as a part of their deviation."""


def row(name: str, model: torch.nn.Module | Path, size: int) -> str:
    original = model
    if isinstance(model, zoo.Logits):  # users give what is inside
        model = model.model
    try:
        engine = fozo.load_engine(model, image_size=size if isinstance(model, torch.nn.Module) else None)
    except FozoError as error:
        return f"| {name} | no: {str(error).rpartition('because ')[2]} | | |"
    if isinstance(engine, BlackBoxEngine):
        return f"| {name} | no: {engine.reason} | | |"
    numbers = np.random.default_rng(0)
    images = numbers.standard_normal((BATCH, *engine.spec.image_shape)).astype(np.float32)
    batch = engine.check(images)
    plain = black_box(original, image_size=size)
    expected = np.concatenate([_answer(plain, images[i : i + 1]) for i in range(BATCH)])
    logits = np.concatenate([engine.run(batch.part(slice(i, i + 1)))[Tap.LOGITS][0] for i in range(BATCH)])
    if np.allclose(expected.sum(axis=1), 1, atol=1e-4):  # probabilities
        logits = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    difference = np.abs(logits - expected).max() / np.abs(expected).max()
    tolerance = next((value for word, value in ROUGH.items() if word in name), 1e-4)
    check_engine(engine, tolerance)
    prompts = "yes" if "prompts" in engine.abilities else "no"
    return f"| {name} | yes | {prompts} | {difference:.0e} |"


def _answer(engine: BlackBoxEngine, images: Floats) -> Floats:
    logits: Floats = engine.run(engine.check(images))[Tap.LOGITS][0]
    return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, help="folder for the files; a temporary one by default")
    parser.add_argument("--only", nargs="+", choices=zoo.MODULES, help="names of modules; all by default")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        print("| model | tokens | prompts | equality |\n|---|---|---|---:|")
        names = arguments.only or list(zoo.MODULES)
        for name in names:
            print(row(f"module: {name}", zoo.module(name), zoo.size_of(name)), flush=True)
        for writer in (BY_TORCHSCRIPT, BY_DYNAMO):
            for name in names:
                _graph(f"{name}; {writer}", name, writer, work)
        for writer in () if arguments.only else zoo.WRITERS:
            if writer not in (BY_TORCHSCRIPT, BY_DYNAMO):
                _graph(f"timm ViT; {writer}", "timm ViT", writer, work)


def _graph(title: str, name: str, writer: str, work: Path) -> None:
    path = work / f"{len(list(work.iterdir()))}.onnx"
    try:
        if writer in (BY_TORCHSCRIPT, BY_DYNAMO):
            write = zoo.by_torchscript if writer == BY_TORCHSCRIPT else zoo.by_dynamo
            write(zoo.module(name), path, size=zoo.size_of(name))
        else:
            zoo.WRITERS[writer](zoo.module(name), path)
    except Exception as error:  # whatever an exporter raises
        print(f"{title}: not written ({type(error).__name__})", file=sys.stderr)
        return
    print(row(title, path, zoo.size_of(name)), flush=True)


if __name__ == "__main__":
    main()
