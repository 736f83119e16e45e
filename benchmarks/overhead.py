"""What Align costs beside the forward pass it needs anyway: processor time against the unadapted model.

    python -m benchmarks.overhead [--batch 64] [--rounds 5] [--threads 1]

A ViT-Tiny and a ViT-B with random weights (speed does not depend on them) and images of 224 px that are faded, so that
the equaliser has work to do. Both methods see the same batch in turn, round after round, so that Align has memories of
its domain; the result is the median of the rounds' ratios, in processor time, because a busy machine falsifies the
clock.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

import fozo
from benchmarks.common import in_turn, random_engine, summary, timed
from fozo.methods.registry import AnyMethod
from fozo.testing import random_images

FADED = np.float32(0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    for size in ("tiny", "base"):
        engine = random_engine(size)
        batch = random_images(engine.spec, a.batch)
        source = fozo.calibrate(engine, [batch[:16]])
        methods: dict[str, AnyMethod] = {"plain": fozo.NoAdapt(engine), "align": fozo.Align(engine, source)}
        ratios, each = [], []
        for number, turn in in_turn(list(methods), a.rounds):
            spent = {name: timed(methods[name], FADED * batch)[0][1] / a.batch for name in turn}
            if number:
                ratios.append(spent["align"] / spent["plain"])
                each.append(1000 * (spent["align"] - spent["plain"]))
        print(
            f"ViT-{size}: Align takes {summary(ratios, 2)} the processor time of the plain model, "
            f"{np.median(each):+.1f} ms an image"
        )


if __name__ == "__main__":
    main()
