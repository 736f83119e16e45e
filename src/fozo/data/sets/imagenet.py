"""ImageNet: its validation set, its list of RobustBench's 5000, its natural shifts R, V2 and Sketch, and ImageNet-C.

Labels always come from the full list of 1000 WordNet ids in sorted order, never from the position of a
folder, so a subset of ImageNet is labelled like the whole. The sets that are always scored whole (R, V2,
Sketch) must have all their classes: a missing one would silently change the score.
"""

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from fozo.data.sets.base import CLEAN, Domain, ImageSet, Names, Sample, choose, in_paper_order, probe, with_size
from fozo.data.sets.folder import FolderStore, Tree, from_classes, label, some
from fozo.errors import FozoError
from fozo.io import read_bytes, read_json, read_text, unreadable

WNID = re.compile(r"n\d{8}")
FLAT = re.compile(r"ILSVRC2012_val_\d{8}\.JPEG")
ROBUSTBENCH = Path("helper_files", "imagenet_test_image_ids.txt")
RECORD = "corruptions.json"  # in which ``fozo corrupt`` records how a tree was made
SEVERITIES = ("1", "2", "3", "4", "5")
MAX_META = 4 << 20  # bytes of meta.mat, which has 60,000
_FILE = r"(?P<file>ILSVRC2012_val_\d{8})(?:\.JPEG)?"
_DEVKIT = re.compile(r"(?P<number>\d{1,4})")
_FORMATS = (
    re.compile(_FILE + r"[\s,]+(?P<wnid>n\d{8})\b.*"),  # Kaggle's LOC_val_solution.csv, or "file wnid"
    re.compile(_FILE + r"[\s,]+(?P<number>\d{1,3})"),  # Caffe's val.txt: position in sorted order
    re.compile(r"(?P<wnid>n\d{8})"),  # one a line, in the order of the file numbers
    _DEVKIT,  # one a line, in the devkit's own numbering 1 ... 1000
)


@lru_cache
def imagenet_wnids() -> tuple[str, ...]:
    """The 1000 WordNet ids of ImageNet-1k; a class's label is its position here."""
    return tuple(files("fozo.data.sets").joinpath("imagenet_wnids.txt").read_text().split())


@lru_cache
def imagenet_r_wnids() -> tuple[str, ...]:
    return tuple(files("fozo.data.sets").joinpath("imagenet_r_wnids.txt").read_text().split())


def _open_whole(name: str, title: str, tree: Tree, classes: tuple[str, ...]) -> ImageSet:
    found = tree.classes()
    missing = [folder for folder in classes if not found.get(folder)]
    extra = [folder for folder in found if folder not in set(classes)]
    if missing or extra:
        raise FozoError(
            f"{title} should have {len(classes)} class folders ({classes[0]} ... {classes[-1]}) with images, "
            f"but {tree.root} lacks {len(missing)} ({some(missing)}) and has {len(extra)} others ({some(extra)}); "
            f"give the folder above the classes of the whole set"
        )
    return from_classes(name, tree.root, {folder: found[folder] for folder in classes}, classes)


def open_imagenet(tree: Tree, labels: str | Path | None = None) -> ImageSet:
    """Open the validation set or any subset of it: wnid folders, or flat files plus a file of labels."""
    root = tree.root
    flat = [name for name in tree.listing().images if FLAT.fullmatch(name)]
    if not flat:
        if labels is not None:
            raise FozoError(f"labels= is for flat ILSVRC2012_val files, but {root} has class folders; leave it out")
        return from_classes("imagenet", root, tree.classes(), imagenet_wnids())
    if labels is None:
        raise FozoError(
            f"{root} holds {len(flat)} flat validation files, whose names do not give the class; pass labels= "
            f"with the devkit's ILSVRC2012_validation_ground_truth.txt, a val.txt, or LOC_val_solution.csv"
        )
    truth = read_ground_truth(Path(labels), imagenet_wnids())
    unknown = [name for name in flat if name not in truth]
    if unknown:
        raise FozoError(
            f"{labels} gives no label for {len(unknown)} of {len(flat)} files ({some(unknown)}); give the full list"
        )
    index = {wnid: position for position, wnid in enumerate(imagenet_wnids())}
    # Named as in the folder layout, so that lists, shuffles and corruption noise are the same for both.
    samples = sorted(Sample(f"{truth[name]}/{name}", index[truth[name]]) for name in flat)
    return with_size(ImageSet("imagenet", tuple(samples), imagenet_wnids(), FolderStore({CLEAN: root}, flat=True)))


def open_imagenet_r(tree: Tree) -> ImageSet:
    """Open ImageNet-R: labels 0-199, with the mask of the 200 model outputs that they mean."""
    images = _open_whole("imagenet-r", "ImageNet-R", tree, imagenet_r_wnids())
    return replace(images, mask=tuple(map(imagenet_wnids().index, images.classes)))


def open_imagenet_v2(tree: Tree) -> ImageSet:
    """Open ImageNet-V2, whose folders 0 ... 999 are the labels; sorted as strings they would be wrong."""
    images = _open_whole("imagenet-v2", "ImageNet-V2", tree, tuple(map(str, range(1000))))
    return replace(images, classes=imagenet_wnids())


def open_imagenet_sketch(tree: Tree) -> ImageSet:
    return _open_whole("imagenet-sketch", "ImageNet-Sketch", tree, imagenet_wnids())


def robustbench_list(file: str | Path | None = None) -> tuple[str, ...]:
    """Read RobustBench's 5000 validation images in its order, for :meth:`ImageSet.select`.

    Args:
        file: a list of ``wnid/ILSVRC2012_val_XXXXXXXX.JPEG`` lines; by default the one in an installed
            ``robustbench``, which is not imported.
    """
    if file is None:
        package = find_spec("robustbench")
        if package is None or not package.submodule_search_locations:
            raise FozoError(
                "robustbench is not installed; run pip install --no-deps robustbench, or give its file "
                "imagenet_test_image_ids.txt"
            )
        file = Path(package.submodule_search_locations[0]) / ROBUSTBENCH
    paths = tuple(line.strip() for line in read_text(file).splitlines() if line.strip())
    wrong = [path for path in paths if not re.fullmatch(rf"{WNID.pattern}/{FLAT.pattern}", path)]
    if wrong or not paths:
        raise FozoError(
            f"{file} should hold lines like n01440764/ILSVRC2012_val_00000293.JPEG, but has "
            f"{repr(wrong[0]) if wrong else 'none'}; give RobustBench's imagenet_test_image_ids.txt"
        )
    return paths


def read_ground_truth(file: Path, wnids: Sequence[str]) -> dict[str, str]:
    """Map ``ILSVRC2012_val_XXXXXXXX.JPEG`` to its wnid, by a file in one of four formats, known by its first line.

    The devkit's ILSVRC2012_validation_ground_truth.txt needs meta.mat or map_clsloc.txt beside it, because the devkit
    numbers the classes in its own order.
    """
    lines = [line.strip() for line in read_text(file).splitlines()]
    lines = [line for line in lines if line and not line.startswith("ImageId")]
    pattern = next((pattern for pattern in _FORMATS if lines and pattern.fullmatch(lines[0])), None)
    if pattern is None:
        raise FozoError(
            f"{file} is not a list of validation labels: its first line is {(lines or [''])[0][:60]!r}; "
            f"give ILSVRC2012_validation_ground_truth.txt, a val.txt of 'file index', or LOC_val_solution.csv"
        )
    numbered = _devkit(file.parent) if pattern is _DEVKIT else dict(enumerate(wnids))
    truth = {}
    for number, line in enumerate(lines, start=1):
        match = pattern.fullmatch(line)
        if match is None:
            raise FozoError(f"line {number} of {file} is {line[:60]!r}, unlike the lines before; repair the file")
        parts = match.groupdict()
        name = parts.get("file") or f"ILSVRC2012_val_{number:08d}"
        wnid = parts["wnid"] if "wnid" in parts else numbered.get(int(parts["number"]), "")
        if wnid not in wnids:
            raise FozoError(f"line {number} of {file} is {line[:60]!r}, which is not a class of ImageNet-1k; repair it")
        truth[f"{name}.JPEG"] = wnid
    return truth


def _devkit(folder: Path) -> dict[int, str]:
    listing = folder / "map_clsloc.txt"
    if listing.is_file():
        rows = (line.split() for line in read_text(listing).splitlines())
        return {int(row[1]): row[0] for row in rows if len(row) >= 2 and re.fullmatch("[0-9]{1,4}", row[1])}
    matrix = folder / "meta.mat"
    if not matrix.is_file():
        raise FozoError(
            f"the devkit numbers classes in its own order, and neither meta.mat nor map_clsloc.txt is in "
            f"{folder} to translate it; keep the ground truth in the devkit's data folder"
        )
    from scipy.io import loadmat  # imported here: it takes as long as the rest of fozo, and few sets need it

    with unreadable(f"{matrix} is not the devkit's meta.mat", "download it again"):
        synsets = loadmat(io.BytesIO(read_bytes(matrix, MAX_META)), squeeze_me=True)["synsets"]
        # Inner nodes of the hierarchy are listed too, with numbers above 1000.
        return {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in synsets}


def kind_folders(tree: Tree) -> dict[str, str]:
    """Find the folders of an ImageNet-C-shaped tree: ``kind/severity/class``, or that below group folders.

    The published tars unpack to noise/, blur/, weather/, digital/ and extra/ with the kinds inside. A kind is a folder
    that holds severities 1-5 and nothing else, with class folders in them, whatever its name: so ImageNet-3DCC or
    ImageNet-C-bar open as well.
    """
    found: dict[str, str] = {}
    folders = tree.listing().folders
    for _ in ("kinds", "groups of kinds"):
        inside: list[str] = []
        for folder, listing in zip(folders, tree.listings(folders), strict=True):
            names = listing.folders
            if not names:
                continue
            if set(names) <= set(SEVERITIES) and tree.listing(f"{folder}/{names[0]}").folders:
                found[folder.rpartition("/")[2]] = folder
            else:
                inside += map(f"{folder}/".__add__, names)
        folders = inside
    return {kind: found[kind] for kind in in_paper_order(found)}


def read_record(root: Path) -> dict[str, object] | None:
    """Read how a tree was made; ``None`` for a tree that fozo did not make."""
    path = root / RECORD
    return read_json(path, "choose another folder") if path.exists() else None


def open_imagenet_c(
    tree: Tree, classes: Names = None, kinds: Names = None, severities: Sequence[int] | None = None
) -> ImageSet:
    """Open ``kind/severity/class/file``; every domain must hold the same images, all of one size.

    All 75 published domains list 3.75 million files: pass ``kinds`` or ``severities`` to look at fewer.
    """
    root = tree.root
    folders = {
        Domain(kind, int(severity)): f"{folder}/{severity}"
        for kind, folder in kind_folders(tree).items()
        for severity in tree.listing(folder).folders
    }
    if not folders:
        raise FozoError(
            f"{root} should hold folders kind/severity/class like gaussian_noise/5/n01440764, perhaps below groups "
            f"like noise, but has {some(tree.listing().folders)}; give the folder above the kinds"
        )
    domains = choose(list(folders), kinds, severities)
    found = tree.below(folders[domains[0]]).classes()
    paths = set(chain.from_iterable(found.values()))
    for domain in domains[1:]:
        others = set(chain.from_iterable(tree.below(folders[domain]).classes().values()))
        if others != paths:
            odd = sorted(others ^ paths)[0]
            raise FozoError(
                f"{domain.name} has {len(others)} images and {domains[0].name} {len(paths)}, and only one of them has "
                f"{odd}; complete the tree, or pass kinds= and severities= that are complete"
            )
    if classes is None:
        classes = imagenet_wnids() if all(map(WNID.fullmatch, found)) else tuple(found)
    store = FolderStore({domain: root / folders[domain] for domain in domains})
    images = ImageSet("imagenet-c", label(found, classes), tuple(classes), store, domains, record=read_record(root))
    sizes = probe(images)
    images = replace(images, size=next(iter(sizes.values()), None))
    for (path, domain), size in sizes.items():
        images.check_size(path, domain, size)
    return images
