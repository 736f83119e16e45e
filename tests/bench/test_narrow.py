"""Streams of narrow content: which images they have, what is calibrated on, and the tables of their recipes."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file

from benchmarks import narrow
from benchmarks.narrow import over_seeds
from fozo.bench.plan import Experiment, Recipe, StreamPlan, load_recipe
from fozo.bench.resources import Paths, Resources
from fozo.bench.run import run_experiment
from fozo.bench.store import Group, Store, collect
from fozo.data.groups import CLASSES, HELD_OUT, TUNING, class_indices
from fozo.engines.load import LoadOptions
from fozo.errors import FozoError
from tests.bench.conftest import TINY
from tests.bench.invented import invent
from tests.helpers import REPO, random_vit

PLAN = StreamPlan(data="clean", scenario="episodic", kinds=("clean", "contrast"), images=60, batch_size=16)
FIRSTS = {f"{number:06d}" for number in range(CLASSES)}


def write_set(path: Path, labels: np.ndarray, classes: int = CLASSES) -> Paths:
    """Write tiny images, the shade of each drawn at random."""
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 8, 8), dtype=np.uint8)
    np.savez(path, images=images, labels=labels, classes=[f"n{number:08d}" for number in range(classes)])
    return Paths(imagenet=str(path))


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory) -> Resources:
    """Three images of each of 1000 classes; the first 1000 are the first of each class."""
    folder = tmp_path_factory.mktemp("narrow")
    return Resources(write_set(folder / "set.npz", np.tile(np.arange(CLASSES), 3)), LoadOptions(), folder / "cache")


# --- images -----------------------------------------------------------------------------------------------------------


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
    assert len(list((tmp_path / "cache").glob("*.npz"))) == 1
    assert [record.images for record in found[0].records()] == [16, 4] * 2


def test_what_has_no_groups_is_refused(tmp_path: Path) -> None:
    plan = replace(PLAN, classes="dogs")
    few = write_set(tmp_path / "few.npz", np.arange(10), classes=10)
    with pytest.raises(FozoError, match="set has 10 classes, but the group 'dogs' is of ImageNet's 1000; give images"):
        Resources(few, LoadOptions(), tmp_path).images(plan)
    single = write_set(tmp_path / "single.npz", np.arange(CLASSES))
    with pytest.raises(FozoError, match="no images of 'dogs' beside the first of each class"):
        Resources(single, LoadOptions(), tmp_path).images(plan)


# --- recipes and tables -----------------------------------------------------------------------------------------------


def shortened(name: str, labels: tuple[str, ...], columns: tuple[str, ...] = ()) -> Recipe:
    recipe = load_recipe(name)
    rows = [row for row in recipe.rows if row.label in labels and (not columns or row.column in columns)]
    return replace(recipe, rows=tuple(rows))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    recipe = shortened("narrow", ("NoAdapt", "FOA", "Align"), ("dogs", "food", "nature"))
    invent(out, recipe, batches=3, severity=3, seeds=(0, 1))
    invent(out, shortened("held_out", ("NoAdapt", "Align")), batches=2, severity=4, seeds=(0, 1))
    invent(out, shortened("ablation", ("NoAdapt", "Align", "without CLS")), batches=2, severity=None)
    return out


def group_of(runs: Path, name: str) -> Group:
    return next(group for group in collect(runs) if group.recipe.name == name)


def cells(line: str) -> list[str]:
    return [cell.strip("* ") for cell in line.strip("|").split("|")]


def test_the_table_of_narrow_content(runs: Path) -> None:
    group = group_of(runs, "narrow")
    heads, _, plain, foa, align = map(cells, narrow.narrow_table(group).splitlines())
    assert heads[4:10] == ["clean", "Gauss", "Defcs", "Fg", "Brt", "JPG"]
    assert plain[:2] == ["NoAdapt", "3"] and set(plain[3:]) == {"-"}
    for label, line in (("FOA", foa), ("Align", align)):
        both = [pair for each in narrow.pairs(group, label).values() for pair in each]
        assert len(both) == 6 and all(own.experiment.seed == base.experiment.seed for own, base in both)
        by_column: dict[str, list[float]] = {}
        for own, base in both:
            by_column.setdefault(own.experiment.column, []).append(own.measures.average - base.measures.average)
        means = {column: float(np.mean(values)) for column, values in by_column.items()}
        worst = min(means, key=lambda column: means[column])
        assert line[3].startswith(f"{np.mean(list(means.values())):+.2f} (")
        assert line[-3] == f"{worst} {means[worst]:+.1f}"
        assert int(line[-2]) == sum(value < -0.5 for value in means.values()) >= int(line[-1])
        assert np.mean([float(cell) for cell in line[4:10]]) == pytest.approx(np.mean(list(means.values())), abs=0.06)


def test_losses_are_counted_where_they_are(runs: Path) -> None:
    """The unadapted model in the place of the method with more passes, which wins everywhere: it loses everywhere."""
    group = group_of(runs, "narrow")
    names = {"NoAdapt": "FOA", "FOA": "NoAdapt"}
    swapped = [
        replace(run, experiment=replace(run.experiment, label=names[run.experiment.label]))
        for run in group.runs
        if run.experiment.label in names
    ]
    line = cells(narrow.narrow_table(replace(group, runs=tuple(swapped))).splitlines()[2])
    assert line[0] == "FOA" and line[3].startswith("-") and line[-2:] == ["3", "3"]


def test_the_table_of_held_out_classes(runs: Path) -> None:
    group = group_of(runs, "held_out")
    (line,) = map(cells, narrow.held_out_table([group]).splitlines()[2:])
    own, base = group.of("Align"), group.of("NoAdapt")
    pairs = [(mine.records(), plain.records()) for mine, plain in zip(own, base, strict=True)]
    seeds, gain = [over_seeds([pair]) for pair in pairs], over_seeds(pairs)
    within = gain.within
    assert gain.value == pytest.approx(np.mean([each.value for each in seeds])) and within is not None
    assert within.low == pytest.approx(np.mean([each.within.low for each in seeds if each.within is not None]))
    assert line[:4] == ["vit_tiny_patch16_224", "4", "Align", "2"]
    assert line[4] == f"{np.mean([run.measures.average for run in base]):.2f}"
    assert line[6] == f"{gain.value:+.2f} ({within.low:+.2f} to {within.high:+.2f})"
    drifted = [name for name in own[0].measures.domains if name != "clean"]
    differences = [
        mine.measures.domains[name] - plain.measures.domains[name]
        for mine, plain in zip(own, base, strict=True)
        for name in drifted
    ]
    assert line[7] == f"{np.mean(differences):+.1f}" and len(drifted) < len(own[0].measures.domains)


def test_the_table_of_the_ablation(runs: Path) -> None:
    group = group_of(runs, "ablation")
    _, _, plain, align, part = map(cells, narrow.ablation_table(group, "Align").splitlines())
    assert [align[0], *align[2::2]] == ["Align", "-", "-", "-"] and plain[0] == "NoAdapt" and part[0] == "without CLS"
    for column, at in (("severity 5", 1), ("severity 3", 3)):
        found = {run.experiment.label: run.measures.average for run in group.runs if run.experiment.column == column}
        assert part[at] == f"{found['without CLS']:.2f}"
        assert part[at + 1].startswith(f"{found['without CLS'] - found['Align']:+.2f} (")
    others = [run for run in group.runs if run.experiment.column in TUNING and run.experiment.label == "Align"]
    assert len(others) == 6 and align[5] == f"{np.mean([run.measures.average for run in others]):.2f}"


def test_the_command_prints_all_and_says_what_is_missing(runs: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.narrow"]
    done = subprocess.run([*command, str(runs)], capture_output=True, text=True, timeout=120, cwd=REPO)
    assert done.returncode == 0 and done.stdout.count("### ") == 3 and "| Align |" in done.stdout, done.stderr
    assert "60 images" not in done.stdout and "images a domain at most, 3 groups of classes" in done.stdout
    invent(tmp_path / "alone", shortened("held_out", ("Align",)), batches=2)
    invent(tmp_path / "other", "quick", batches=2)
    for folder, sentence in (("alone", "run of NoAdapt"), ("other", "runs of narrow, ablation or held_")):
        with pytest.raises(FozoError, match=f"no finished {sentence}"):
            narrow.page(collect(tmp_path / folder))
