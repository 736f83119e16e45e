"""Folders as ``fozo bench`` leaves them, with invented numbers: the report can be tested without running a model."""

from dataclasses import asdict
from pathlib import Path

import numpy as np

from fozo.bench.measures import BatchRecord, Cost, measure, score
from fozo.bench.plan import Experiment, Recipe, Setting, load_recipe
from fozo.bench.store import EXPERIMENT, Conditions, Store, environment
from fozo.io import Log, write_json

MODEL = "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"


def invent(
    out: Path,
    name: str | Recipe,
    *,
    batches: int = 6,
    seeds: tuple[int, ...] = (0,),
    severity: int | None = 5,
    calibration: int | None = None,
) -> Store:
    """Write finished runs of every row of a recipe, as a command asks for them."""
    recipe = load_recipe(name) if isinstance(name, str) else name
    store = Store(out / recipe.name)
    store.folder.mkdir(parents=True, exist_ok=True)
    setting = Setting(MODEL, 32 * batches, severity, calibration, stored=False)
    store.write(recipe)
    for number, experiment in enumerate(recipe.experiments(setting, seeds=seeds)):
        finish(store, experiment, number, batches)
    return store


def finish(store: Store, experiment: Experiment, number: int = 0, batches: int = 6) -> None:
    """Write one finished run; ``number`` is the seed of its numbers."""
    generator = np.random.default_rng(number)
    passes = experiment.options.get("passes", 1)
    passes = passes if isinstance(passes, int) else 1.05
    with store.open(experiment) as folder:
        logs = Log(folder.path / "records.jsonl"), Log(folder.path / "costs.jsonl")
        records: list[BatchRecord] = []
        for segment in experiment.stream.order.segments():
            for batch in range(batches):
                labels = generator.integers(0, 10, 32)
                logits = generator.standard_normal((32, 10))
                # Better with more passes, and better as the domain goes on; every domain as hard as its name is long.
                logits[np.arange(32), labels] += 1 + passes**0.3 + 0.1 * batch - 0.05 * len(segment.name)
                samples = np.arange(32, dtype=np.int64) + 32 * batch
                records.append(
                    score(logits, labels, index=len(records), domain=segment.name, passes=passes, samples=samples)
                )
                cost = Cost(records[-1].index, 0.1 * passes, 300 * 2**20 + int(passes) * 2**20)
                logs[0].append(records[-1].line())
                logs[1].append(asdict(cost))
        for log in logs:
            log.close()
        conditions = Conditions(
            weights="ab" * 32,
            stream_fingerprint=f"{experiment.seed:012x}",
            calibrated_on="cd" * 8,
            parameters=576,
            environment=environment(1, "cpu"),
            seconds=0.1 * passes * len(records),
            memory=300 * 2**20,
            command=f"fozo bench {store.folder.name} --model {MODEL} --data imagenet=DIR",
            finished="2026-01-01 00:00 UTC",
        )
        header = {
            **experiment.identity(), "label": experiment.name, "threads": 1, "weights": conditions.weights,
            "stream_fingerprint": conditions.stream_fingerprint, "calibrated_on": conditions.calibrated_on,
        }  # fmt: skip
        write_json(folder.path / EXPERIMENT, header)
        folder.finish(header, measure(records), conditions, "ef" * 32)
