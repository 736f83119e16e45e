"""How long does a small model wait for its data?

    python benchmarks/prefetch.py --images IMAGENET

Runs an unadapted ViT-Tiny, one forward pass a batch of 64 (every other method and model is slower, and so waits
less), over a stream, and prints for each domain the share of time spent waiting for data. The target is under 5 %
for images that are stored as they are shown. The second column is what it would be without background threads:
the time to load the same batches one after another, over that plus the time of the model. Threads do not make work
go away: the last column says by how much they slow a model down that runs on the same processors.

The weights are random, because speed does not depend on them. Without ``--images``, photographs of 500x375 px
are made up. Kinds other than ``clean`` are corrupted on the fly, which is work for the same processors.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from fozo import Engine, NoAdapt, Stream, load_engine, open_images
from fozo.data.scenarios import Continual
from fozo.data.sets import ImageSet, imagenet_wnids


def vit_tiny() -> Engine:
    from fozo.models.vit import Architecture, ViT

    tiny = Architecture((224, 224), (16, 16), 3, dim=192, depth=12, heads=3, hidden=768, classes=1000)
    return load_engine(ViT(tiny), mean=0.5, std=0.5)


def made_up(folder: Path, count: int = 512) -> None:
    rng = np.random.Generator(np.random.Philox(0))
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8))
        file = folder / imagenet_wnids()[number % 8] / f"{number}.jpg"
        file.parent.mkdir(exist_ok=True)
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(file, quality=90)


def timed(method: NoAdapt, images: npt.NDArray[np.float32]) -> float:
    start = time.perf_counter()
    method(images)
    return time.perf_counter() - start


def measure(images: ImageSet, engine: Engine, kind: str, batches: int) -> tuple[float, float, float, float]:
    method = NoAdapt(engine)
    stream = Stream(images, engine.spec, Continual(kinds=(kind,)), batch_size=64)
    first = next(iter(stream.batches())).images
    alone = min(timed(method, first) for _ in range(4))
    busy = 0.0
    began = time.perf_counter()
    for batch in stream.batches():
        busy += timed(method, batch.images)
        if batch.index + 1 == batches:
            break
    total = time.perf_counter() - began

    loading = time.perf_counter()
    domain = stream.segments[0].domains[0]
    for index in range(64):
        engine.spec.normalise(stream.source.load(domain, index)[None])
    serial = (time.perf_counter() - loading) * min(batches, len(stream))
    each = busy / min(batches, len(stream))
    return stream.waited / total, serial / (serial + busy), each, each / alone - 1


def main() -> None:
    parser = argparse.ArgumentParser(description="Share of time that a ViT-Tiny waits for its data.")
    parser.add_argument("--images", type=Path, help="a folder of ImageNet images")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--kinds", default="clean,gaussian_noise,fog,glass_blur")
    options = parser.parse_args()
    engine = vit_tiny()
    with tempfile.TemporaryDirectory() as folder:
        if options.images is None:
            made_up(Path(folder))
        images = open_images(options.images or folder)
        images = images.take(min(len(images), 64 * options.batches))
        print("domain            waiting  without threads  model s/batch  slowed by")
        for kind in options.kinds.split(","):
            waiting, serial, busy, slower = measure(images, engine, kind, options.batches)
            print(f"{kind:16} {waiting:8.1%} {serial:16.1%} {busy:14.2f} {slower:10.0%}")


if __name__ == "__main__":
    main()
