"""How well the monitor tells: false alarms, delays, guesses. Expected accuracy: :mod:`benchmarks.monitor_accuracy`.

    python -m benchmarks.monitor IMAGES --cache DIR -o results/monitor.md

Everything is of images that the reference was not made from; see :mod:`benchmarks.monitor_material`, which has to have
been run with the same folder first. No model runs here: it takes about a minute.
"""

import argparse
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.common import markdown, write
from benchmarks.monitor_material import SEVERITIES, TEST, Domain, Material
from fozo.core.noise import Purpose, generator
from fozo.data.corruptions import KINDS
from fozo.data.groups import GROUPS, HELD_OUT, TUNING
from fozo.monitor import CleanImages, Drift, DriftDetector
from fozo.monitor.reference import Signatures
from fozo.types import Array

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BATCHES = 10_000
RATES = (1e-2, 1e-3, 1e-4)
WAIT = 100
"""Clean images before a corruption sets in, in the table of delays."""


def drawn(rows: Array, size: int, number: int) -> Array:
    return rows[generator(0, Purpose.SHUFFLES, number).integers(len(rows), size=size)]


def _alarms(clean: CleanImages, batches: Iterable[Array], content: float, *rates: float) -> list[int]:
    """Batches of whitened rows with an alarm at each rate, each judged alone."""
    p = [clean.p_value(clean.distance(rows), clean.independent(rows), content) for rows in batches]
    return [int((np.array(p) < rate).sum()) for rate in rates]


def false_alarms(clean: CleanImages, rest: Array) -> Iterator[str]:
    """Count batches with an alarm: images drawn with repetition from those that were set apart."""
    whitened = clean.whitening(rest)
    yield f"## False alarms on {BATCHES:,} clean batches, drawn from {len(rest):,} images not calibrated on"
    for content in (0.0, 0.25):
        yield f"content = {content:g}: batches with an alarm, and how many the rate allows."
        rows: list[list[object]] = []
        for number, size in enumerate(SIZES):
            picks = generator(0, Purpose.SHUFFLES, number).integers(len(rest), size=(BATCHES, size))
            rows.append([size, *_alarms(clean, (whitened[pick] for pick in picks), content, *RATES)])
        yield markdown(["images in a batch", *(f"rate {rate:g}: {BATCHES * rate:g}" for rate in RATES)], rows)


class Watched:
    """A detector, and where it is in a stream."""

    def __init__(self, detector: DriftDetector) -> None:
        self.detector = detector
        self.state = detector.init()

    def update(self, features: Array) -> Drift:
        self.state, drift = self.detector.update(self.state, features)
        return drift


def streams(clean: CleanImages, rest: Array) -> Iterator[str]:
    """Count alarms of the detector as it is used: the batch and the window, on endless clean streams."""
    yield f"## False alarms of the detector on clean streams (rate 1e-4, {BATCHES:,} batches, images in random order)"
    rows: list[list[object]] = []
    for size in (1, 4, 16, 64):
        counts = []
        for content in (0.0, 0.25):
            detector = Watched(DriftDetector(clean, content=content))
            alarms = 0
            start = len(rest)
            for batch in range(BATCHES):
                if start + size > len(rest):
                    order = generator(1, Purpose.SHUFFLES, size + batch).permutation(len(rest))
                    start = 0
                alarms += detector.update(rest[order[start : start + size]]).drift_detected
                start += size
            counts.append(alarms)
        rows.append([size, *counts])
    yield markdown(["images in a batch", "batches in drift, content 0", "content 0.25"], rows)


def narrow(clean: CleanImages, rest: Array, labels: npt.NDArray[np.int64]) -> Iterator[str]:
    """Streams of one kind of thing: how far clean ones are, and whether they raise an alarm."""
    yield "## Narrow content: clean images of one kind of thing, 1,000 batches each (rate 1e-4)"
    rows: list[list[object]] = []
    whitened = clean.whitening(rest)
    for name in (*TUNING, *HELD_OUT):  # Align was tuned on the first six
        group = whitened[np.isin(labels, GROUPS[name])]
        count = len(group)
        chance = np.square(group - group.mean(axis=0)).sum() / (count - 1) / count / clean.length
        alarms: list[int] = []
        for content, size in product((0.0, 0.25), (16, 64)):
            batches = group[generator(2, Purpose.SHUFFLES, size).integers(count, size=(1000, size))]
            alarms += _alarms(clean, batches, content, 1e-4)
        rows.append([name, count, f"{clean.distance(group) - chance:.2f}", *alarms])
    heads = ["group", "images", "distance of its mean", "16 images, content 0", "64, content 0", "16, content 0.25"]
    yield markdown([*heads, "64, 0.25"], rows)


def delays(clean: CleanImages, test: dict[Domain, Array], rest: Array) -> Iterator[str]:
    """Images until a corruption is noticed, after clean ones; single images, then batches."""
    for size in (1, 16):
        yield f"## Images until drift is noticed, batches of {size} (median of 5 orders; rate 1e-4, content 0.25)"
        rows: list[list[object]] = []
        for kind in KINDS:
            row: list[object] = [kind]
            for severity in SEVERITIES:
                found = []
                for order in range(5):
                    detector = Watched(DriftDetector(clean))
                    before = drawn(rest, WAIT // size * size, order)
                    after = test[kind, severity][generator(3, Purpose.SHUFFLES, order).permutation(TEST)]
                    for start in range(0, len(before), size):
                        detector.update(before[start : start + size])
                    delay = next(
                        (
                            start + size
                            for start in range(0, TEST - size + 1, size)
                            if detector.update(after[start : start + size]).drift_detected
                        ),
                        TEST + 1,
                    )
                    found.append(delay)
                median = int(np.median(found))
                row.append(median if median <= TEST else f"> {TEST}")
            rows.append(row)
        yield markdown(["corruption", *map(str, SEVERITIES)], rows)


def episodes(clean: CleanImages, test: dict[Domain, Array], rest: Array, orders: int = 100) -> Iterator[str]:
    """Count episodes with more than one alarm or all-clear: 48 clean images, 64 corrupted ones, 48 clean ones."""
    yield f"## Episodes of 12 corruptions at severity 3, {orders} orders of the images each (rate 1e-4, content 0.25)"
    rows: list[list[object]] = []
    for size in (1, 8):
        noticed = 0
        changed = 0
        fluttered = 0
        delays = []
        for kind, order in product(KINDS[:12], range(orders)):
            rng = generator(6, Purpose.SHUFFLES, order)
            detector = Watched(DriftDetector(clean))
            some = rng.permutation(len(rest))[:96]
            corrupted = test[kind, 3][rng.permutation(TEST)[:64]]
            stream = np.concatenate([rest[some[:48]], corrupted, rest[some[48:]]])
            drifts = [detector.update(stream[start : start + size]) for start in range(0, len(stream), size)]
            turns = 1 + np.flatnonzero(np.diff([drift.drift_detected for drift in drifts]))
            noticed += len(turns) > 0
            fluttered += len(turns) > 2
            changed += any(drift.changed is not None for drift in drifts)
            if len(turns) == 2:
                delays.append((turns[-1] + 1) * size - 112)
        rows.append([size, 12 * orders, noticed, fluttered, changed, f"{np.median(delays):.0f}"])
    heads = ["images in a batch", "episodes", "noticed", "more than one alarm or all-clear", "called changed"]
    yield markdown([*heads, "clean images until it is over (median)"], rows)


def guesses(signatures: Signatures, test: dict[Domain, Array]) -> Iterator[str]:
    """How often a corruption is guessed right, and how often it is named at all."""
    yield f"## Guesses: 20 draws of {TEST} images of each corruption"
    rows: list[list[object]] = []
    for size, severity in product((4, 16, 64), SEVERITIES):
        guesses = []
        for kind, order in product(KINDS, range(20)):
            some = generator(5, Purpose.SHUFFLES, order).permutation(TEST)[:size]
            guess = signatures.guess(test[kind, severity][some])
            guesses.append((guess.kind == kind, kind in guess.kinds, guess.known))
        rows.append([size, severity, *(f"{100 * share:.0f} %" for share in np.mean(guesses, axis=0))])
    yield markdown(["images", "severity", "right", "truth named", "called known"], rows)


def report(material: Material) -> Iterator[str]:
    yield "# The monitor, measured"
    yield (
        f"Made by `python -m benchmarks.monitor`; reference of {len(material.clean)} images, tests on {TEST} others "
        f"under each of 15 corruptions and severities, drawn anew for each from {len(material.rest):,}, which are the "
        f"clean ones, too. Looks are of images normalised by 0.5 and 0.5."
    )
    features = {group: material.all_features(group) for group in ("fit", "test", "rest")}
    clean = CleanImages.of(features["fit"]["clean", 0])
    rest = features["rest"]["clean", 0]
    yield from false_alarms(clean, rest)
    yield from streams(clean, rest)
    yield from narrow(clean, rest, material.labels("rest", np.arange(len(rest))))
    yield from delays(clean, features["test"], rest)
    yield from episodes(clean, features["test"], rest)
    corrupted = {domain: rows for domain, rows in features["fit"].items() if domain[1]}
    yield from guesses(Signatures.of(features["fit"]["clean", 0], corrupted), features["test"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("-o", "--out", type=Path)
    given = parser.parse_args()
    write(report(Material(given.images, given.cache)), given.out)


if __name__ == "__main__":
    main()
