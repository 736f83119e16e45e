"""Class folders meet a model's outputs by name, or are refused with what differs; groups of ImageNet's classes."""

import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fozo
from fozo.data.classes import KNOWN, match_classes
from fozo.data.groups import CLASSES, GROUPS, HELD_OUT, TUNING, class_indices, parse
from fozo.data.scenarios import Continual
from fozo.data.sets import CLEAN, ImageSet, Sample, imagenet_wnids, open_images
from fozo.data.sets.folder import FolderStore, imagenet_r_wnids
from fozo.data.streams import Stream
from tests.data.conftest import MakeSpec, Plant
from tests.refusals import refuses


def listed(*classes: str, name: str = "folder") -> ImageSet:
    """A set in memory with an image of every class."""
    samples = tuple(Sample(f"{each}/a.png", label) for label, each in enumerate(classes))
    return ImageSet(name, samples, classes, FolderStore({CLEAN: Path()}))


@pytest.mark.parametrize(
    ("folders", "labels", "expected"),
    [
        (("ant", "bee"), ("bee", "ant"), {"ant": 1, "bee": 0}),
        (("bee",), ("wasp", "bee", "ant"), {"bee": 1}),
        (("Golden_Retriever", "a-bus"), ("a bus", "golden retriever"), {"Golden_Retriever": 1, "a-bus": 0}),
        (("tench", "goldfish"), ("goldfish, Carassius auratus", "tench, Tinca tinca"), {"tench": 1, "goldfish": 0}),
        (("n01443537", "n01440764"), ("n01440764", "n01443537"), {"n01440764": 0, "n01443537": 1}),
        (("n01443537", "n01440764"), ("n01443537 goldfish", "n01440764_tench"), {"n01440764": 1, "n01443537": 0}),
        (("n01440764_tench",), ("goldfish", "n01440764"), {"n01440764_tench": 1}),
        (("10", "2"), tuple("abcdefghijkl"), {"10": 10, "2": 2}),
        (("1", "2"), ("2", "1"), {"1": 1, "2": 0}),
        (("T-shirt", "t shirt+"), ("t shirt+", "T-shirt"), {"T-shirt": 1, "t shirt+": 0}),
        (("été", "naïve"), ("NAÏVE", "Été"), {"été": 1, "naïve": 0}),
    ],
)
def test_folders_are_found_by_name(
    make_spec: MakeSpec, folders: tuple[str, ...], labels: tuple[str, ...], expected: dict[str, int]
) -> None:
    images = match_classes(listed(*folders), make_spec(len(labels), labels=labels))
    assert images.classes == labels
    assert {sample.path.partition("/")[0]: sample.label for sample in images.samples} == expected


@pytest.mark.parametrize(
    ("folders", "labels", "sentence"),
    [
        (("ant", "boat"), ("ant", "ship"), "1 of 2 classes .* not among tiny's labels: boat; .* images are ship:"),
        (("crane",), ("crane, bird", "crane, machine"), "not among tiny's labels: crane"),
        (("Ant", "ant"), ("ANT", "bee"), "'Ant' and 'ant' are both 'ANT'"),
        (("0", "5"), ("ant", "bee"), "not among tiny's labels: 5"),
        (("²", "1"), ("ant", "bee"), "2 of 2 classes"),
        (("!!!",), ("???", "ant"), "not among tiny's labels: !!!"),
    ],
)
def test_what_is_no_label_is_refused_with_both_lists(
    make_spec: MakeSpec, folders: tuple[str, ...], labels: tuple[str, ...], sentence: str
) -> None:
    refuses(sentence, match_classes, listed(*folders), make_spec(len(labels), labels=labels))


def test_imagenet_meets_labels_in_words_by_place_and_only_in_its_own_order(make_spec: MakeSpec) -> None:
    names = tuple(KNOWN.get(wnid, f"thing {i}") for i, wnid in enumerate(imagenet_wnids()))
    whole = listed(*imagenet_wnids(), name="imagenet")
    assert match_classes(whole, make_spec(labels=names)) is whole
    mask = tuple(imagenet_wnids().index(wnid) for wnid in imagenet_r_wnids())
    some = replace(listed(*imagenet_r_wnids()), mask=mask)
    assert match_classes(some, make_spec(200, labels=tuple(names[i] for i in mask), subset=mask)) is some
    refuses(
        r"output 0 is n01440764 \(tench\), but tiny calls it 'thing 999'",
        match_classes,
        whole,
        make_spec(labels=names[::-1]),
    )
    ids = imagenet_wnids()[::-1]
    assert match_classes(whole, make_spec(labels=ids)).samples[0].label == 999


def test_a_model_without_labels_takes_the_order_and_says_so(
    make_spec: MakeSpec, caplog: pytest.LogCaptureFixture
) -> None:
    images = listed("ant", "bee")
    with caplog.at_level(logging.INFO, "fozo"):
        assert match_classes(images, make_spec(2)) is images
    assert "tiny does not name its classes; the 2 folders are in sorted order" in caplog.text


def test_streams_match_before_they_check(plant: Plant, make_spec: MakeSpec) -> None:
    images = open_images(plant(["zebra/a.png", "ant/a.png"]))
    spec = make_spec(4, labels=("zebra", "bee", "ant", "boat"))
    (batch,) = Stream(images, spec, Continual(kinds=("clean",), shuffle=False)).batches()
    assert batch.labels.tolist() == [2, 0]
    refuses("name the outputs with labels= when loading", Stream, images, make_spec(4), Continual(kinds=("clean",)))


def test_predictions_carry_names(engine: fozo.Engine) -> None:
    import torch

    logits = np.eye(7, dtype=np.float32)[[2, 6]]
    assert fozo.NoAdapt(engine).names(logits) == ["2", "6"]
    vit = engine.vit  # type: ignore[attr-defined]
    named = fozo.NoAdapt(fozo.load_engine(vit, labels=list("abcdefg")))
    assert named.names(torch.from_numpy(logits)) == ["c", "g"]
    some = fozo.load_engine(vit, labels=list("abcdefg"), classes=[5, 2])
    assert some.spec.labels == ("f", "c")
    refuses("2 labels were given for the 7 classes", fozo.load_engine, vit, labels=["a", "b"])


def test_the_groups_are_disjoint_and_of_imagenets_classes() -> None:
    assert len(TUNING) == 6 and len(HELD_OUT) == 14 and set(GROUPS) == {*TUNING, *HELD_OUT, "held_out", "tuning"}
    every = Counter(number for name in (*TUNING, *HELD_OUT) for number in GROUPS[name])
    assert max(every.values()) == 1 and set(every) <= set(range(CLASSES)) and len(imagenet_wnids()) == CLASSES
    assert all(list(numbers) == sorted(numbers) and len(numbers) > 10 for numbers in GROUPS.values())
    assert set(GROUPS["held_out"]) == {number for name in HELD_OUT for number in GROUPS[name]}
    assert sorted(GROUPS["tuning"] + GROUPS["held_out"]) == list(range(CLASSES))
    assert len(GROUPS["held_out"]) == 508 and not {n for name in TUNING for n in GROUPS[name]} & {*GROUPS["held_out"]}


def test_names_and_ranges() -> None:
    dogs, birds, fish, tabby, pizza = "n02085620", "n01614925", "n01440764", "n02123045", "n07873807"
    landmarks = {"dogs": dogs, "birds": birds, "fish": fish, "carnivores": tabby, "food": pizza}
    assert all(imagenet_wnids().index(wnid) in class_indices(name) for name, wnid in landmarks.items())
    assert parse("7-9, 3,\n 80-80") == (7, 8, 9, 3, 80)
    refuses(r"no group of classes .cats.; choose from birds, fish.*furniture, held_out", class_indices, "cats")
