"""Floating-point operations of every method for one image, counted as torch dispatches them, as results/operations.csv.

    python -m benchmarks.operations [--out results/operations.csv]

A ViT-Tiny with random weights, batches of 8, the third batch of a stream: products of matrices, convolutions and
attention, forward and backward (a multiplication and an addition are two operations). The plain model computes the last
block's MLP for the CLS token alone, and so do methods that read nothing else there. What a method does in NumPy is
not seen by the counter and not in the numbers: moments, distances, the equaliser's transforms, PEA's decompositions. So
methods with a large part outside torch are told apart by time, not by this count.
"""

import argparse
import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

import fozo
from benchmarks.common import random_engine, refusals
from fozo.bench.plan import every_method
from fozo.io import atomic_write
from fozo.methods.common.measured import MEASURED
from fozo.methods.registry import method_class

BATCH = 8
ATEN = torch.ops.aten


def _attention(*shapes: Sequence[int], out_shape: object = None, **options: object) -> int:
    return int(sdpa_flop_count(*shapes[:3]))  # type: ignore[no-untyped-call]


def _attention_backward(*shapes: Sequence[int], out_shape: object = None, **options: object) -> int:
    return int(sdpa_backward_flop_count(*shapes[:4]))  # type: ignore[no-untyped-call]


CPU_KERNELS = {  # which torch's own table lacks
    ATEN._scaled_dot_product_flash_attention_for_cpu: _attention,
    ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
HEADS = ("row", "method", "operations_per_image", "times_plain")


def operations() -> dict[str, float]:
    """Operations for an image by row of the comparison."""
    torch.set_num_threads(1)
    engine = random_engine("tiny")
    generator = np.random.default_rng(0)
    batches = generator.uniform(-1, 1, (3, BATCH, 3, 224, 224)).astype(np.float32)
    batches *= np.linspace(0.2, 1, 3)[:, None, None, None, None].astype(np.float32)  # so that statistics change
    clean = generator.uniform(-1, 1, (BATCH, 3, 224, 224)).astype(np.float32)
    source = fozo.calibrate(engine, iter([clean]))
    found = {}
    for label, (name, options) in every_method().items():
        made: Any = method_class(name)
        eager = {"e_margin": 2.0} if hasattr(next(iter(made.PRESETS.values())), "e_margin") else {}  # all images count
        eager |= {"deyo": {"plpd_threshold": -1.0}, "eata": {"d_margin": 2.0}}.get(name, {})
        given: dict[str, Any] = {
            key: MEASURED[key].measure(engine, iter([clean])) for key in made.info.needs & MEASURED.keys()
        }
        method = fozo.create(name, engine, source, **{**given, **eager, **options})
        method(batches[0])
        method(batches[1])
        with FlopCounterMode(display=False, custom_mapping=CPU_KERNELS) as counter:
            method(batches[2])
        found[label] = counter.get_total_flops() / BATCH
        print(f"{label}: {found[label] / 1e9:.3f} GFLOP", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/operations.csv"))
    given = parser.parse_args()
    with refusals("operations"):
        counted = operations()
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(HEADS)
        methods = every_method()
        for label, count in counted.items():
            writer.writerow([label, methods[label][0], round(count), f"{count / counted['NoAdapt']:.3f}"])
        with atomic_write(given.out) as file:
            file.write(text.getvalue().encode())


if __name__ == "__main__":
    main()
