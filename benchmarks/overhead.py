"""What FOZO's own preset costs beside the forward pass it needs anyway: processor time against the unadapted model.

    python -m benchmarks.overhead [--batch 64] [--rounds 5] [--threads 1]

A ViT-Tiny and a ViT-B with random weights (speed does not depend on them) and images of 224 px that are faded, so that
the equaliser has work to do. Both methods see the same batches in turn, with full memories; the result is the median of
the rounds' ratios, in processor time, because a busy machine falsifies the clock.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

import fozo
from benchmarks.engine import images, make


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    batch = images(a.batch)
    for size in ("tiny", "base"):
        engine = make(size)
        source = fozo.SourceStatistics.collect(engine, [batch[:16]])
        plain, adapted = fozo.NoAdapt(engine), fozo.FOZO(engine, source)
        ratios, each = [], []
        adapted(0.3 * batch)
        for _ in range(a.rounds):
            times = []
            for method in (plain, adapted):
                began = time.process_time()
                method(0.3 * batch)
                times.append((time.process_time() - began) / a.batch)
            ratios.append(times[1] / times[0])
            each.append(1000 * (times[1] - times[0]))
        print(
            f"ViT-{size}: FOZO takes x {np.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}) the processor "
            f"time of the plain model, {np.median(each):+.1f} ms an image"
        )


if __name__ == "__main__":
    main()
