"""Train a small ViT on real handwritten digits, let the camera go bad, and adapt with forward passes only.

    python examples/digits.py

Real data (scikit-learn's copy of the UCI digits, 1797 scans), about a minute on two cores, nothing downloaded. The
steps are those of any deployment: train or load a model, collect source statistics once on clean images, then call
the adapter instead of the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits

import fozo
from fozo.engines.vit import Architecture, ViT

Images = npt.NDArray[np.float32]

SHAPE = Architecture(
    image_size=(16, 16), patch_size=(4, 4), channels=1, dim=48, depth=6, heads=4, hidden=96, classes=10
)
BATCH = 32


def digits() -> tuple[Images, npt.NDArray[np.int64]]:
    """The scans at 16 x 16 pixels in [0, 1], shuffled."""
    data = load_digits()
    pixels = np.repeat(np.repeat(data.images / 16, 2, axis=1), 2, axis=2).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(pixels))
    return pixels[order, None], data.target[order].astype(np.int64)


def train(images: Images, labels: npt.NDArray[np.int64], epochs: int = 40) -> ViT:
    """Train the small ViT; the caller's random state is left alone."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        vit = ViT(SHAPE)
        optimizer = torch.optim.AdamW(vit.parameters(), lr=2e-3, weight_decay=0.05)
        steps = epochs * -(-len(images) // BATCH)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
        x, y = torch.from_numpy(normalise(images)), torch.from_numpy(labels)
        for _ in track(range(epochs), "training a small ViT"):
            for part in torch.split(torch.randperm(len(x)), BATCH):
                down, across = (int(n) for n in torch.randint(-1, 2, (2,)))
                shifted = torch.roll(x[part], (down, across), dims=(2, 3))
                loss = torch.nn.functional.cross_entropy(vit(shifted), y[part], label_smoothing=0.1)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                schedule.step()
    return vit.eval()


def normalise(images: Images) -> Images:
    """Pixels in [0, 1] to the model's input."""
    return ((images - 0.5) / 0.5).astype(np.float32)


def domains() -> dict[str, Callable[[Images], Images]]:
    """What happens to the camera."""
    rng = np.random.default_rng(1)

    def blur(x: Images) -> Images:
        padded = np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="edge")
        blurred: Images = np.mean([padded[:, :, i : i + 16, j : j + 16] for i in range(5) for j in range(5)], axis=0)
        return blurred

    return {
        "clean": lambda x: x,
        "contrast": lambda x: 0.25 * x + 0.1,
        "fog": lambda x: 0.5 * x + 0.5,
        "noise": lambda x: (x + 0.4 * rng.standard_normal(x.shape)).clip(0, 1),
        "blur": blur,
    }


def main() -> None:
    """Train, calibrate, stream, report."""
    console = Console()
    images, labels = digits()
    model = train(images[:1000], labels[:1000])
    engine = fozo.load_engine(model)
    source = fozo.SourceStatistics.collect(engine, [normalise(images[:500])])
    test, truth = images[1000:], labels[1000:]

    shifted = {name: normalise(change(test)) for name, change in domains().items()}
    methods = {
        ("NoAdapt", 1): fozo.NoAdapt(engine),
        ("FOZO paper", 2): fozo.FOZO(engine, source, passes=2, preset="paper"),
        ("FOZO official", 2): fozo.FOZO(engine, source, passes=2, preset="official"),
        ("FOZO official", 8): fozo.FOZO(engine, source, passes=8, preset="official"),
    }
    table = Table(title="Top-1 accuracy (%), one continual stream")
    table.add_column("method", no_wrap=True)
    for column in ("passes", *shifted, "mean", "ms"):
        table.add_column(column, justify="right")
    means: dict[tuple[str, int], float] = {}
    for (name, passes), method in track(methods.items(), "streaming"):
        start = time.perf_counter()
        accuracies = []
        for domain in shifted.values():
            predictions = [method(domain[i : i + BATCH]).argmax(axis=1) for i in range(0, len(domain), BATCH)]
            accuracies.append(100 * float((np.concatenate(predictions) == truth).mean()))
        seconds = time.perf_counter() - start
        means[name, passes] = float(np.mean(accuracies))
        cells = [f"{accuracy:.1f}" for accuracy in (*accuracies, means[name, passes])]
        table.add_row(name, str(passes), *cells, f"{1000 * seconds / (len(test) * len(shifted)):.2f}")
    console.print(table)
    name, passes = max(means, key=lambda key: means[key])
    console.print(
        f"{len(test)} images a domain, batches of {BATCH}, seed 0; ms is for an image. "
        f"Best on average here: [bold]{name}[/bold] with {passes} passes an image."
    )


if __name__ == "__main__":
    main()
