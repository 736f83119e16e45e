"""Running: what is recorded, resuming to the byte, and refusing what would spoil a folder."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fozo
from fozo.bench import folder as folders
from fozo.bench import records
from fozo.bench.experiment import Experiment, StreamPlan, Value
from fozo.bench.folder import locked, read_json
from fozo.bench.records import BINS, BatchRecord, Log, decode, encode, read_costs, read_records, score, to_line
from fozo.bench.run import Progress, run_experiment
from fozo.bench.workshop import Places, Workshop
from fozo.core.objective import entropies
from fozo.engines.base import Floats, Tokens
from fozo.errors import FozoError
from fozo.methods.prompt_fozo import PromptFOZO

PLAN = StreamPlan(data="imagenet", kinds=("brightness", "contrast"), severity=3, images=20, batch_size=8)
OPTIONS: dict[str, dict[str, Value]] = {
    "foa": {"passes": 3},
    "zoa": {"smallest": 2},
    "fozo": {"preset": "official"},
}


class Stop(Exception):
    pass


def make(weights: Path, method: str = "fozo", **changes: object) -> Experiment:
    experiment = Experiment(str(weights), method, OPTIONS.get(method, {}), PLAN, calibration=16)
    return replace(experiment, **changes)  # type: ignore[arg-type]


def stop_at(images: int) -> Callable[[Progress], None]:
    def watch(progress: Progress) -> None:
        if progress.images >= images:
            raise Stop

    return watch


def timeless(folder: Path) -> dict[str, bytes]:
    """Every file but those of times."""
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name not in ("costs.jsonl", "conditions.json")}


@pytest.mark.parametrize("method", sorted(fozo.methods()))
def test_an_interrupted_run_ends_with_the_same_bytes(
    method: str, weights: Path, places: Places, tmp_path: Path
) -> None:
    experiment = make(weights, method)
    whole = run_experiment(experiment, Workshop(places, tmp_path / "shelf"), tmp_path / "whole", save_seconds=0)
    for images in (8, 24, 36):  # in the first domain, in the second, and at its last, short batch
        with pytest.raises(Stop):
            shop = Workshop(places, tmp_path / "shelf")
            run_experiment(experiment, shop, tmp_path / "broken", save_seconds=0, watch=stop_at(images))
    parts = run_experiment(experiment, Workshop(places, tmp_path / "shelf"), tmp_path / "broken", save_seconds=0)
    assert parts == whole
    assert timeless(tmp_path / "whole") == timeless(tmp_path / "broken")
    assert sorted(timeless(tmp_path / "whole")) == [".lock", "experiment.json", "records.jsonl", "result.json"]


def test_what_is_recorded(weights: Path, places: Places, tmp_path: Path) -> None:
    shop = Workshop(places, tmp_path / "shelf")
    experiment = make(weights, seed=3, label="FOZO")
    result = run_experiment(experiment, shop, tmp_path / "run", command="fozo bench x")
    found = read_records(tmp_path / "run" / "records.jsonl")
    assert [(r.index, r.domain, r.images) for r in found] == [
        (0, "brightness/3", 8), (1, "brightness/3", 8), (2, "brightness/3", 4),
        (3, "contrast/3", 8), (4, "contrast/3", 8), (5, "contrast/3", 4),
    ]  # fmt: skip
    engine, stream = shop.stream(experiment)
    method, calibrated = shop.method(experiment, engine, stream.source.images)
    for record, batch in zip(found, stream.batches(), strict=True):  # an independent pass over the same stream
        logits = method(batch.images)
        assert record.correct == int((logits.argmax(axis=1) == batch.labels).sum())
        assert record.entropy == float(entropies(logits).mean())
        assert isinstance(method, PromptFOZO) and method.last is not None
        last = method.last
        assert record.told == {"loss": last.loss, "epsilon": last.epsilon, "rate": last.rate} == method.telling()
        assert record.passes == 2 and sum(record.bin_images) == record.images
    assert result["weights"] == engine.spec.fingerprint and result["stream_fingerprint"] == stream.fingerprint
    assert result["calibrated_on"] == calibrated and result["parameters"] == 3 * 64 and result["seed"] == 3
    assert result["digest"] == hashlib.sha256((tmp_path / "run" / "records.jsonl").read_bytes()).hexdigest()
    costs = read_costs(tmp_path / "run" / "costs.jsonl")
    assert [cost.index for cost in costs] == list(range(6))
    assert all(cost.seconds > 0 and cost.memory > 1e6 for cost in costs)
    conditions = read_json(tmp_path / "run" / "conditions.json")
    assert conditions["command"] == "fozo bench x" and "numpy" in json.dumps(conditions["environment"])


def test_methods_start_afresh_where_the_scenario_says_so(weights: Path, places: Places, tmp_path: Path) -> None:
    plan = replace(PLAN, scenario="episodic", kinds=("brightness", "brightness"))
    run_experiment(make(weights, stream=plan), Workshop(places, tmp_path), tmp_path / "episodic")
    found = read_records(tmp_path / "episodic" / "records.jsonl")
    rates = [record.told["rate"] for record in found]
    assert rates[3] == rates[0] != rates[2]


def test_seeds_change_the_order_and_the_noise_but_not_the_images(weights: Path, places: Places, tmp_path: Path) -> None:
    shop = Workshop(places, tmp_path)
    streams = [shop.stream(make(weights, seed=seed))[1] for seed in (0, 1)]
    assert streams[0].fingerprint != streams[1].fingerprint
    assert streams[0].source.images.fingerprint == streams[1].source.images.fingerprint


def test_calibration_images_are_never_in_the_stream(weights: Path, places: Places, tmp_path: Path) -> None:
    shop = Workshop(places, tmp_path)
    for images in (1, 20, 58):
        experiment = make(weights, stream=replace(PLAN, images=images), calibration=50)
        test = shop.images(experiment.stream)
        clean = shop.calibration(experiment, test)
        assert len(clean) == min(50, 60 - images)
        assert not {s.path for s in clean.samples} & {s.path for s in test.samples}
    with pytest.raises(FozoError, match="all 60 clean images are in the stream"):
        shop.calibration(experiment, shop.images(replace(PLAN, images=None)))


def test_a_folder_begun_with_another_model_or_other_images_is_refused(
    weights: Path, places: Places, photos: Path, tmp_path: Path
) -> None:
    run_experiment(make(weights), Workshop(places, tmp_path / "a"), tmp_path / "run")
    fewer = shutil.copytree(photos, tmp_path / "fewer")
    (fewer / "class0" / "image0.png").unlink()
    with pytest.raises(FozoError, match="begun with other images"):
        run_experiment(make(weights), Workshop(Places(imagenet=str(fewer)), tmp_path / "b"), tmp_path / "run")
    with pytest.raises(FozoError, match="begun with other calibration images"):
        run_experiment(make(weights, calibration=17), Workshop(places, tmp_path / "a"), tmp_path / "run")


def test_an_unfinished_run_keeps_its_number_of_threads(weights: Path, places: Places, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        run_experiment(make(weights), Workshop(places, tmp_path), tmp_path / "run", threads=1, watch=stop_at(8))
    assert run_experiment(make(weights), Workshop(places, tmp_path), tmp_path / "run", threads=2)["threads"] == 1


def test_options_reach_the_method(weights: Path, places: Places, tmp_path: Path) -> None:
    shop = Workshop(places, tmp_path)
    experiment = make(weights, options={"schedule.decay": 0.25, "preset": "paper", "prompts": 2}, seed=7)
    engine, stream = shop.stream(experiment)
    method, _ = shop.method(experiment, engine, stream.source.images)
    assert isinstance(method, PromptFOZO)
    assert method.choices.schedule.decay == 0.25 and method.choices.schedule.rate == 0.08
    assert method.parameters == 2 * 64 and method.seed == 7
    tent, calibrated = shop.method(make(weights, "tent"), engine, stream.source.images)
    assert tent.options()["batch_size"] == 8 and calibrated is None
    for options, sentence in (
        ({"schedule.speed": 1}, "no option schedule.speed"),
        ({"preset": "mine"}, "no preset 'mine'"),
        ({"speed": 1}, "has no option .speed."),
    ):
        with pytest.raises(FozoError, match=sentence):
            shop.method(replace(experiment, options=options), engine, stream.source.images)
    with pytest.raises(FozoError, match="did you mean 'fozo'"):
        shop.method(make(weights, "fozzo"), engine, stream.source.images)


@pytest.mark.parametrize("method", sorted(fozo.methods()))
def test_every_method_tells_its_passes_and_what_it_descends(
    method: str, weights: Path, places: Places, tmp_path: Path
) -> None:
    options = {**OPTIONS.get(method, {}), **({"margin": 2.0} if method in ("eata", "sar", "deyo") else {})}
    options |= {"drop": -1.0} if method == "deyo" else {}  # so that every image of random weights is learned from
    result = run_experiment(make(weights, method, options=options), Workshop(places, tmp_path), tmp_path / "run")
    want = {"noadapt": 1, "lame": 1, "t3a": 1, "tent": 1, "eata": 1, "sar": 2, "deyo": 2, "foa": 3, "zoa": 2, "fozo": 2}
    lines = (tmp_path / "run" / "records.jsonl").read_bytes()
    assert result["passes"] == want[method] and lines.count(b'"passes":%d,' % want[method]) == 6
    losses = [record.told.get("loss") for record in read_records(tmp_path / "run" / "records.jsonl")]
    if method in ("noadapt", "lame", "t3a"):
        assert losses == [None] * 6 and b'"loss":null,"epsilon":null,"rate":null}' in lines
    else:
        told = [loss for loss in losses if loss is not None]
        assert np.isfinite(told).all() and len(set(told)) == len(told)
        assert len(told) == 6 or (method == "eata" and told)  # which leaves out images much like earlier ones


def test_passes_may_change_from_batch_to_batch(
    weights: Path, places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapt = PromptFOZO.adapt

    def frugal(self: PromptFOZO, tokens: Tokens) -> Floats:
        logits = adapt(self, tokens)
        self.spent = 2.0 if self.spsa.index % 2 else 1.25
        return logits

    with monkeypatch.context() as patch:
        patch.setattr(PromptFOZO, "adapt", frugal)
        result = run_experiment(make(weights), Workshop(places, tmp_path), tmp_path / "run")
    found = read_records(tmp_path / "run" / "records.jsonl")
    assert [record.passes for record in found] == [2, 1.25, 2, 1.25, 2, 1.25]
    spent = 2 * (8 + 4 + 8) + 1.25 * (8 + 8 + 4)
    assert result["passes"] == spent / 40 and isinstance(result["measures"], dict)
    assert result["measures"]["passes"] == spent


def test_a_method_may_not_tell_what_records_have_already() -> None:
    record = BatchRecord(0, "fog/5", passes=1.0, told={"domain": 1.0}, **score(np.eye(3), np.arange(3)))
    with pytest.raises(FozoError, match="tells of 'domain'"):
        to_line(record)


def test_missing_places_and_models_are_named(weights: Path, tmp_path: Path) -> None:
    shop = Workshop(Places(), tmp_path)
    with pytest.raises(FozoError, match="give --imagenet-r DIR"):
        shop.images(StreamPlan(data="imagenet-r", kinds=("clean",)))
    with pytest.raises(FozoError, match="name the full tag"):
        shop.engine("timm:vit_base_patch16_224")
    with pytest.raises(FozoError, match="nowhere"):
        Workshop(Places(imagenet=str(tmp_path / "nowhere")), tmp_path).images(PLAN)


def test_a_timm_model_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import timm

    original = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: original(name, pretrained=not pretrained))
    engine = Workshop(Places(), tmp_path).engine("timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    assert engine.spec.depth == 12 and engine.spec.mean == (0.5, 0.5, 0.5)


def test_stored_corruptions(weights: Path, photos: Path, places: Places, tmp_path: Path) -> None:
    """An ImageNet-C tree is streamed as it is; clean images given in its place are refused."""
    for kind in ("brightness", "contrast"):
        shutil.copytree(photos, tmp_path / "c" / kind / "3")
    plan = replace(PLAN, data="imagenet-c")
    shop = Workshop(replace(places, imagenet_c=str(tmp_path / "c")), tmp_path)
    assert shop.images(plan).corrupted and len(shop.images(plan)) == 20
    result = run_experiment(make(weights, stream=plan), shop, tmp_path / "run")
    assert "stored" in json.dumps(result["stream_facts"])
    with pytest.raises(FozoError, match="holds clean images"):
        Workshop(replace(places, imagenet_c=str(photos)), tmp_path).images(plan)


# --- files ---------------------------------------------------------------------------------------------------


def test_lines_are_checked(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    for number in range(3):
        log.append({"number": number})
    log.close()
    whole = (tmp_path / "log").read_bytes()
    for cut in range(len(whole)):  # killed after any byte: all whole lines stay, the torn one goes
        (tmp_path / "cut").write_bytes(whole[:cut])
        assert len(Log(tmp_path / "cut")) == whole[:cut].count(b"\n")
        assert (tmp_path / "cut").read_bytes() == whole[: whole[:cut].rfind(b"\n") + 1]
    damaged = bytearray(whole)
    damaged[12] ^= 1
    (tmp_path / "bad").write_bytes(damaged)
    with pytest.raises(FozoError, match="damaged in line 1"):
        Log(tmp_path / "bad")
    assert decode(encode({"a": [1, 2.5, None]})) == {"a": [1, 2.5, None]}


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path / "log")
    log.append({"a": 1})
    before = (tmp_path / "log").read_bytes()
    file = log._file

    class Full:
        def write(self, data: bytes) -> int:
            return file.write(data[:5])  # what a nearly full disk does: part of it

        def fileno(self) -> int:
            return file.fileno()

    monkeypatch.setattr(log, "_file", Full())
    with pytest.raises(FozoError, match="no space left"):
        log.append({"b": 2})
    assert (tmp_path / "log").read_bytes() == before and len(log) == 1
    monkeypatch.undo()
    log.append({"b": 2})
    assert len(Log(tmp_path / "log")) == 2


def test_a_full_disk_while_saving_the_state_is_one_sentence_and_loses_nothing(
    weights: Path, places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Workshop(places, tmp_path / "shelf")
    whole = run_experiment(make(weights), shop, tmp_path / "whole")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(FozoError, match="No space left on device"):
            run_experiment(make(weights), shop, tmp_path / "run", save_seconds=0)
    assert not list((tmp_path / "run").glob("*.part"))
    assert run_experiment(make(weights), shop, tmp_path / "run") == whole


def test_one_process_at_a_time(tmp_path: Path) -> None:
    refused = pytest.raises(FozoError, match="another process is working in")
    with locked(tmp_path / "run"), refused, locked(tmp_path / "run"):
        pass
    with locked(tmp_path / "run"):
        pass


def test_unreadable_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.json").write_text("[]")
    for name in ("a.json", "b.json", "c.json"):
        with pytest.raises(FozoError, match=name):
            read_json(tmp_path / name)
    assert folders.LOCK == ".lock"


def test_scores() -> None:
    logits = np.log(np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]], dtype=np.float64))
    facts = score(logits, np.array([0, 1]))
    assert (facts["images"], facts["correct"], facts["correct5"]) == (2, 1, 2)
    assert facts["bin_images"][int(0.7 * BINS)] == 1 and facts["bin_correct"][int(0.7 * BINS)] == 1
    assert facts["bin_images"][9] == 1 and facts["bin_correct"][9] == 0
    assert sum(facts["bin_confidence"]) == pytest.approx(1.3)
    ten = np.arange(10.0)[None]
    assert [score(ten, np.array([label]))["correct5"] for label in (9, 5, 4)] == [1, 1, 0]
    assert score(np.zeros((1, 10)), np.array([0]))["correct5"] == 0
    assert records.BINS == 15
