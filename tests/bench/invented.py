"""Folders as ``fozo bench`` leaves them, with invented numbers: the report can be tested without running a model."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from fozo.bench.environment import environment
from fozo.bench.folder import write_json
from fozo.bench.measures import measure
from fozo.bench.recipe import Recipe, load_recipe
from fozo.bench.records import BatchRecord, Cost, Log, read_records, score, to_line


def invent(
    out: Path, name: str | Recipe, *, batches: int = 6, seeds: tuple[int, ...] = (0,), severity: int = 5
) -> None:
    """Write finished runs of every row of a recipe."""
    recipe = load_recipe(name) if isinstance(name, str) else name
    write_json_in(out / recipe.name / "recipe.json", recipe.describe())
    model = "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"
    for number, experiment in enumerate(recipe.experiments(model, seeds=seeds, images=32 * batches, severity=severity)):
        experiment = replace(experiment, stream=replace(experiment.stream, data="imagenet")) if (
            experiment.stream.data == "imagenet-c"
        ) else experiment  # fmt: skip
        folder = out / recipe.name / experiment.folder
        folder.mkdir(parents=True)
        generator = np.random.default_rng(number)
        records, costs = Log(folder / "records.jsonl"), Log(folder / "costs.jsonl")
        passes = int(experiment.options.get("passes", 1))
        index = 0
        for segment in experiment.stream.order().segments():
            for batch in range(batches):
                labels = generator.integers(0, 10, 32)
                logits = generator.standard_normal((32, 10))
                # Better with more passes, and better as the domain goes on; every domain as hard as its name is long.
                logits[np.arange(32), labels] += 1 + passes**0.3 + 0.1 * batch - 0.05 * len(segment.name)
                record = BatchRecord(index=index, domain=segment.name, passes=passes, **score(logits, labels))
                records.append(to_line(record))
                costs.append(to_line(Cost(index, 0.1 * passes, 300 * 2**20 + passes * 2**20)))
                index += 1
        facts = {
            **experiment.describe(), "label": experiment.label, "threads": 1, "weights": "ab" * 32,
            "stream_fingerprint": f"{experiment.seed:012x}", "stream_facts": {}, "calibrated_on": "cd" * 8,
        }  # fmt: skip
        measures = asdict(measure(read_records(folder / "records.jsonl")))
        write_json(
            folder / "result.json",
            {**facts, "measures": measures, "parameters": 576, "passes": passes, "digest": "ef" * 32},
        )
        command = f"fozo bench {recipe.name} --model {model} --imagenet DIR"
        costs_made = {"seconds": 0.1 * passes * index, "memory": 300 * 2**20, "command": command}
        write_json(
            folder / "conditions.json",
            {**costs_made, "environment": environment(1, "cpu"), "finished": "2026-01-01 00:00 UTC"},
        )


def write_json_in(path: Path, facts: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, facts)
