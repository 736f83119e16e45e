"""Streams of narrow content: which images they have, and what is calibrated on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file

from fozo.bench.plan import Experiment, StreamPlan
from fozo.bench.resources import Paths, Resources
from fozo.bench.run import run_experiment
from fozo.bench.store import Store
from fozo.data.groups import CLASSES, HELD_OUT, class_indices
from fozo.engines.load import LoadOptions
from tests.bench.conftest import TINY
from tests.helpers import random_vit
from tests.refusals import refuses

PLAN = StreamPlan(data="clean", scenario="episodic", kinds=("clean", "contrast"), images=60, batch_size=16)
FIRSTS = {f"{number:06d}" for number in range(CLASSES)}


def write_set(path: Path, labels: np.ndarray, classes: int = CLASSES) -> Paths:
    """Write tiny images, the shade of each drawn at random."""
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 8, 8), dtype=np.uint8)
    np.savez(path, images=images, labels=labels, classes=[f"n{number:08d}" for number in range(classes)])
    return Paths({"imagenet": str(path)})


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory) -> Resources:
    """Three images of each of 1000 classes; the first 1000 are the first of each class."""
    folder = tmp_path_factory.mktemp("narrow")
    return Resources(write_set(folder / "set.npz", np.tile(np.arange(CLASSES), 3)), LoadOptions(), folder / "cache")


@pytest.mark.parametrize(("group", "count"), [("dogs", 60), ("arachnids", 22), ("held_out", 60)])
def test_only_the_groups_classes_are_streamed_under_their_own_labels(
    group: str, count: int, resources: Resources
) -> None:
    images = resources.images(replace(PLAN, classes=group))
    assert len(images) == count and len(images.classes) == CLASSES and images.mask is None
    assert {sample.label for sample in images.samples} <= set(class_indices(group))
    assert all(sample.label == int(sample.path) % CLASSES for sample in images.samples)
    assert not {sample.path for sample in images.samples} & FIRSTS
    whole = resources.images(replace(PLAN, classes=group, images=None))
    assert len(whole) == 2 * len(class_indices(group))


def test_all_groups_are_calibrated_on_the_same_images_of_all_classes(resources: Resources) -> None:
    streams = [resources.images(replace(PLAN, classes=group)) for group in HELD_OUT]
    for count in (32, CLASSES, 5000):
        sets = [resources.clean(count, streamed, "dogs") for streamed in streams]
        assert len({clean.fingerprint for clean in sets}) == 1 and len(sets[0]) == min(count, CLASSES)
        assert {sample.path for sample in sets[0].samples} <= FIRSTS
    whole = resources.images(replace(PLAN, images=100))  # a plan without classes is calibrated on any image but its own
    assert len(resources.clean(5000, whole)) == 3 * CLASSES - 100


def test_runs_of_two_groups_share_one_file_of_statistics(resources: Resources, tmp_path: Path) -> None:
    weights = tmp_path / "vit_tiny_patch8_32.augreg_random.safetensors"
    save_file(random_vit(replace(TINY, classes=CLASSES), seed=5).state_dict(), weights)
    own = replace(resources, cache_dir=tmp_path / "cache")
    found = []
    for group in ("dogs", "food"):
        plan = replace(PLAN, classes=group, images=20)
        experiment = Experiment("Align", "align", {}, plan, group, model=str(weights), calibration=64)
        found.append(run_experiment(experiment, own, Store(tmp_path / "runs")))
    assert len({run.conditions.calibrated_on for run in found}) == 1
    assert len({run.conditions.stream_fingerprint for run in found}) == 2
    assert len(list((tmp_path / "cache").glob("*.safetensors"))) == 1
    assert [record.images for record in found[0].records()] == [16, 4] * 2


def test_what_has_no_groups_is_refused(tmp_path: Path) -> None:
    plan = replace(PLAN, classes="dogs")
    few = write_set(tmp_path / "few.npz", np.arange(10), classes=10)
    refuses(
        "set has 10 classes, but the group 'dogs' is of ImageNet's 1000; give images",
        Resources(few, LoadOptions(), tmp_path).images,
        plan,
    )
    single = write_set(tmp_path / "single.npz", np.arange(CLASSES))
    refuses(
        "no images of 'dogs' beside the first of each class", Resources(single, LoadOptions(), tmp_path).images, plan
    )
