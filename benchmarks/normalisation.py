"""Is another normalisation noticed, and is drift ever taken for one?

    python -m benchmarks.normalisation CLEAN_IMAGES [--model WEIGHTS]

Images under the 15 corruptions at severity 5, and clean ones, are normalised in four usual ways and held against each:
as an engine does whose model tells its mean and std, and as an adapter does that knows only what its clean images
looked like. Once as they come, 8-bit pixels normalised, and once smoothed as floats, as if resized after decoding. It
prints how many batches of four were objected to; those prepared as they should be are false alarms.
With a model it also prints what each way costs: the plain model's accuracy on 128 clean images.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter

import numpy as np

import fozo
from fozo.core.normalisation import CLIP, HALF, IMAGENET, NONE, InputRange, Normalisation, Watch, check_images
from fozo.data.corruptions import KINDS
from fozo.data.sets import CLEAN, Domain, open_images
from fozo.data.sources import Corrupting
from fozo.errors import ImageWarning
from fozo.types import Floats, Spec

WAYS: dict[str, Normalisation] = {"0..1": NONE, "0.5": HALF, "ImageNet": IMAGENET, "CLIP": CLIP}
SIZE, BATCH, SEVERITY = 224, 4, 5
TELLS_NOT = Spec("a model", 1, 8, 2, 3, (SIZE, SIZE), (16, 16), 8, "0")


def normalised(pixels: np.ndarray, way: Normalisation, smooth: bool) -> Floats:
    mean, std = (np.asarray(part, np.float32) for part in way)
    x: Floats = ((pixels.astype(np.float32) / 255 - mean) / std).transpose(0, 3, 1, 2)
    if smooth:  # half a pixel to the side, bilinear
        x = (x + np.roll(x, 1, 2) + np.roll(x, 1, 3) + np.roll(x, 1, (2, 3))) / 4
    return x.astype(np.float32)


def objected(images: Floats, right: Normalisation, clean: InputRange | None) -> bool:
    """Whether a model that tells its normalisation, or else an adapter with these clean images, warns of a batch."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", ImageWarning)
        if clean is None:
            spec = Spec("a model", 1, 8, 2, 3, (SIZE, SIZE), (16, 16), 8, "0", *right)
            check_images(images, spec, set())
        else:
            Watch()(images, TELLS_NOT, clean)
    return bool(seen)


def cost(model: str, folder: str) -> None:
    """Print the accuracy of the plain model on clean images that were normalised in each way."""
    plain, images = fozo.NoAdapt(fozo.load_engine(model)), open_images(folder).take(128)
    source = Corrupting(images, SIZE)
    pixels = np.stack([source.load(CLEAN, i) for i in range(len(images))])
    print(f"{plain.engine.spec.name}, 128 clean images, reads mean {plain.engine.spec.mean}:")
    for name, way in WAYS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ImageWarning)
            right = plain(normalised(pixels, way, smooth=False)).argmax(axis=1) == images.labels
        print(f"| given {name} | {100 * right.mean():.1f} % |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images")
    parser.add_argument("--count", type=int, default=8, help="images of each domain")
    parser.add_argument("--model", help="weights whose name tells their mean and std")
    arguments = parser.parse_args()
    if arguments.model:
        cost(arguments.model, arguments.images)
    count = arguments.count
    source = Corrupting(open_images(arguments.images).take(count + 32), SIZE)
    calm = np.stack([source.load(CLEAN, i) for i in range(count, count + 32)])
    hits: Counter[tuple[bool, bool, str, str]] = Counter()
    batches = 0
    for domain in (CLEAN, *(Domain(kind, SEVERITY) for kind in KINDS)):
        pixels = np.stack([source.load(domain, i) for i in range(count)])
        for first in range(0, count, BATCH):
            batches += 1
            for smooth in (False, True):
                given = {name: normalised(pixels[first : first + BATCH], way, smooth) for name, way in WAYS.items()}
                for right, way in WAYS.items():
                    clean = InputRange.of(normalised(calm, way, smooth), None)
                    for name, images in given.items():
                        hits[smooth, True, right, name] += objected(images, way, None)
                        hits[smooth, False, right, name] += objected(images, way, clean)
    for smooth in (False, True):
        for tells in (True, False):
            knows = "tells" if tells else "does not tell"
            print(f"\n{'floats' if smooth else '8 bits'}, the model {knows}; of {batches} batches:")
            print("| right | " + " | ".join(f"given {name}" for name in WAYS) + " |")
            print("|---" * (len(WAYS) + 1) + "|")
            for right in WAYS:
                print(f"| {right} | " + " | ".join(str(hits[smooth, tells, right, name]) for name in WAYS) + " |")


if __name__ == "__main__":
    main()
