"""Classes by name: which output of a model belongs to a folder called ``golden_retriever`` or ``n02099601``.

Folders numbered in the order of their names are right for a model that was trained on the same folders, and silently
wrong for every other. So where a model names its labels (``Spec.labels``), classes are looked up among them:

========================  ==============================================================================================
class of the set          output of the model
========================  ==============================================================================================
``golden_retriever``      the one label that reads so, whatever its case, its underscores and its hyphens
``tench``                 the one label that has it among its synonyms (``tench, Tinca tinca``)
``n01440764``             the one label that is this WordNet id, or begins with it
1000 (or 200) such ids    those of ImageNet (-R) by their position, if the labels are ImageNet's in the usual order
``0``, ``1``, ... only    the outputs of these numbers
========================  ==============================================================================================

A class that is not among the labels is refused, with the labels that no class was found for. A model without labels
takes the order of the set.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from fozo.data.sets.base import ImageSet, Sample
from fozo.data.sets.folder import WNID, imagenet_r_wnids, imagenet_wnids, some
from fozo.errors import FozoError
from fozo.types import LOG, Spec

KNOWN = {
    "n01440764": "tench", "n01443537": "goldfish", "n01518878": "ostrich", "n02099601": "golden retriever",
    "n02123045": "tabby", "n02129165": "lion", "n02391049": "zebra", "n02510455": "giant panda",
    "n02701002": "ambulance", "n03085013": "computer keyboard", "n03642806": "laptop", "n04146614": "school bus",
    "n04285008": "sports car", "n07745940": "strawberry", "n07753592": "banana", "n07873807": "pizza",
    "n09472597": "volcano", "n11939491": "daisy",
}  # fmt: skip
"""Classes of ImageNet that every list of its labels calls the same: they show whether a list has the usual order."""


def match_classes(images: ImageSet, spec: Spec) -> ImageSet:
    """Label images by the outputs of a model: the same set, its classes being the model's labels.

    A set that fits already, and any set where the model's labels are unknown, is returned as it is.

    Examples:
        >>> folders = fozo.open_images("camera/labelled")  # classes in the order of their names
        >>> folders.classes[:2], match_classes(folders, engine.spec).classes[:2]
        (('Ankle boot', 'Coat'), ('T-shirt/top', 'Trouser'))
    """
    labels = spec.labels
    if labels is None:
        if images.name == "folder":
            LOG.info("%s does not name its classes; the %d folders are in sorted order", spec.name, len(images.classes))
        return images
    if images.classes == labels or _is_imagenet(images, labels, spec):
        return images
    present = sorted({sample.label for sample in images.samples})
    names = [images.classes[label] for label in present]
    outputs = _find(names, labels)
    lost = [name for name in names if name not in outputs]
    if lost:
        left = [name for output, name in enumerate(labels) if output not in set(outputs.values())]
        raise FozoError(
            f"{len(lost)} of {len(present)} classes of the images are not among {spec.name}'s labels: {some(lost)}; "
            f"its labels without images are {some(left)}: rename the folders, or name the outputs with labels="
        )
    owners: dict[int, str] = {}
    for name in names:
        output = outputs[name]
        first = owners.setdefault(output, name)
        if first != name:
            raise FozoError(
                f"the classes {first!r} and {name!r} are both {labels[output]!r} of {spec.name}; rename one of the "
                f"folders"
            )
    samples = tuple(Sample(sample.path, outputs[images.classes[sample.label]]) for sample in images.samples)
    return replace(images, samples=samples, classes=labels)


def _find(names: Sequence[str], labels: Sequence[str]) -> dict[str, int]:
    """Find the output of each name, by the strictest reading that gives exactly one."""
    if all(name.isascii() and name.isdecimal() for name in names) and not any(label.isdecimal() for label in labels):
        return {name: int(name) for name in names if len(name) < 10 and int(name) < len(labels)}
    # How a name is read, and what it is then compared with; the strictest first.
    readings: list[tuple[Callable[[str], str], Callable[[str], Sequence[str]]]] = [
        (str, lambda label: [label]),
        (_plain, lambda label: [_plain(label)]),
        (_wnid, lambda label: [_wnid(label)]),
        (_plain, lambda label: list(map(_plain, label.split(",")))),
    ]
    output_of: dict[str, int] = {}
    for read, keys_of in readings:
        outputs: dict[str, set[int]] = defaultdict(set)
        for output, label in enumerate(labels):
            for key in keys_of(label):
                outputs[key].add(output)
        for name in names:
            if read(name) and len(outputs[read(name)]) == 1:
                output_of.setdefault(name, min(outputs[read(name)]))
    return output_of


def _plain(name: str) -> str:
    """Letters and digits alone, in one case: ``Golden_Retriever`` and ``golden-retriever`` are one."""
    return " ".join(re.findall(r"\w+", name.casefold().replace("_", " ")))


def _wnid(name: str) -> str:
    match = re.match(rf"{WNID.pattern}(?!\d)", name)
    return match[0] if match else ""


def _is_imagenet(images: ImageSet, labels: Sequence[str], spec: Spec) -> bool:
    """Whether a set of ImageNet's classes meets a model with as many labels in words; in another order, refuse."""
    ids = images.classes
    if ids not in (imagenet_wnids(), imagenet_r_wnids()) or len(labels) != len(ids) or all(map(_wnid, labels)):
        return False
    for output, wnid in enumerate(ids):
        if wnid in KNOWN and _plain(KNOWN[wnid]) not in _plain(labels[output]):
            raise FozoError(
                f"the images are of ImageNet's {len(ids)} classes, where output {output} is {wnid} "
                f"({KNOWN[wnid]}), but {spec.name} calls it {labels[output]!r}; name the outputs with labels="
            )
    return True
