"""What it costs or gains in accuracy that Align keeps a correction, and runs larger groups where its memory is rich.

    python -m benchmarks.corrections                          (the bundled model and images, severities 3 and 5)
    python -m benchmarks.corrections --weights WEIGHTS --folder IMAGES [--images 64] [--batches 1 8] [--severities 3]

A correction is kept for new images up to a part of the effective samples that it rests on (``correction.PART``). Beside
the part that is used, others are tried: 0 makes a correction for every group. The last row also has groups of eight
always (``method.RICH``): how Align was before either. One continual stream through clean images and the fifteen
corruptions, the same batches to all of them; the difference is to groups of eight with a correction each. Intervals are
of 95 %, over images, as in benchmarks/calibration.py. *Kept* is the share of groups whose correction was there already.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fozo
from benchmarks.calibration import Predictor, play, written
from benchmarks.common import clean_and_test, clean_batches
from benchmarks.narrow import table
from fozo.core.statistics import SourceStatistics
from fozo.data import sample
from fozo.data.corruptions import KINDS
from fozo.data.scenarios import Continual
from fozo.data.sets import ImageSet
from fozo.data.streams import LabelledBatch
from fozo.methods.align import correction
from fozo.methods.align import method as align
from fozo.types import Engine, Floats

PARTS = (0.0, 0.25, 0.5, 1.0)
BASE = "groups of eight"
CALIBRATION = 512


@contextmanager
def constants(part: float, rich: float) -> Iterator[None]:
    """Let Align keep corrections for another part of the evidence, and run large groups from other evidence on."""
    before = correction.PART, align.RICH
    correction.PART, align.RICH = part, rich
    try:
        yield
    finally:
        correction.PART, align.RICH = before


class Contender:
    """Align under other constants; counts its groups, and those whose correction was kept."""

    def __init__(self, engine: Engine, source: SourceStatistics, part: float, rich: float) -> None:
        self.method, self.part, self.rich = fozo.Align(engine, source), part, rich
        self.groups, self.kept = 0, 0

    def __call__(self, batch: LabelledBatch) -> Floats:
        with constants(self.part, self.rich):
            logits = self.method(batch.images)
        self.groups += len(self.method.planned)
        self.kept += self.method.planned.count(True)
        return logits


def measured(engine: Engine, source: SourceStatistics, images: ImageSet, severity: int, batch: int) -> list[list[str]]:
    """Rows of one stream."""
    plain = fozo.NoAdapt(engine)
    contenders = {f"kept for {part:g} of the evidence": Contender(engine, source, part, align.RICH) for part in PARTS}
    contenders[BASE] = Contender(engine, source, 0.0, float("inf"))
    predictors: dict[str, Predictor] = {"NoAdapt": lambda given: plain(given.images), **contenders}
    scenario = Continual(kinds=("clean", *KINDS), severity=severity)
    stream = fozo.Stream(images, engine.spec, scenario, batch_size=batch)
    hits = play(predictors, stream, f"severity {severity}, batches of {batch}")
    where = [str(severity), str(batch)]
    rows = [[*where, "NoAdapt", f"{100 * hits['NoAdapt'].mean():.2f}", "", ""]]
    for name, each in contenders.items():
        less = "" if name == BASE else written(hits[name], hits[BASE])
        rows.append([*where, name, f"{100 * hits[name].mean():.2f}", less, f"{100 * each.kept / each.groups:.0f} %"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, help="of another model than the bundled one")
    parser.add_argument("--folder", type=Path, help="of its images")
    parser.add_argument("--images", type=int, default=300, help="of each domain")
    parser.add_argument("--batches", type=int, nargs="+", default=(1, 8, 32), help="sizes")
    parser.add_argument("--severities", type=int, nargs="+", default=(3, 5))
    a = parser.parse_args()
    if a.weights is None:
        engine = fozo.load_engine(sample.MODELS["float32"])
        source, images = sample.source(sample.MODELS["float32"]), fozo.open_images(sample.IMAGES).take(a.images)
    else:
        engine = fozo.load_engine(a.weights)
        clean, images = clean_and_test(a.folder, CALIBRATION, a.images)
        source = fozo.calibrate(engine, clean_batches(clean, engine.spec))
    rows = [row for s in a.severities for b in a.batches for row in measured(engine, source, images, s, b)]
    print(table(["severity", "batch", "Align", "top-1", f"less {BASE} (95 %)", "kept"], rows))
    print(f"\n{engine.spec.name}, {len(images)} images of each of {1 + len(KINDS)} domains, one after the other")


if __name__ == "__main__":
    main()
