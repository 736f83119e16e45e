"""Groups of ImageNet's classes: which there are, and that no class is in two."""

from __future__ import annotations

from collections import Counter

import pytest

from fozo.data.groups import CLASSES, GROUPS, HELD_OUT, TUNING, class_indices, parse
from fozo.data.sets import imagenet_wnids
from fozo.errors import FozoError


def test_the_groups_are_disjoint_and_of_imagenets_classes() -> None:
    assert len(TUNING) == 6 and len(HELD_OUT) == 14 and set(GROUPS) == {*TUNING, *HELD_OUT, "held_out"}
    every = Counter(number for name in (*TUNING, *HELD_OUT) for number in GROUPS[name])
    assert max(every.values()) == 1 and set(every) <= set(range(CLASSES)) and len(imagenet_wnids()) == CLASSES
    assert all(list(numbers) == sorted(numbers) and len(numbers) > 10 for numbers in GROUPS.values())


def test_held_out_is_all_that_was_not_tuned_on() -> None:
    assert set(GROUPS["held_out"]) == {number for name in HELD_OUT for number in GROUPS[name]}
    assert len(GROUPS["held_out"]) == 508 and not {n for name in TUNING for n in GROUPS[name]} & {*GROUPS["held_out"]}


@pytest.mark.parametrize(
    ("name", "wnid"),
    [
        ("dogs", "n02085620"),  # Chihuahua
        ("birds", "n01614925"),  # bald eagle
        ("fish", "n01440764"),  # tench
        ("carnivores", "n02123045"),  # tabby
        ("instruments", "n02672831"),  # accordion
        ("food", "n07873807"),  # pizza
        ("vehicles", "n02701002"),  # ambulance
    ],
)
def test_landmarks_that_all_models_agree_on(name: str, wnid: str) -> None:
    assert imagenet_wnids().index(wnid) in class_indices(name)


def test_names_and_ranges() -> None:
    assert parse("7-9, 3,\n 80-80") == (7, 8, 9, 3, 80)
    with pytest.raises(FozoError, match=r"no group of classes .cats.; choose from birds, fish.*furniture, held_out"):
        class_indices("cats")
