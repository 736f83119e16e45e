"""Running: what is recorded, resuming to the byte, and refusing what would spoil a folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import fozo
from fozo import quant
from fozo.bench import resources as resources_module
from fozo.bench.plan import Experiment, StreamPlan
from fozo.bench.resources import Paths, Resources, Show
from fozo.bench.run import Checkpoints, run_experiment
from fozo.bench.store import RESULT, Run, Store
from fozo.core.objective import entropies
from fozo.data import streams
from fozo.data.corruptions import corrupt as corrupt_once
from fozo.data.streams import Stream
from fozo.engines.load import LoadOptions
from fozo.engines.ptq4vit import Scales
from fozo.errors import FozoError
from fozo.io import read_json
from fozo.methods import registry
from fozo.methods.common import info
from fozo.methods.common.measured import MEASURED, add_measurement
from fozo.methods.method import Nothing, Result
from fozo.types import Batch, Images, Value
from tests.bench.test_executors import timeless

PLAN = StreamPlan(data="clean", kinds=("brightness", "contrast"), severity=3, images=20, batch_size=8)
OPTIONS: dict[str, dict[str, Value]] = {
    "foa": {"passes": 3}, "zoa": {"min_batch": 2}, "cazo": {"passes": 3, "blocks": "1"}, "eata": {"e_margin": 2.0},
    "sar": {"e_margin": 2.0}, "deyo": {"e_margin": 2.0, "plpd_threshold": -1.0},
}  # fmt: skip
"""So that every image is learned from, in few passes."""


class Stop(Exception):
    pass


def make(weights: Path, method: str = "fozo", **changes: object) -> Experiment:
    experiment = Experiment("row", method, OPTIONS.get(method, {}), PLAN, model=str(weights), calibration=16)
    return replace(experiment, **changes)  # type: ignore[arg-type]


def opened(paths: Paths, cache: Path) -> Resources:
    return Resources(paths, LoadOptions(), cache)


def stop_at(images: int) -> Show:
    def show(doing: str, done: int, total: int) -> None:
        if doing.startswith("row seed") and done >= images:
            raise Stop

    return show


def test_kept_pixels_are_those_that_would_be_made_again(
    weights: Path, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, cached = make(weights, "noadapt"), replace(paths, pixels=str(tmp_path / "pixels"))

    def run(name: str, where: Paths) -> Run:
        return run_experiment(experiment, opened(where, tmp_path / "cache"), Store(tmp_path / name))

    whole = run("whole", paths)
    assert timeless(run("cached", cached).folder) == timeless(whole.folder)
    files = [path for path in (tmp_path / "pixels").rglob("*") if path.is_file()]
    assert len(files) == whole.measures.images
    files[0].write_bytes(files[0].read_bytes()[:-1])  # as a full disk leaves it
    made: list[str] = []

    def corrupt(*args: Any, **options: Any) -> Any:
        made.append(options["image_id"])
        return corrupt_once(*args, **options)

    monkeypatch.setattr(streams, "corrupt", corrupt)
    assert timeless(run("again", cached).folder) == timeless(whole.folder) and len(made) == 1


@pytest.mark.parametrize("method", sorted(fozo.list_methods()))
def test_an_interrupted_run_ends_with_the_same_bytes_and_says_what_it_did(
    method: str, weights: Path, paths: Paths, tmp_path: Path
) -> None:
    experiment = make(weights, method)
    cache, store = tmp_path / "cache", Store(tmp_path / "broken")
    whole = run_experiment(experiment, opened(paths, cache), Store(tmp_path / "whole"), save_seconds=0)
    for images in (8, 24, 36):  # in the first domain, in the second, and at its last, short batch
        with pytest.raises(Stop):
            run_experiment(experiment, opened(paths, cache), store, save_seconds=0, show=stop_at(images))
    parts = run_experiment(experiment, opened(paths, cache), store, save_seconds=0)
    assert parts.measures == whole.measures and timeless(parts.folder) == timeless(whole.folder)
    assert sorted(timeless(whole.folder)) == [".lock", "experiment.json", "records.jsonl", "result.json"]

    want = {"sar": 2, "deyo": 2, "foa": 3, "zoa": 2, "fozo": 2, "scaled-fozo": 2, "pea": 2, "cazo": 3}.get(method, 1)
    lines = (whole.folder / "records.jsonl").read_bytes()
    assert whole.measures.passes_per_image == want and lines.count(b'"passes":%d,' % want) == 6
    losses = [record.metrics.get("loss") for record in whole.records()]
    if method in ("gain", "pea"):
        assert losses == [None] * 6 and {"gain": b'"strength":', "pea": b'"mean_entropy":'}[method] in lines
    elif method in ("noadapt", "lame", "t3a", "neo", "clahe", "autolevels", "histeq", "greyworld"):
        assert losses == [None] * 6 and b'"loss":null,"epsilon":null,"rate":null,"crc32":' in lines
    elif method in ("align", "equalise"):
        assert b'"loss":null,"epsilon":null,"rate":null,"shift":' in lines and b'"effective_sample_size":' in lines
    else:
        reported = [loss for loss in losses if loss is not None]
        assert np.isfinite(reported).all() and len(set(reported)) == len(reported)
        assert len(reported) == 6 or (method == "eata" and reported)  # which leaves out images much like earlier ones


def test_what_is_recorded(weights: Path, paths: Paths, tmp_path: Path) -> None:
    resources = opened(paths, tmp_path / "cache")
    experiment = make(weights, seed=3, label="FOZO")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / ".statistics.safetensors.0123abcd.fozo.part").touch()  # of a command that was killed
    run = run_experiment(experiment, resources, Store(tmp_path / "runs"), command="fozo bench x")
    assert not list(tmp_path.rglob("*.part"))
    found = run.records()
    assert [(r.index, r.domain, r.images) for r in found] == [
        (0, "brightness/3", 8), (1, "brightness/3", 8), (2, "brightness/3", 4),
        (3, "contrast/3", 8), (4, "contrast/3", 8), (5, "contrast/3", 4),
    ]  # fmt: skip
    images = resources.images(experiment.stream)
    engine = resources.engine(experiment.model)
    stream = Stream(images, engine.spec, PLAN.order, batch_size=8, seed=3)
    method = resources.method(experiment, engine, images)
    for record, batch in zip(found, stream.batches(), strict=True):  # an independent pass over the same stream
        logits = method(batch.images)
        right = logits.argmax(axis=1) == batch.labels
        assert record.correct == int(right.sum()) and record.right == tuple(sorted(batch.samples[right].tolist()))
        assert record.entropy == float(entropies(logits).mean())
        assert record.metrics == method.metrics() and list(record.metrics) == ["loss", "epsilon", "rate"]
        assert record.passes == 2 and sum(record.bin_images) == record.images
    result = read_json(run.folder / RESULT)
    assert result["weights"] == run.conditions.weights == engine.spec.fingerprint
    assert result["stream_fingerprint"] == run.conditions.stream_fingerprint == stream.fingerprint
    assert result["calibrated_on"] == resources.clean(16, images).fingerprint
    assert result["parameters"] == run.conditions.parameters == 3 * 64 and result["seed"] == 3
    assert result["digest"] == hashlib.sha256((run.folder / "records.jsonl").read_bytes()).hexdigest()
    costs = run.costs()
    assert [cost.index for cost in costs] == list(range(6))
    assert all(cost.seconds > 0 and cost.memory > 1e6 for cost in costs)
    conditions = read_json(run.folder / "conditions.json")
    assert conditions["command"] == "fozo bench x" and "numpy" in json.dumps(conditions["environment"])


def test_a_finished_run_is_found_before_a_model_is_loaded_or_anything_measured(
    weights: Path, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "runs")
    first = run_experiment(make(weights), opened(paths, tmp_path / "cache"), store)
    for name in ("load_engine", "calibrate", "create"):
        monkeypatch.setattr(resources_module, name, None)  # a call would fail
    (first.folder / "state-000003.safetensors").touch()  # killed between its result and the removal of its last state
    assert run_experiment(make(weights), opened(paths, tmp_path / "other"), store) == first
    assert not (tmp_path / "other").exists() and not list(first.folder.glob("state-*"))


def test_methods_start_afresh_where_the_scenario_says_so(weights: Path, paths: Paths, tmp_path: Path) -> None:
    plan = replace(PLAN, scenario="episodic", kinds=("brightness", "brightness"))
    run = run_experiment(make(weights, stream=plan), opened(paths, tmp_path), Store(tmp_path / "runs"))
    rates = [record.metrics["rate"] for record in run.records()]
    assert rates[3] == rates[0] != rates[2]


def test_seeds_change_the_order_and_the_noise_but_not_the_images(weights: Path, paths: Paths, tmp_path: Path) -> None:
    resources = opened(paths, tmp_path)
    plain = [
        run_experiment(make(weights, "noadapt", seed=seed), resources, Store(tmp_path / "runs")) for seed in (0, 1)
    ]
    assert plain[0].conditions.stream_fingerprint != plain[1].conditions.stream_fingerprint
    assert plain[0].measures.domains == plain[1].measures.domains  # of the same images, in another order
    images, engine = resources.images(PLAN), resources.engine(str(weights))
    methods = [resources.method(make(weights, seed=seed), engine, images) for seed in (0, 1)]
    batch = next(Stream(images, engine.spec, PLAN.order, batch_size=8).batches()).images
    assert (methods[0](batch) != methods[1](batch)).any()


def test_calibration_images_are_never_in_the_stream(paths: Paths, tmp_path: Path) -> None:
    resources = opened(paths, tmp_path)
    for images in (1, 20, 58):
        streamed = resources.images(replace(PLAN, images=images))
        clean = resources.clean(50, streamed)
        assert len(clean) == min(50, 60 - images)
        assert not {s.path for s in clean.samples} & {s.path for s in streamed.samples}
    with pytest.raises(FozoError, match="all 60 clean images are in the stream"):
        resources.clean(50, resources.images(replace(PLAN, images=None)))


@pytest.mark.parametrize("finished", [True, False])
def test_a_folder_begun_with_another_model_or_other_images_is_refused(
    finished: bool, weights: Path, paths: Paths, photos: Path, tmp_path: Path
) -> None:
    own = Path(shutil.copy(weights, tmp_path / weights.name))
    store, cache, experiment = Store(tmp_path / "runs"), tmp_path / "cache", make(own)
    try:
        run_experiment(experiment, opened(paths, cache), store, show=stop_at(100 if finished else 8))
    except Stop:
        assert not finished
    fewer = shutil.copytree(photos, tmp_path / "fewer")
    (fewer / "class0" / "image0.png").unlink()
    with pytest.raises(FozoError, match=r"begun with other (calibration )?images; choose another --out"):
        run_experiment(experiment, opened(Paths({"imagenet": str(fewer)}), tmp_path / "b"), store)
    with pytest.raises(FozoError, match="begun with other model weights or loading options"):
        run_experiment(experiment, Resources(paths, LoadOptions(mean=0.4), cache), store)
    own.write_bytes(own.read_bytes() + b" ")
    with pytest.raises(FozoError, match="begun with other model weights"):
        run_experiment(experiment, opened(paths, cache), store)


def test_an_unfinished_run_keeps_its_number_of_threads(
    weights: Path, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's are set for the process, an exported model's when it is loaded."""
    exported = tmp_path / "vit.onnx"
    fozo.export(fozo.load_engine(weights), exported)
    used = []

    def load(model: str, options: LoadOptions) -> fozo.Engine:
        used.append(options.threads)
        return fozo.load_engine(model, options)

    monkeypatch.setattr(resources_module, "load_engine", load)
    store = Store(tmp_path / "runs")
    for model in (weights, exported):
        with pytest.raises(Stop):
            run_experiment(make(model), opened(paths, tmp_path), store, threads=1, show=stop_at(8))
        run = run_experiment(make(model), opened(paths, tmp_path), store, threads=2)
        assert run.conditions.environment.threads == 1 == torch.get_num_threads()
    assert used == [None, None, 1, 1]


def test_states_are_found_whatever_the_name_of_their_run(tmp_path: Path) -> None:
    """A star in the name of its output broke ``fozo adapt``."""
    states = Checkpoints(tmp_path, ".a*[b].csv.state-", seconds=0)
    method = Mock(save=Path.touch)
    (tmp_path / ".a*[b].csv.state-x.npz").touch()
    for done in (3, 12):
        states.save(method, done)
    assert [states.restore(method, most) for most in (20, 11)] == [12, 0]
    states.clear()
    assert [path.name for path in tmp_path.iterdir()] == [".a*[b].csv.state-x.npz"]


def test_options_reach_the_method(weights: Path, paths: Paths, tmp_path: Path) -> None:
    resources = opened(paths, tmp_path)
    options = {"schedule.decay": 0.25, "preset": "paper", "prompts": 2}
    experiment = make(weights, options=options, seed=7)
    images, engine = resources.images(PLAN), resources.engine(str(weights))
    method = resources.method(experiment, engine, images)
    assert isinstance(method, fozo.FOZO)
    assert method.config.schedule.decay == 0.25 and method.config.schedule.rate == 0.08
    assert method.parameter_count == 2 * 64 and method.seed == 7
    tent = resources.method(make(weights, "tent"), engine, images)
    assert tent.config.batch_size == 8
    with pytest.raises(FozoError, match="did you mean 'fozo'"):
        resources.inputs(make(weights, "fozzo"), images)


class Gray:
    """What a method of another package needs measured: the mean of clean images."""

    def __init__(self, value: float) -> None:
        self.value = value

    def save(self, path: str | os.PathLike[str]) -> None:
        Path(path).write_text(str(self.value))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Gray:
        return cls(float(Path(path).read_text()))


def test_a_method_of_another_package_gets_what_it_needs_measured(
    weights: Path, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    measured: list[float] = []

    def measure(engine: fozo.Engine, batches: Iterable[Images]) -> Gray:
        measured.append(float(np.mean([np.mean(np.asarray(batch)) for batch in batches])))
        return Gray(measured[-1])

    add_measurement("gray", "the mean of clean images", measure, Gray.load)
    try:
        registry.register("gray", passes="1", adapts="-", paper="-", needs={"gray"})(type("G", (fozo.NoAdapt,), {}))
        given: list[Any] = []
        monkeypatch.setattr(resources_module, "create", lambda *args, **options: given.append(options["gray"]))
        experiment = make(weights, "gray")
        for _ in range(2):
            resources = opened(paths, tmp_path)
            images = resources.images(PLAN)
            assert resources.inputs(experiment, images)["calibrated_on"] == resources.clean(16, images).fingerprint
            resources.method(experiment, resources.engine(str(weights)), images)
        assert len(measured) == 1 and [gray.value for gray in given] == measured * 2  # kept, and read again
        assert "gray" not in fozo.list_methods(without={"gray"})
    finally:
        del info.NEEDS["gray"], MEASURED["gray"]


def test_passes_may_change_from_batch_to_batch(
    weights: Path, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = fozo.NoAdapt.step
    passes = iter([2.0, 1.25] * 3)

    def frugal(self: fozo.NoAdapt, state: Nothing, batch: Batch) -> Result[Nothing]:
        return replace(step(self, state, batch), passes=next(passes))

    monkeypatch.setattr(fozo.NoAdapt, "step", frugal)
    run = run_experiment(make(weights, "noadapt"), opened(paths, tmp_path), Store(tmp_path / "runs"))
    assert [record.passes for record in run.records()] == [2, 1.25, 2, 1.25, 2, 1.25]
    spent = 2 * (8 + 4 + 8) + 1.25 * (8 + 8 + 4)
    assert run.measures.passes == spent and read_json(run.folder / RESULT)["passes"] == spent / 40


def test_stored_corruptions(weights: Path, photos: Path, paths: Paths, tmp_path: Path) -> None:
    """An ImageNet-C tree is streamed as it is; clean images given in its place are refused."""
    for kind in ("brightness", "contrast"):
        shutil.copytree(photos, tmp_path / "c" / kind / "3")
    plan = replace(PLAN, data="imagenet-c")
    resources = opened(Paths({"imagenet": str(photos), "imagenet-c": str(tmp_path / "c")}), tmp_path)
    assert resources.images(plan).corrupted and len(resources.images(plan)) == 20
    run = run_experiment(make(weights, stream=plan), resources, Store(tmp_path / "runs"))
    assert "stored" in json.dumps(read_json(run.folder / RESULT)["stream_facts"])
    with pytest.raises(FozoError, match="holds clean images"):
        opened(Paths({"imagenet-c": str(photos)}), tmp_path).images(plan)


def test_an_experiment_on_a_quantised_model(
    weights: Path, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = StreamPlan(data="clean", kinds=("contrast",), severity=3, images=40, batch_size=20)
    plain = Experiment("Align", "align", {}, plan, model=str(weights), calibration=8)
    experiment = replace(plain, quantise="ptq4vit8")
    assert plain.hash != experiment.hash != replace(experiment, quantise="ptq4vit6").hash
    cache = tmp_path / "cache"
    first = run_experiment(experiment, opened(paths, cache), Store(tmp_path / "one"))
    (file,) = cache.glob("ptq4vit8-*.safetensors")
    scales = Scales.load(file)
    assert scales.bits == 8 and scales.images == 20  # of 60, 40 are streamed
    assert first.conditions.weights.endswith(f"-ptq4vit8-{scales.digest}")
    monkeypatch.setattr(quant, "ptq4vit", None)  # a second search would fail
    again = run_experiment(experiment, opened(paths, cache), Store(tmp_path / "two"))
    assert again.measures == first.measures and again.records() == first.records()
