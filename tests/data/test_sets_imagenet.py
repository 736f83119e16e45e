"""ImageNet and its natural shifts: labels are right in every layout."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from fozo.data.sets import imagenet_wnids, open_images, robustbench_list
from fozo.data.sets.folder import imagenet_r_wnids
from tests.data.conftest import Plant
from tests.data.test_sets import labels_by_path
from tests.refusals import refuses

VAL = "ILSVRC2012_val_{:08d}.JPEG"


def test_the_class_lists_are_imagenets() -> None:
    wnids = imagenet_wnids()
    assert list(wnids) == sorted(set(wnids)) and len(wnids) == 1000
    # tench, tabby, tiger shark, toilet tissue: landmarks that all models agree on
    assert [wnids.index(w) for w in ("n01440764", "n02123045", "n01491361", "n15075141")] == [0, 281, 3, 999]
    assert list(imagenet_r_wnids()) == sorted(set(imagenet_r_wnids())) and len(imagenet_r_wnids()) == 200
    timm = find_spec("timm")
    if timm is None or not timm.submodule_search_locations:
        pytest.skip("timm is not installed")
    info = Path(timm.submodule_search_locations[0]) / "data" / "_info"
    assert (info / "imagenet_synsets.txt").read_text().split() == list(imagenet_wnids())
    indices = [int(line) for line in (info / "imagenet_r_indices.txt").read_text().split()]
    assert indices == [imagenet_wnids().index(wnid) for wnid in imagenet_r_wnids()]


def test_a_subset_of_imagenet_is_labelled_like_the_whole(plant: Plant) -> None:
    wnids = imagenet_wnids()
    root = plant(f"{wnids[label]}/{VAL.format(label)}" for label in (999, 7, 281))
    images = open_images(root)
    assert images.name == "imagenet" and images.classes == wnids and images.labels.tolist() == [7, 281, 999]
    assert labels_by_path(images) == {f"{wnids[label]}/{VAL.format(label)}": label for label in (7, 281, 999)}


def test_an_unknown_wnid_is_refused(plant: Plant) -> None:
    root = plant(["n01440764/a.png", "n99999999/a.png"])
    refuses(r"1 of 2 class folders are not among the 1000 .*n99999999", open_images, root)
    assert open_images(root, "folder").labels.tolist() == [0, 1]


def test_real_crops_are_a_labelled_subset(real_images: Path) -> None:
    images = open_images(real_images)
    assert (images.name, len(images), images.size) == ("imagenet", 4000, (224, 224))
    assert np.unique(images.labels).tolist() == list(range(1000))
    assert all(imagenet_wnids()[label] == path.split("/")[0] for path, label in images.samples)


def test_imagenet_r_has_labels_to_199_and_a_mask(plant: Plant) -> None:
    images = open_images(plant(f"{wnid}/art_0.png" for wnid in reversed(imagenet_r_wnids())))
    assert images.name == "imagenet-r" and images.labels.tolist() == list(range(200))
    assert images.mask is not None and images.mask[:5] == (1, 2, 4, 6, 8)
    for path, label in images.samples:
        assert imagenet_wnids()[images.mask[label]] == path.split("/")[0]


def test_v2_labels_are_numbers_and_not_string_order(plant: Plant) -> None:
    images = open_images(plant((f"{number}/x.png" for number in range(1000)), size=(8, 8)))
    assert images.name == "imagenet-v2" and images.labels.tolist() == list(range(1000))
    by_path = labels_by_path(images)
    # As strings, "10" comes third and "2" comes after "199".
    assert (by_path["10/x.png"], by_path["2/x.png"], by_path["999/x.png"]) == (10, 2, 999)
    assert images.classes == imagenet_wnids()


def test_sketch_is_known_by_its_files(plant: Plant) -> None:
    images = open_images(plant((f"sketch/{wnid}/sketch_1.png" for wnid in imagenet_wnids()), size=(8, 8)))
    assert images.name == "imagenet-sketch" and images.labels.tolist() == list(range(1000))
    assert images.samples[0].path == "n01440764/sketch_1.png"  # the wrapping folder is not part of the name


@pytest.mark.parametrize(
    ("layout", "folders", "words"),
    [
        ("imagenet-r", imagenet_r_wnids()[1:], r"200 class folders .* lacks 1 \(n01443537\)"),
        ("imagenet-r", (*imagenet_r_wnids(), "n99999999"), r"has 1 others \(n99999999\)"),
        ("imagenet-v2", map(str, range(3)), r"1000 class folders .* lacks 997 \(3, 4, 5 and 994 more\)"),
        ("imagenet-sketch", imagenet_wnids()[997:], "1000 class folders .* lacks 997 "),
    ],
)
def test_missing_classes_are_named(plant: Plant, layout: str, folders: tuple[str, ...], words: str) -> None:
    root = plant((f"{folder}/x.png" for folder in folders), size=(8, 8))
    refuses(words, open_images, root, layout)


def test_the_5k_list_keeps_the_order_of_its_file(plant: Plant, tmp_path: Path) -> None:
    wnids = imagenet_wnids()
    listed = [f"{wnids[label]}/{VAL.format(number)}" for number, label in ((9, 5), (3, 999), (7, 0), (1, 5))]
    file = tmp_path / "ids.txt"
    file.write_text("\n".join(listed))  # like the original, without a newline at the end
    root = plant([*sorted(listed), f"{wnids[1]}/{VAL.format(2)}"])
    images = open_images(root).select(robustbench_list(file))
    assert [sample.path for sample in images.samples] == listed
    assert images.labels.tolist() == [5, 999, 0, 5]


def test_a_wrong_list_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    file.write_text("n01440764/a.JPEG\n")
    refuses(r"lines like .* but has 'n01440764/a\.JPEG'", robustbench_list, file)
    refuses("there is no file", robustbench_list, tmp_path / "none.txt")
