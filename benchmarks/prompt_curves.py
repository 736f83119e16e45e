"""Figures of docs/fozo.md on what FOZO's prompts and its epsilon do; no weights or images but the bundled ones.

    python -m benchmarks.prompt_curves epsilon docs/results/epsilon.svg   # Theorems 1 and 2: Eq. 12, fixed epsilons
    python -m benchmarks.prompt_curves curves docs/results/prompts.svg    # norms, epsilon, parts of the loss
    python -m benchmarks.prompt_curves presets                            # top-1 of the bundled model

All print the rows of a table, and need minutes of one core; ``curves`` needs PyTorch.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

import fozo
from benchmarks.common import refusals
from benchmarks.pictures import Span, line, svg, text
from fozo.core.moments import Moments
from fozo.core.noise import PhiloxNoise
from fozo.core.schedule import Schedule
from fozo.core.spsa import SPSA
from fozo.data import sample
from fozo.data.scenarios import Continual
from fozo.io import atomic_write
from fozo.methods.fozo.method import token_rms
from fozo.models.vit import Architecture, ViT
from fozo.types import Array, Tap

BATCH = 64


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


def bundled_stream(batch_size: int, seed: int) -> fozo.Stream:
    engine, taken = (
        fozo.load_engine(sample.MODELS["float32"], threads=1),
        fozo.open_images(sample.IMAGES).take(192, 0),
    )
    return fozo.Stream(taken, engine.spec, Continual(kinds=BUNDLED_KINDS, severity=3), batch_size=batch_size, seed=seed)


def bundled(seed: int, batch_size: int = 32, **options: Any) -> list[dict[str, float]]:  # noqa: ANN401
    """Run FOZO on the bundled model and six corruptions at severity 3; a row of figures for each batch."""
    model = sample.MODELS["float32"]
    method, found = fozo.FOZO(fozo.load_engine(model, threads=1), sample.source(model), seed=seed, **options), []
    for batch in bundled_stream(batch_size, seed).batches():
        right = float((method(batch.images).argmax(axis=1) == batch.labels).mean())
        norm = float(np.sqrt(np.square(method.prompts).mean()) / token_rms(method.source))
        found.append({**method.metrics(), "right": 100 * right, "norm": norm})
    return found


Curves: TypeAlias = Mapping[str, tuple[Sequence[float], Sequence[float]]]
INKS = ("var(--good)", "var(--bad)", "var(--tie)", "var(--ink)", "var(--m4)")


def panel(
    left: float, top: float, title: str, curves: Curves, below: str, log: bool = False, ends: Sequence[object] = ()
) -> list[str]:
    """A small chart, 205 by 150 pixels inside, with its legend in the upper right corner."""
    scale = np.log10 if log else np.asarray
    ys = np.concatenate([scale(np.maximum(y, 1e-6)) for _, y in curves.values()])
    xs = np.concatenate([np.asarray(x, dtype=float) for x, _ in curves.values()])
    low, high = (float(ys.min()), float(ys.max())) if log else (min(0.0, float(ys.min())), float(ys.max()))
    across, up = Span(float(xs.min()), float(xs.max()), left, left + 205), Span(low, high, top + 150, top)
    parts = [text(left, top - 22, title, "bold"), text(left, top + 180, below, "soft small")]
    for mark in np.linspace(low, high, 4):
        label = f"{10**mark:.2g}" if log else f"{mark:.2g}"
        parts += [line(left, up(mark), left + 205, up(mark), "grid"), text(left - 4, up(mark) + 4, label, "end small")]
    for mark, end in zip((xs.min(), xs.max()), ends or (f"{xs.min():g}", f"{xs.max():g}"), strict=True):
        parts.append(text(across(mark), top + 165, str(end), "middle small"))
    for place, (name, (x, y)) in enumerate(curves.items()):
        pairs = zip(x, scale(np.maximum(y, 1e-6)), strict=True)
        points = " ".join(f"{across(a):.1f},{up(b):.1f}" for a, b in pairs)
        parts.append(f'<polyline class="curve" points="{points}" style="stroke: {INKS[place]}"/>')
        parts.append(text(left + 203, top + 12 + 14 * place, name, "end over", f"fill: {INKS[place]}"))
    return parts


def draw(target: Path, title: str, height: float, parts: Sequence[str]) -> None:
    with atomic_write(target) as stream:
        stream.write(svg(title, height, parts).encode())


def epsilon(target: Path, runs: int = 20, seeds: int = 6) -> None:
    """Theorems 1 and 2: Eq. 12 against fixed epsilons, where the optimum moves, and on the bundled model."""
    parts: list[str] = []
    for place, kind in enumerate(("quadratic", "skewed", "rippled")):
        curves = {}
        for name, values in SCHEDULES.items():
            schedule = Schedule(**values, rate=0.02)
            curve = np.mean([changing_optimum(schedule, seed, kind) for seed in range(runs)], axis=0)
            domains = curve.reshape(8, 60)[1:].mean(axis=0)
            print(f"| {kind} | {name} | {domains.mean():.3f} | {domains[:20].mean():.3f} | {domains[40:].mean():.3f} |")
            curves[name] = (list(range(60)), domains.tolist())
        title = {"quadratic": "noisy quadratic", "skewed": "skewed: e^a - a - 1", "rippled": "rippled quadratic"}[kind]
        parts += panel(50 + 268 * place, 45, title, curves, "steps; squared distance to the optimum", log=True)
    rows: dict[str, tuple[list[float], list[float]]] = {}
    for name, values in list(SCHEDULES.items())[:3]:
        low = 0.2 if name == "Eq. 12" else values["epsilon_min"]
        given: dict[str, Any] = {"schedule.epsilon": values["epsilon"], "schedule.epsilon_min": low, "passes": 8}
        found = [bundled(seed, **given) for seed in range(seeds)]
        right = np.array([[row["right"] for row in run] for run in found]).mean(axis=1)
        loss = np.array([[row["loss"] for row in run] for run in found]).mean(axis=0)
        half = 2.0 * right.std(ddof=1) / np.sqrt(seeds)
        print(f"| bundled model | {name} | top-1 {right.mean():.1f} +- {half:.1f} | loss {loss.mean():.1f} |")
        rows[name] = (list(range(len(loss))), loss.tolist())
    parts += panel(50, 270, "bundled model: loss", rows, "batches of 32; six corruptions of 192 images")
    notes = ("The optimum moves every 60 steps; mean of 20 runs, n = 4, 32 dimensions.",
             "Noise and ripples favour a large epsilon, a third derivative a small one.",
             "On the bundled model (8 passes, mean of 6 seeds) the three cannot be distinguished.")  # fmt: skip
    parts += [text(318, 300 + 18 * place, note, "small") for place, note in enumerate(notes)]
    draw(target, "Eq. 12 against fixed epsilons", 470, parts)


def widths(dims: Sequence[int], directions: int = 8) -> dict[int, dict[str, float]]:
    """The authors' loss on ViTs of random weights: the share of alignment in it, and the size of its gradients."""
    found = {}
    for dim in dims:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            vit = ViT(Architecture((64, 64), (16, 16), 3, dim, 12, max(1, dim // 64), 4 * dim, 100))
        engine = fozo.load_engine(vit, mean=0.5, std=0.5)
        noise = np.random.default_rng(0).uniform(-1, 1, (2 * BATCH, 3, 64, 64)).astype(np.float32)
        method = fozo.FOZO(engine, fozo.calibrate(engine, noise[:BATCH]), passes=2 * directions)
        weight, source = method.config.weight, method.source.features
        batch = engine.check(0.4 * noise[BATCH:] + 0.6)  # brighter and flatter than the clean images
        taps = engine.run(batch, fozo.Knobs(prompts=method.spsa.ask()), (Tap.FEATURES, Tap.LOGITS))
        moments = [Moments.of(features) for features in taps[Tap.FEATURES]]
        pairs = zip(moments, taps[Tap.LOGITS], strict=True)
        losses = np.array([method.objective(source, each, logits) for each, logits in pairs])
        shares = weight * np.array([method.objective.misalignment(source, each) for each in moments]) / losses
        gradients = (losses[0::2] - losses[1::2]) / (2 * method.config.schedule.epsilon)
        found[dim] = {"share": float(shares.mean()), "rms": float(np.sqrt(np.square(gradients).mean()))}
        print(f"| random ViT of width {dim} | {found[dim]['share']:.2f} | {found[dim]['rms']:.1f} |")
    return found


def curves(target: Path) -> None:
    """What prompts, epsilon and the parts of the loss do: the bundled model, batches of 8 and 64, and random ViTs."""
    norms, epsilons = {}, {}
    for size in (8, 64):
        for preset in ("official", "scaled"):
            rows = bundled(0, batch_size=size, preset=preset)
            first = rows[0]["epsilon"]  # without a jump, epsilon is below it from the second batch on
            jumps = sum(row["epsilon"] == first for row in rows[1:])
            print(f"| bundled, {preset}, batches of {size} | {rows[-1]['norm']:.1f} | {jumps} of {len(rows) - 1} |")
            images = [size * (place + 1) for place in range(len(rows))]
            norms[f"{preset}, {size}"] = (images, [row["norm"] for row in rows])
            if preset == "official":
                epsilons[f"batches of {size}"] = (images, [row["epsilon"] for row in rows])
    found = widths((48, 96, 192, 384))
    dims, below, widest = list(range(len(found))), "width of a ViT of random weights", (min(found), max(found))
    shares = {"alignment": (dims, [each["share"] for each in found.values()]),
              "entropy": (dims, [1 - each["share"] for each in found.values()])}  # fmt: skip
    sizes = {"RMS": (dims, [each["rms"] for each in found.values()])}
    parts = panel(50, 45, "prompts' RMS over the tokens'", norms, "images of the stream, bundled model", log=True)
    parts += panel(318, 45, "epsilon of the authors' program", epsilons, "images of the stream, bundled model")
    parts += panel(586, 45, "share of the loss", shares, below, ends=widest)
    parts += panel(50, 270, "projected gradients, RMS", sizes, below, log=True, ends=widest)
    notes = ("Official: prompts grow with every batch, and epsilon jumps back to 0.5 at most of them.",
             "Wide models: nearly all of the loss is alignment, a sum over features.",
             "Scaled: one prompt, in units of the tokens, within 1 of their RMS.")  # fmt: skip
    parts += [text(318, 300 + 18 * place, note, "small") for place, note in enumerate(notes)]
    draw(target, "What FOZO's prompts do", 470, parts)


def presets() -> None:
    """Top-1 of the bundled model, unadapted and under each preset; batches of 32."""
    plain = fozo.create("noadapt", fozo.load_engine(sample.MODELS["float32"], threads=1))
    right = [(plain(each.images).argmax(axis=1) == each.labels).mean() for each in bundled_stream(32, 0).batches()]
    print(f"| NoAdapt | {100 * np.mean(right):.1f} |")
    for preset in fozo.FOZO.PRESETS:
        for passes in (2, 8):
            rows = bundled(0, preset=preset, passes=passes)
            print(f"| {preset}, {passes} passes | {np.mean([row['right'] for row in rows]):.1f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("epsilon", "curves"):
        commands.add_parser(name).add_argument("target", type=Path)
    commands.add_parser("presets")
    given = parser.parse_args()
    with refusals("prompt_curves"):
        if given.command == "presets":
            presets()
        else:
            {"epsilon": epsilon, "curves": curves}[given.command](given.target)
