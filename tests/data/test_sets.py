"""Labels are right in every layout, and wrong layouts are refused in words."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from fozo.data.sets import Domain, ImageSet, imagenet_wnids, open_images
from fozo.errors import FozoError
from tests.data.conftest import Plant, encoded
from tests.refusals import refuses


def labels_by_path(images: ImageSet) -> dict[str, int]:
    return dict(images.samples)


def c_tree(kinds: Mapping[str, str], severities: tuple[int, ...] = (1, 5)) -> list[str]:
    wnids = imagenet_wnids()
    return [
        f"{group}{kind}/{severity}/{wnids[label]}/{label}.png"
        for kind, group in kinds.items()
        for severity in severities
        for label in (8, 3)
    ]


@pytest.mark.parametrize("grouped", [False, True])
def test_imagenet_c_with_and_without_group_folders(plant: Plant, grouped: bool) -> None:
    kinds = {"fog": "weather/", "gaussian_noise": "noise/", "odd_kind": "extra/", "shot_noise": "noise/"}
    root = plant(c_tree(kinds if grouped else dict.fromkeys(kinds, "")))
    images = open_images(root)
    assert images.name == "imagenet-c"
    # the paper's order, and kinds it does not have at the end
    order = ("gaussian_noise", "shot_noise", "fog", "odd_kind")
    assert images.domains == tuple(Domain(kind, severity) for kind in order for severity in (1, 5))
    assert images.samples == tuple((f"{imagenet_wnids()[label]}/{label}.png", label) for label in (3, 8))
    assert images.size == (16, 16)
    # files were planted as fog/1, fog/5, gaussian_noise/1, ...: two shades each, label 8 first
    assert images.read(1, Domain("gaussian_noise", 1))[0, 0, 0] == 4
    assert images.read(0, Domain("gaussian_noise", 5))[0, 0, 0] == 7
    assert open_images(root, kinds=["fog"], severities=[5]).domains == (Domain("fog", 5),)
    refuses(r"no kind 'snow' in this set; it has fog", open_images, root, kinds=["snow"])


def test_imagenet_c_of_other_classes(plant: Plant) -> None:
    root = plant(["fog/5/cat/a.png", "fog/5/dog/b.png"])
    assert open_images(root).classes == ("cat", "dog")
    assert open_images(root, classes=["dog", "cow", "cat"]).labels.tolist() == [2, 0]


def test_an_incomplete_domain_is_named(plant: Plant) -> None:
    paths = c_tree({"fog": "", "snow": ""}, (5,))
    root = plant(paths[:-1])
    refuses(r"fog/5 has 2 images and snow/5 1, and only one", open_images, root)
    assert len(open_images(root, kinds=["fog"])) == 2


def test_mixed_sizes_in_imagenet_c(plant: Plant) -> None:
    plant(c_tree({"fog": ""}, (5,)), size=(20, 16))
    root = plant(c_tree({"snow": ""}, (5,)))
    refuses(r"\(fog/5\) is 20x16 px where .* other images are 16x16", open_images, root)


def test_one_corruption_is_not_a_set(plant: Plant) -> None:
    root = plant(c_tree({"fog": ""}))
    refuses("severities of one corruption; give the folder above", open_images, root / "fog")
    assert open_images(root / "fog" / "5").labels.tolist() == [3, 8]
    refuses("should hold folders kind/severity/class", open_images, root / "fog" / "5", "imagenet-c")


def test_any_folder_of_classes(plant: Plant) -> None:
    root = plant(["zebra/2.png", "ant/deep/1.png", "ant/0.png", "zebra/.hidden.png", "zebra/notes.txt"])
    images = open_images(root)
    assert images.name == "folder" and images.classes == ("ant", "zebra")
    assert labels_by_path(images) == {"ant/0.png": 0, "ant/deep/1.png": 0, "zebra/2.png": 1}
    assert open_images(root, classes=["zebra", "bee", "ant"]).labels.tolist() == [2, 2, 0]
    refuses(r"not among the 1 expected classes .*zebra", open_images, root, classes=["ant"])


def test_numbered_folders_have_no_obvious_order(plant: Plant) -> None:
    root = plant(f"{number}/x.png" for number in range(12))
    refuses("12 folders named by numbers, whose order as text differs", open_images, root)
    assert open_images(root, "folder").classes[2] == "10"
    numeric = open_images(root, classes=[str(number) for number in range(12)])
    assert labels_by_path(numeric)["10/x.png"] == 10
    assert open_images(plant((f"{digit}/x.png" for digit in range(10)), "digits")).labels.tolist() == list(range(10))


def test_what_is_not_an_image_set(plant: Plant, tmp_path: Path) -> None:
    plant(["a/x.png", "b/x.png"])
    for folder in ("set/c", "empty"):
        (tmp_path / folder).mkdir()
    for path, options, words in (
        ("absent", {}, "there is no file or folder"),
        ("empty", {}, r"is not a set of labelled images: expected .* found 0 images and no folders"),
        ("set", {}, "c hold no images"),
        ("set", {"layout": "imagenet-x"}, "no layout 'imagenet-x'; choose from auto, imagenet"),
        ("set", {"layout": "folder", "kinds": ["fog"]}, r"kinds= means nothing for the layout folder"),
    ):
        refuses(words, open_images, tmp_path / path, **options)


@pytest.mark.parametrize("shape", [(3, 6, 6), (3, 6, 6, 3)])
def test_gray_and_coloured_images_are_read(tmp_path: Path, shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    np.savez_compressed(tmp_path / "set.npz", images=pixels, labels=[0, 1, 1], classes=["a", "b"])
    images = open_images(tmp_path / "set.npz")
    assert (images.name, images.classes, images.size, images.corrupted) == ("arrays", ("a", "b"), (6, 6), False)
    assert images.labels.tolist() == [0, 1, 1]
    expected = np.repeat(pixels[1][..., None], 3, axis=2) if len(shape) == 3 else pixels[1]
    got = images.read(1)
    np.testing.assert_array_equal(got, expected)
    got[:] = 0  # what a reader does to its copy stays there
    np.testing.assert_array_equal(images.read(1), expected)
    assert open_images(tmp_path / "set.npz", classes=("x", "y", "z")).classes == ("x", "y", "z")


def test_crops_of_one_size_are_recognised(plant: Plant) -> None:
    root = plant(["a/0.png", "b/1.png"], size=(16, 16))
    assert open_images(root).size == (16, 16)
    assert open_images(root, crops=False).size is None
    plant(["c/0.png"], size=(16, 12))
    assert open_images(root).size is None
    assert open_images(plant(["a/0.png", "b/1.png"], "wide", size=(16, 12))).size is None


def test_an_image_that_breaks_the_promise_of_one_size(plant: Plant) -> None:
    root = plant(["a/0.png", "b/1.png"])
    images = open_images(root)
    plant(["b/1.png"], size=(16, 12))
    images.read(0)
    refuses(r"b/1\.png \(clean\) is 16x12 px where the folder set's other images are 16x16", images.read, 1)


def test_take_and_select(plant: Plant) -> None:
    images = open_images(plant(f"{label}/{number:02d}.png" for label in "ab" for number in range(20)))
    # Published numbers on a subset mean something only while the seed still draws the same subset.
    drawn = " ".join(sample.path for sample in images.take(5, seed=0).samples)
    assert drawn == "a/00.png a/02.png a/11.png b/01.png b/18.png"
    few = images.take(9, seed=3)
    assert len(few) == 9 and few.classes == images.classes and few.fingerprint != images.fingerprint
    assert few.samples == images.take(9, seed=3).samples != images.take(9, seed=4).samples
    assert list(few.samples) == sorted(set(few.samples))
    assert images.take(40).samples == images.samples
    for count in (0, 41):
        refuses(f"cannot take {count} of 40", images.take, count)
    refuses(
        r"1 of the 2 listed images are not in this folder set, first 'a/99\.png'",
        images.select,
        ["a/01.png", "a/99.png"],
    )
    refuses("more than once", images.select, ["a/01.png", "a/01.png"])


def test_reading_loads_neither_torch_nor_what_corrupts_images() -> None:
    program = (
        "import sys, fozo.data.sets, fozo.data.streams;"
        "heavy = {'torch', 'cv2', 'scipy', 'skimage', 'numba', 'imagecorruptions', 'fozo.data.corrupt_tree'};"
        "sys.exit(str(heavy & sys.modules.keys()) if heavy & sys.modules.keys() else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def write_folder(root: Path, shade: int) -> None:
    (root / "a").mkdir(parents=True, exist_ok=True)
    (root / "a" / "0.png").write_bytes(encoded(shade, (16, 16 + shade)))


LAYOUTS: dict[str, Callable[[Path, int], object]] = {
    "folder": write_folder,
    "arrays": lambda root, shade: np.savez(
        root, images=np.full((2, 8, 8), shade, np.uint8), labels=[0, 1], classes=["a", "b"]
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fingerprints_notice_other_pixels_under_the_same_names(tmp_path: Path, layout: str) -> None:
    root = tmp_path / ("x.npz" if layout == "arrays" else "set")
    LAYOUTS[layout](root, 0)
    images = open_images(root)
    assert images.name == layout and images.fingerprint == open_images(root).fingerprint
    LAYOUTS[layout](root, 1)
    assert open_images(root).samples == images.samples
    assert open_images(root).fingerprint != images.fingerprint


def test_a_set_that_lost_a_file_has_no_fingerprint(plant: Plant) -> None:
    images = open_images(plant(["a/0.png", "b/1.png"]))
    (plant([]) / "b" / "1.png").unlink()
    with pytest.raises(FozoError, match=r"cannot read .*1\.png: No such file"):
        images.fingerprint  # noqa: B018
