"""One adapted batch on every engine, side by side in one run: speed and peak memory.

    python -m benchmarks.engines [--over loop] [--size base] [--batch 64] [--passes 2] [--threads 2] [--rounds 5]
                                 [--openvino]

``loop`` is FOZO's published loop in PyTorch: for every candidate one full pass of the plain model over the whole batch,
its loss, its prediction. ``torch`` is fozo's engine; the others run files of ``fozo export`` on ONNX Runtime. All do
the same FOZO steps from the same state on the same images. The ViT has random weights, on which speed does not depend.

Rounds run the engines in turn, another one first each time. A result is the median over the rounds of the time of
``--over`` divided by the engine's, by the clock and in processor time, which is steadier on a machine with other work.
Peak memory (Linux) is that of a separate process for each engine, without torch where it is not needed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

import fozo
from benchmarks.common import SIZES, in_a_process, in_turn, mebibytes, random_engine, summary, timed
from fozo.core.moments import Moments
from fozo.testing import random_images
from fozo.types import Floats

if TYPE_CHECKING:
    from fozo.engines.torch_engine import TorchEngine

FILES = {"torch": "weights.pt", "float32": "float32.onnx", "INT8 dynamic": "int8.onnx", "INT8 static": "static.onnx"}
PLAIN = "plain"


class PublishedLoop:
    """FOZO as published: separate full passes, nothing shared, statistics from every layer's normed CLS."""

    def __init__(self, method: fozo.FOZO, engine: TorchEngine) -> None:
        self.method, self.vit = method, engine.vit

    def __call__(self, batch: Floats) -> Floats:
        import torch

        method = self.method
        shift = method.shift.vector(method.source.pooled.mean)
        losses, outputs, means = [], [], []
        with torch.inference_mode():
            for prompts in method.spsa.ask():
                x = self.vit.embed(torch.from_numpy(batch))
                x = torch.cat([x[:, :1], torch.from_numpy(prompts).float().expand(len(x), -1, -1), x[:, 1:]], dim=1)
                rows = []
                for i, block in enumerate(self.vit.blocks):
                    if i:
                        rows.append(block.norm1(x[:, 0]))  # type: ignore[operator]
                    x = block(x)
                features = torch.stack([*rows, self.vit.norm(x)[:, 0]], dim=1)
                pooled = features[:, -1]
                means.append(pooled.mean(dim=0).double().numpy())
                if shift is not None:
                    pooled = pooled + torch.from_numpy(shift).float()
                outputs.append(self.vit.head(pooled).numpy())
                losses.append(method.objective(method.source_features, Moments.of(features.numpy()), outputs[-1]))
        method.spsa.tell(losses)
        method.shift.observe(np.mean(means, axis=0))
        output: Floats = outputs[int(np.argmin(losses))]
        return output


def write_models(folder: Path, size: str) -> TorchEngine:
    """Make the torch engine, and write its weights and three exports of it."""
    import torch

    engine = random_engine(size)
    noise = folder / "noise" / "class"
    noise.mkdir(parents=True)
    for number in range(8):  # ranges of random weights mean nothing, but there must be some
        pixels = np.random.default_rng(number).integers(0, 256, (224, 224, 3), np.uint8)
        Image.fromarray(pixels).save(noise / f"{number}.png")
    torch.save(engine.vit.state_dict(), folder / FILES["torch"])
    fozo.export(engine, folder / FILES["float32"])
    fozo.export(engine, folder / FILES["INT8 dynamic"], int8="dynamic")
    fozo.export(engine, folder / FILES["INT8 static"], int8="static", calibration=folder / "noise")
    return engine


def adapted(engine: fozo.Engine, passes: int) -> fozo.FOZO:
    source = fozo.calibrate(engine, [random_images(engine.spec, 4)])
    return fozo.FOZO(engine, source, passes=passes)


def compare(calls: Mapping[str, Callable[[Floats], Floats]], over: str, data: Floats, rounds: int) -> None:
    ratios: dict[str, list[tuple[float, float]]] = {name: [] for name in calls if name != over}
    for number, turn in in_turn(list(calls), rounds):
        found = {name: timed(calls[name], data) for name in turn}
        spent, expected = found[over]
        for name, values in ratios.items():
            own, output = found[name]
            clock, processor = (theirs / ours for theirs, ours in zip(spent, own, strict=True))
            difference = float(np.abs(output - expected).max())
            line = (
                f"round {number}: {name} {clock:.2f}x by the clock, {processor:.2f}x; outputs within {difference:.1e}"
            )
            print(line, file=sys.stderr, flush=True)
            if number:
                values.append((clock, processor))
    for name, values in ratios.items():
        clocks, processors = zip(*values, strict=True)
        print(
            f"{name}: {summary(clocks, 2)} as fast as {over} by the clock, {summary(processors, 2)} in processor time"
        )


def peak(name: str, model: str, batch: int, passes: int, threads: int) -> None:
    """Print this process's peak memory after one adapted batch, or one of the ``plain`` torch model."""
    if model.endswith(".onnx"):
        engine = fozo.load_engine(model, threads=threads)
        assert "torch" not in sys.modules
    else:
        import torch

        torch.set_num_threads(threads)
        engine = fozo.load_engine(model)
    method = fozo.NoAdapt(engine) if name == PLAIN else adapted(engine, passes)
    method(random_images(engine.spec, batch))
    print(mebibytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--over", choices=("loop", "torch"), default="loop")
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--openvino", action="store_true", help="run the float32 file on OpenVINO as well")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.peak:
        name, model = a.peak
        peak(name, model, a.batch, a.passes, a.threads)
        return
    import torch

    torch.set_num_threads(a.threads)
    print(f"ViT-{a.size}, batch {a.batch}, {a.passes} passes, {a.threads} threads, medians of {a.rounds} rounds")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        engine = write_models(folder, a.size)
        options = ("--batch", a.batch, "--passes", a.passes, "--threads", a.threads)
        for name, file in {PLAIN: FILES["torch"], **FILES}.items():
            found = float(in_a_process("engines", "--peak", name, folder / file, *options))
            print(f"peak memory of the process, {name}: {found:.0f} MiB", flush=True)
        method = adapted(engine, a.passes)
        calls: dict[str, Callable[[Floats], Floats]] = {"loop": PublishedLoop(method.clone(), engine), "torch": method}
        for name, file in list(FILES.items())[1:]:
            calls[name] = adapted(fozo.load_engine(folder / file, threads=a.threads), a.passes)
        if a.openvino:
            runtime = fozo.load_engine(folder / FILES["float32"], threads=a.threads, runtime="openvino")
            calls["OpenVINO float32"] = adapted(runtime, a.passes)
        compare(calls, a.over, random_images(engine.spec, a.batch), a.rounds)


if __name__ == "__main__":
    main()
