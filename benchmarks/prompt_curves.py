"""Figures of docs/fozo.md on what FOZO's prompts and its epsilon do: measured into two files, drawn by ``make pages``.

    python -m benchmarks.prompt_curves prompts [--model A.onnx --images DIR]  # into results/prompts.csv; bundled model
    python -m benchmarks.prompt_curves widths    # the same loss on ViTs of random weights; needs PyTorch
    python -m benchmarks.prompt_curves epsilon   # into results/epsilon.csv: Theorems 1 and 2, Eq. 12, fixed epsilons
    python -m benchmarks.prompt_curves presets   # top-1 of the bundled model, printed

Minutes of one core each. A model's rows replace those that it had. Streams are of fifteen corruptions at severity 5.
"""

import argparse
import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import fozo
from benchmarks.common import clean_and_test, clean_batches, markdown, refusals
from benchmarks.pictures import Span, line, svg, text
from fozo.core.moments import Moments
from fozo.core.noise import PhiloxNoise
from fozo.core.objective import entropies
from fozo.core.schedule import Schedule
from fozo.core.spsa import SPSA
from fozo.data import sample
from fozo.data.corruptions import KINDS
from fozo.data.scenarios import Continual
from fozo.data.sets import ImageSet
from fozo.errors import FozoError
from fozo.io import atomic_write
from fozo.methods.fozo.method import token_rms
from fozo.types import Array, Floats, Tap

BATCH = 64
WIDTHS = (48, 96, 192, 384)
RECORDS = Path(__file__).parent.parent / "results"
PROMPTS, EPSILON = RECORDS / "prompts.csv", RECORDS / "epsilon.csv"
NAMES = {"bundled": "bundled", "vit": "ViT-Tiny", "deit": "DeiT-Tiny"}  # by the file's name: vit.onnx of fozo export
WIDTHS_SHOWN = {"share": "share of alignment in the loss", "rms": "projected gradients, RMS"}
FUNCTIONS = {"quadratic": "noisy quadratic", "skewed": "skewed: e^a - a - 1", "rippled": "rippled quadratic"}


class Row(NamedTuple):
    """A measured number: of a model (or a function), under a setting, after so many images (or steps)."""

    of: str
    setting: str
    quantity: str
    at: int
    value: float


def read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as stream:
        lines = list(csv.reader(stream))[1:]
    return [Row(of, setting, quantity, int(at), float(value)) for of, setting, quantity, at, value in lines]


def replace_rows(path: Path, new: Sequence[Row]) -> None:
    """Put rows in the place of those of the same models."""
    fresh = {row.of for row in new}
    kept = [row for row in read(path) if row.of not in fresh] if path.exists() else []
    lines = io.StringIO(newline="")
    rows = ([*row[:4], f"{row.value:.5g}"] for row in [*kept, *new])
    csv.writer(lines, lineterminator="\n").writerows([Row._fields, *rows])
    with atomic_write(path) as stream:
        stream.write(lines.getvalue().encode())


# Prompts along a stream, and the gradients that they get


def trace(name: str, engine: fozo.Engine, source: fozo.SourceStatistics, images: ImageSet) -> Iterator[Row]:
    """RMS of the prompts in that of the tokens and epsilon, every 64 images; how many steps epsilon jumped back at."""
    for preset, size in (("official", 64), ("official", 8), ("scaled", 64)):
        method, setting = fozo.FOZO(engine, source, preset=preset), f"{preset}, batches of {size}"
        steps, jumps = 0, 0
        for batch in fozo.Stream(images, engine.spec, Continual(kinds=KINDS), batch_size=size).batches():
            method(batch.images)
            steps, jumps = steps + 1, jumps + method.spsa.pace.jumped
            if steps * size % BATCH == 0:
                norm = float(np.sqrt(np.square(method.prompts).mean()) / token_rms(source))
                yield Row(name, setting, "norm", steps * size, norm)
                yield Row(name, setting, "epsilon", steps * size, method.spsa.pace.epsilon)
        yield Row(name, setting, "jumps", steps, jumps)


def gradients(
    name: str, engine: fozo.Engine, source: fozo.SourceStatistics, batches: Sequence[Floats]
) -> Iterator[Row]:
    """Projected gradients of the authors' loss at the first prompts, along 8 directions on several batches.

    ``share`` is alignment's in the loss, ``rms`` their size. ``snr`` is the standard deviation over directions of what
    batches have in common, over that of what they have not.
    """
    method = fozo.FOZO(engine, source, passes=16)
    for size in (8, BATCH):
        found, shares = [], []
        for images in batches:
            batch = engine.check(images[:size])
            taps = engine.run(
                batch, fozo.Knobs(prompts=method.spsa.ask().astype(np.float32)), (Tap.FEATURES, Tap.LOGITS)
            )
            pairs = zip(map(Moments.of, taps[Tap.FEATURES]), taps[Tap.LOGITS], strict=True)
            losses = np.array([method.objective(source.features, moments, logits) for moments, logits in pairs])
            apart = [entropies(logits).sum() for logits in taps[Tap.LOGITS]]
            shares.append(1 - np.mean(apart / losses))
            found.append((losses[0::2] - losses[1::2]) / (2 * method.config.schedule.epsilon))
        each = np.array(found)
        noise = each.var(axis=0, ddof=1).mean()
        signal = max(each.mean(axis=0).var(ddof=1) - noise / len(each), 0.0)
        setting = f"official, batches of {size}"
        yield Row(name, setting, "share", 0, float(np.mean(shares)))
        yield Row(name, setting, "rms", 0, float(np.sqrt(np.square(each).mean())))
        yield Row(name, setting, "snr", 0, float(np.sqrt(signal / noise)))


def measure_prompts(model: Path | None, folder: Path | None) -> None:
    """The bundled model and images, or an exported ViT and a folder of ImageNet: 512 clean images, 128 to stream."""
    path = model or sample.MODELS["float32"]
    engine = fozo.load_engine(path, threads=1)
    clean, images = clean_and_test(folder or sample.IMAGES, 512 if folder else 64, 256)
    source = fozo.calibrate(engine, clean_batches(clean, engine.spec)) if folder else sample.source(path)
    name, few = path.stem if model else "bundled", images.take(128, 0)
    stream = fozo.Stream(images, engine.spec, Continual(kinds=("gaussian_noise",)), batch_size=BATCH)
    taken = [batch.images for batch in stream.batches() if len(batch.images) == BATCH]
    replace_rows(PROMPTS, [*gradients(name, engine, source, taken), *trace(name, engine, source, few)])


def measure_widths() -> None:
    """The authors' loss on ViTs of random weights, where only the optimisation can be looked at."""
    import torch

    from fozo.models.vit import Architecture, ViT

    rows: list[Row] = []
    for dim in WIDTHS:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            vit = ViT(Architecture((64, 64), (16, 16), 3, dim, 12, max(1, dim // 64), 4 * dim, 100))
        engine = fozo.load_engine(vit, mean=0.5, std=0.5)
        noise = np.random.default_rng(0).uniform(-1, 1, (5 * BATCH, 3, 64, 64)).astype(np.float32)
        source = fozo.calibrate(engine, noise[:BATCH])
        brighter = 0.4 * noise[BATCH:] + 0.6  # and flatter than the clean images
        rows += gradients(f"width {dim}", engine, source, np.split(brighter, 4))
    replace_rows(PROMPTS, rows)


# Theorems 1 and 2


def changing_optimum(schedule: Schedule, seed: int, kind: str, domains: int = 8, steps: int = 60) -> Array:
    """Squared distance to an optimum in 32 dimensions that jumps every ``steps`` steps, at each step of n-SPSA.

    ``quadratic``: measured with noise of 0.5. ``skewed``: sum of e^a - a - 1, whose smoothed optimum is off by eps^2/2.
    ``rippled``: a quadratic with local minima.
    """
    generator, found = np.random.default_rng(seed), []
    spsa = SPSA(np.zeros(32), schedule, PhiloxNoise(seed), samples=4)
    for _ in range(domains):
        centre = generator.standard_normal(32)
        for _ in range(steps):
            away = np.clip(spsa.ask() - centre, -4, 4)
            losses = np.square(away).sum(axis=1)
            if kind == "quadratic":
                losses += 0.5 * generator.standard_normal(len(losses))
            elif kind == "skewed":
                losses = (np.exp(away) - away - 1).sum(axis=1)
            else:
                losses += np.square(np.sin(8 * away)).sum(axis=1) / 2
            spsa.tell(losses)
            found.append(float(np.square(spsa.point - centre).mean()))
    return np.array(found)


BUNDLED_KINDS = ("gaussian_noise", "motion_blur", "brightness", "fog", "contrast", "jpeg_compression")
SCHEDULES = {
    "Eq. 12": {"epsilon": 0.5, "epsilon_min": 0.05},
    "0.5": {"epsilon": 0.5, "epsilon_min": 0.5},
    "0.2": {"epsilon": 0.2, "epsilon_min": 0.2},
    "0.05": {"epsilon": 0.05, "epsilon_min": 0.05},
}


def bundled_stream(seed: int) -> fozo.Stream:
    spec, taken = (
        fozo.load_engine(sample.MODELS["float32"], threads=1).spec,
        fozo.open_images(sample.IMAGES).take(192, 0),
    )
    return fozo.Stream(taken, spec, Continual(kinds=BUNDLED_KINDS, severity=3), batch_size=32, seed=seed)


def bundled(seed: int, **options: Any) -> list[dict[str, float]]:  # noqa: ANN401
    """Run FOZO on the bundled model and six corruptions at severity 3, batches of 32; a row of figures for each."""
    model = sample.MODELS["float32"]
    method, found = fozo.FOZO(fozo.load_engine(model, threads=1), sample.source(model), seed=seed, **options), []
    for batch in bundled_stream(seed).batches():
        right = float((method(batch.images).argmax(axis=1) == batch.labels).mean())
        found.append({**method.metrics(), "right": 100 * right})
    return found


def measure_epsilon(runs: int = 20, seeds: int = 6) -> None:
    """Eq. 12 and fixed epsilons where the optimum moves, and on the bundled model (8 passes)."""
    rows = []
    for kind in FUNCTIONS:
        for name, values in SCHEDULES.items():
            schedule = Schedule(**values, rate=0.02)
            curve = np.mean([changing_optimum(schedule, seed, kind) for seed in range(runs)], axis=0)
            rows += [
                Row(kind, name, "distance", at, value) for at, value in enumerate(curve.reshape(8, 60)[1:].mean(axis=0))
            ]
    for name, values in list(SCHEDULES.items())[:3]:
        low = 0.2 if name == "Eq. 12" else values["epsilon_min"]
        given: dict[str, Any] = {"schedule.epsilon": values["epsilon"], "schedule.epsilon_min": low, "passes": 8}
        found = [bundled(seed, **given) for seed in range(seeds)]
        right = np.array([[row["right"] for row in run] for run in found]).mean(axis=1)
        rows += [Row("bundled", name, "top1", seed, value) for seed, value in enumerate(right)]
        losses = np.array([[row["loss"] for row in run] for run in found]).mean(axis=0)
        rows += [Row("bundled", name, "loss", at, value) for at, value in enumerate(losses)]
    replace_rows(EPSILON, rows)


# Pictures


Curves: TypeAlias = Mapping[str, tuple[Sequence[float], Sequence[float]]]
INKS = ("var(--good)", "var(--bad)", "var(--tie)", "var(--ink)", "var(--m4)")


def panel(left: float, top: float, title: str, curves: Curves, below: str, log: bool = False) -> list[str]:
    """A small chart, 205 by 150 pixels inside, with its title and its legend above it."""
    scale = np.log10 if log else np.asarray
    ys = np.concatenate([scale(np.maximum(y, 1e-6)) for _, y in curves.values()])
    xs = np.concatenate([np.asarray(x, dtype=float) for x, _ in curves.values()])
    low, high = (float(ys.min()), float(ys.max())) if log else (min(0.0, float(ys.min())), float(ys.max()))
    across, up = Span(float(xs.min()), float(xs.max()), left, left + 205), Span(low, high, top + 150, top)
    parts = [text(left, top - 32, title, "bold"), text(left, top + 180, below, "soft small")]
    for mark in np.linspace(low, high, 4):
        label = f"{10**mark:.2g}" if log else f"{mark:.2g}"
        parts += [line(left, up(mark), left + 205, up(mark), "grid"), text(left - 4, up(mark) + 4, label, "end small")]
    for mark in (xs.min(), xs.max()):
        parts.append(text(across(mark), top + 165, f"{mark:g}", "middle small"))
    from_left = left
    for ink, (name, (x, y)) in zip(INKS, curves.items(), strict=False):
        pairs = zip(x, scale(np.maximum(y, 1e-6)), strict=True)
        points = " ".join(f"{across(a):.1f},{up(b):.1f}" for a, b in pairs)
        parts.append(f'<polyline class="curve" points="{points}" style="stroke: {ink}"/>')
        parts.append(text(from_left, top - 14, name, "small", f"fill: {ink}"))
        from_left += 6.4 * len(name) + 10
    return parts


def picked(rows: Iterable[Row], of: str, setting: str, quantity: str) -> tuple[list[float], list[float]]:
    found = [row for row in rows if (row.of, row.setting, row.quantity) == (of, setting, quantity)]
    return [row.at for row in found], [row.value for row in found]


def epsilon_picture() -> str:
    """Theorems 1 and 2: Eq. 12 against fixed epsilons, where the optimum moves, and on the bundled model."""
    rows, parts = read(EPSILON), list[str]()
    for place, (kind, title) in enumerate(FUNCTIONS.items()):
        curves = {name: picked(rows, kind, name, "distance") for name in SCHEDULES}
        parts += panel(50 + 268 * place, 55, title, curves, "steps; squared distance to the optimum", log=True)
    losses = {name: picked(rows, "bundled", name, "loss") for name in list(SCHEDULES)[:3]}
    parts += panel(50, 300, "bundled model: loss", losses, "batches of 32; six corruptions of 192 images")
    notes = ("The optimum moves every 60 steps; mean of 20 runs, n = 4, 32 dimensions.",
             "Noise and ripples favour a large epsilon, a third derivative a small one.",
             "On the bundled model (8 passes, mean of 6 seeds) the three cannot be distinguished.")  # fmt: skip
    parts += [text(318, 330 + 18 * place, note, "small") for place, note in enumerate(notes)]
    return svg("Eq. 12 against fixed epsilons", 500, parts)


def prompts_picture() -> str:
    """What prompts, epsilon and the parts of the loss do, by model and by width."""
    rows, parts = read(PROMPTS), list[str]()
    below = "images of the stream, batches of 64"
    for place, preset in enumerate(("official", "scaled")):
        norms = {NAMES[model]: picked(rows, model, f"{preset}, batches of 64", "norm") for model in NAMES}
        title = f"{preset}: prompts in RMS of tokens"
        parts += panel(50 + 268 * place, 55, title, norms, below, log=preset == "official")
    steps = {NAMES[model]: picked(rows, model, "official, batches of 64", "epsilon") for model in NAMES}
    parts += panel(586, 55, "official: epsilon", steps, below)
    for place, (quantity, title) in enumerate(WIDTHS_SHOWN.items()):
        values = [picked(rows, f"width {dim}", "official, batches of 64", quantity)[1][0] for dim in WIDTHS]
        curves = {"batches of 64": (WIDTHS, values)}
        parts += panel(50 + 268 * place, 300, title, curves, "width of a ViT of random weights", log=quantity == "rms")
    sizes = (8, BATCH)
    ratios = {
        title: (sizes, [picked(rows, model, f"official, batches of {size}", "snr")[1][0] for size in sizes])
        for model, title in NAMES.items()
    }
    parts += panel(586, 300, "gradients, signal over noise", ratios, "images of a batch")
    return svg("What FOZO's prompts do", 500, parts)


def diagnosis() -> str:
    """The table of docs/fozo.md: what the authors' program does to a model's prompts, and what drives them."""
    rows = read(PROMPTS)
    found = []
    for model, title in NAMES.items():
        for size in (8, BATCH):
            setting = f"official, batches of {size}"
            share, rms, snr, norm = (picked(rows, model, setting, name)[1] for name in ("share", "rms", "snr", "norm"))
            (steps,), (jumps,) = picked(rows, model, setting, "jumps")
            figures = [
                f"{norm[-1]:.1f}",
                f"{jumps:.0f} of {steps:.0f}",
                f"{share[0]:.2f}",
                f"{rms[0]:.2g}",
                f"{snr[0]:.1f}",
            ]
            found.append([title, size, *figures])
    heads = ("", "batch", "prompts at the end", "jumps of epsilon", "share of alignment", "gradient", "signal / noise")
    return markdown(heads, found)


def presets() -> None:
    """Top-1 of the bundled model, unadapted and under each preset; batches of 32."""
    plain = fozo.create("noadapt", fozo.load_engine(sample.MODELS["float32"], threads=1))
    right = [(plain(each.images).argmax(axis=1) == each.labels).mean() for each in bundled_stream(0).batches()]
    print(f"| NoAdapt | {100 * np.mean(right):.1f} |")
    for preset in fozo.FOZO.PRESETS:
        for passes in (2, 8):
            rows = bundled(0, preset=preset, passes=passes)
            print(f"| {preset}, {passes} passes | {np.mean([row['right'] for row in rows]):.1f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("prompts")
    command.add_argument("--model", type=Path)
    command.add_argument("--images", type=Path)
    for name in ("widths", "epsilon", "presets"):
        commands.add_parser(name)
    given = parser.parse_args()
    with refusals("prompt_curves"):
        if given.command == "prompts":
            if (given.model is None) != (given.images is None):
                raise FozoError("--model and --images are given together, or neither for the bundled model")
            measure_prompts(given.model, given.images)
        else:
            {"widths": measure_widths, "epsilon": measure_epsilon, "presets": presets}[given.command]()
