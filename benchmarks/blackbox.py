"""A ResNet-50 as a black box, with and without ``fozo.adapter``, under every corruption.

    python -m benchmarks.blackbox WEIGHTS IMAGES --work DIR [--engine torch] [--severity 5] [--rounds 2]

WEIGHTS is Keras' ResNet-50 (see benchmarks/resnet50.py), IMAGES a folder of ImageNet validation crops in wnid folders.
The model is a torch module, or that module written as an ONNX file which holds nothing of fozo's. One adapter sees all
domains one after another, clean images first, in batches of 32: each domain once a round, with other images in every
round. It is never reset, nor told where a domain ends; 256 other images are its clean ones. Prints Markdown. What is
finished is kept in DIR: stop it when you like, and give the same command again, with more rounds if you like.

Intervals are 95 %, over images: what is hard for one is hard for the other, so differences are taken image by image;
for the mean over corruptions, an image's differences are averaged first.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

import fozo
from benchmarks.common import clean_and_test, clean_batches
from benchmarks.resnet50 import MEAN, STD, load, write_onnx
from fozo.data.corruptions import KINDS, frost_source
from fozo.data.sets import CLEAN, Domain
from fozo.data.streams import Corrupting
from fozo.engines.blackbox import BlackBoxEngine, black_box

BATCH = 32
CLEAN_IMAGES = 256
MOST_IMAGES = 4 * BATCH
Right = npt.NDArray[np.float64]


def engine_of(weights: Path, kind: str, folder: Path, threads: int) -> BlackBoxEngine:
    torch.set_num_threads(threads)
    model = load(weights)
    if kind == "torch":
        return black_box(model, name="resnet50", mean=MEAN, std=STD, image_size=224)
    path = folder / "resnet50.onnx"
    if not path.exists():
        write_onnx(model, path)
    return black_box(path, mean=MEAN, std=STD, threads=threads)


def measure(
    engine: BlackBoxEngine, folder: Path, kinds: tuple[str, ...], severity: int, rounds: int, work: Path
) -> dict[str, Right]:
    """For each domain, which images are predicted right without and with the adapter: ``[2, images]``."""
    clean, test = clean_and_test(folder, CLEAN_IMAGES, MOST_IMAGES)
    statistics = work / "source.npz"
    if not statistics.exists():
        fozo.calibrate(engine, clean_batches(clean, engine.spec)).save(statistics)
    adapter = fozo.adapter(engine, statistics)
    plain, source = fozo.NoAdapt(engine), Corrupting(test, engine.spec.image_size)
    labels, found = np.asarray(test.labels), dict[str, list[Right]]()
    for turn in range(rounds):
        some = slice(turn * BATCH, (turn + 1) * BATCH)
        for domain in (CLEAN, *(Domain(kind, severity) for kind in kinds)):
            state, done = (work / f"{turn}-{domain.kind}{ending}" for ending in ("-state.npz", ".npy"))
            if not done.exists():
                images = engine.spec.normalise(np.stack([source.load(domain, i) for i in range(MOST_IMAGES)[some]]))
                right = [np.argmax(method(images), axis=1) == labels[some] for method in (plain, adapter)]
                adapter.save(state)
                np.save(done, np.array(right, dtype=np.float64))
            adapter.restore(state)
            found.setdefault(domain.kind, []).append(np.load(done))
            before, after = 100 * found[domain.kind][-1].mean(axis=1)
            print(f"round {turn + 1}, {domain.name}: {before:.1f} -> {after:.1f}", file=sys.stderr, flush=True)
    return {kind: np.concatenate(parts, axis=1) for kind, parts in found.items()}


def row(name: str, right: Right) -> str:
    difference = 100 * (right[1] - right[0])
    error = 1.96 * difference.std(ddof=1) / np.sqrt(len(difference))
    before, after = 100 * right.mean(axis=1)
    return f"| {name} | {before:.1f} | {after:.1f} | {after - before:+.1f} ± {error:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("images_folder", metavar="images", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder for what is finished, one for each setting")
    parser.add_argument("--engine", choices=("onnx", "torch"), default="onnx")
    parser.add_argument("--severity", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2, help=f"of {BATCH} images of each corruption, 4 at most")
    parser.add_argument("--kinds", default=",".join(KINDS), help="corruptions, separated by commas")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    kinds = tuple(arguments.kinds.split(","))
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    engine = engine_of(arguments.weights, arguments.engine, work, arguments.threads)
    found = measure(engine, arguments.images_folder, kinds, arguments.severity, arguments.rounds, work)
    print(
        f"ResNet-50 on {arguments.engine}, severity {arguments.severity}, {BATCH * arguments.rounds} images of each "
        f"corruption (frost textures: {frost_source()}), top-1 in %:\n"
    )
    print("| | as it is | adapter | difference |\n|---|---:|---:|---:|")
    for kind in (CLEAN.kind, *kinds):
        print(row(kind.replace("_", " "), found[kind]))
    print(row("**mean of the corruptions**", np.mean([found[kind] for kind in kinds], axis=0)))


if __name__ == "__main__":
    main()
