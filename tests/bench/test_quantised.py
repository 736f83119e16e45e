"""Experiments on models that PTQ4ViT quantises first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fozo import quant
from fozo.bench.plan import Experiment, StreamPlan
from fozo.bench.resources import Paths, Resources
from fozo.bench.run import run_experiment
from fozo.bench.store import Store
from fozo.engines.load import LoadOptions
from fozo.engines.ptq4vit.scales import Scales

PLAN = StreamPlan(data="clean", kinds=("contrast",), severity=3, images=40, batch_size=20)


def test_an_experiment_on_a_quantised_model(
    weights: Path, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Experiment("Align", "align", {}, PLAN, model=str(weights), calibration=8)
    experiment = replace(plain, quantise="ptq4vit8")
    assert plain.hash != experiment.hash != replace(experiment, quantise="ptq4vit6").hash
    cache = tmp_path / "cache"
    first = run_experiment(experiment, Resources(paths, LoadOptions(), cache), Store(tmp_path / "one"))
    (kept,) = cache.glob("ptq4vit8-*.npz")
    scales = Scales.load(kept)
    assert scales.bits == 8 and scales.images == 20  # of 60, 40 are streamed
    assert first.conditions.weights.endswith(f"-ptq4vit8-{scales.digest}")
    monkeypatch.setattr(quant, "ptq4vit", None)  # a second search would fail
    again = run_experiment(experiment, Resources(paths, LoadOptions(), cache), Store(tmp_path / "two"))
    assert again.measures == first.measures and again.records() == first.records()
