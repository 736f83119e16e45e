"""What PTQ4ViT costs and loses: search time, memory, and clean top-1 of the plain, the quantised and an INT8 model.

    python -m benchmarks.quantised --model WEIGHTS --images DIR [--int8 model.int8.onnx] [--count 4000]

DIR holds clean images in class folders. The scales are searched on 32 of them, drawn at random, which are then left
out of the test. Time is wall and processor time of the search alone; memory is the process's peak before and after it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

import fozo
from benchmarks.common import clean_batches, mebibytes
from fozo import quant
from fozo.data.sets import ImageSet
from fozo.data.sets.base import shuffled


def top1(engines: dict[str, fozo.Engine], images: ImageSet) -> None:
    """Print the accuracy of several engines on the same images, and in how many predictions they agree."""
    models = {name: fozo.NoAdapt(engine) for name, engine in engines.items()}
    right, same, seconds = (dict.fromkeys(engines, 0.0) for _ in range(3))
    done = 0
    for batch in clean_batches(images, next(iter(engines.values())).spec):
        labels = images.labels[done : done + len(batch)]
        done += len(batch)
        first = None
        for name, model in models.items():
            began = time.perf_counter()
            found = model(batch).argmax(axis=1)
            seconds[name] += time.perf_counter() - began
            first = found if first is None else first
            right[name] += (found == labels).sum()
            same[name] += (found == first).sum()
    for name in engines:
        share = 100 / len(images)
        print(
            f"{name}: top-1 {right[name] * share:.2f} % of {len(images)}, {same[name] * share:.2f} % as the first, "
            f"{1000 * seconds[name] / len(images):.1f} ms an image",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--int8", help="an INT8 file of fozo export, to compare")
    parser.add_argument("--bits", type=int, default=8)
    parser.add_argument("--metric", default="hessian")
    parser.add_argument("--count", type=int, default=None, help="test images; all by default")
    parser.add_argument("--scales", type=Path, help="where to keep the scales; used again where the file exists")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    plain = fozo.load_engine(options.model)
    images = fozo.open_images(options.images)
    order = [images.samples[int(i)].path for i in shuffled(len(images), 1)]
    calibration = images.select(sorted(order[:32]))
    test = images.select(sorted(order[32:][: options.count]))
    if options.scales and options.scales.exists():
        quantised = quant.with_scales(plain, options.scales)
    else:
        pixels = np.concatenate(list(clean_batches(calibration, plain.spec)))
        before, wall, cpu = mebibytes(), time.perf_counter(), time.process_time()
        quantised = quant.ptq4vit(plain, pixels, options.bits, metric=options.metric)
        print(
            f"search: {time.perf_counter() - wall:.0f} s wall, {time.process_time() - cpu:.0f} s of processor time, "
            f"{options.threads} threads, peak memory {before:.0f} MiB before and {mebibytes():.0f} MiB after",
            flush=True,
        )
        if options.scales:
            quantised.scales.save(options.scales)
    engines: dict[str, fozo.Engine] = {"float32": plain, f"PTQ4ViT {quantised.scales.bits} bits": quantised}
    if options.int8:
        engines["ONNX Runtime INT8"] = fozo.load_engine(options.int8, threads=options.threads)
    top1(engines, test)


if __name__ == "__main__":
    main()
