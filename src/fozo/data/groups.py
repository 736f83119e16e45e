"""Named groups of ImageNet's classes, for streams of narrow content: a camera sees dogs or kitchens, seldom everything.

Classes are given by their index in ImageNet-1k, which is the order of the sorted WordNet ids and of the usual models'
outputs. No class is in two groups; a quarter of ImageNet, things that belong nowhere, is in none. The parts
of Align that tell content from drift were tuned on the groups of :data:`TUNING`; docs/method.md says what was known of
those of :data:`HELD_OUT` when.
"""

from __future__ import annotations

from collections.abc import Mapping

from fozo.errors import FozoError

CLASSES = 1000
"""Of ImageNet-1k."""
TUNING = ("birds", "fish", "insects", "primates", "vehicles", "clothing")
"""The groups that strengths and thresholds were chosen on."""
TEXT = {
    "birds": "7-24, 80-100, 127-146",
    "fish": "0-6, 389-397",
    "insects": "300-326",
    "primates": "365-384",
    "vehicles": """
        403-405, 407-408, 436, 444, 466, 468, 472, 479, 484, 510-511, 547, 554-555, 565, 569, 573, 575-576, 586,
        603, 609, 612, 625, 627-628, 654, 656, 661, 665, 670-671, 675, 690, 705, 717, 724, 734, 751, 757, 779-780,
        802-803, 814, 817, 820, 829, 833, 847, 864, 866-867, 870-871, 874, 880, 895, 914
    """,
    "clothing": """
        399-400, 411, 433, 439, 445, 451-452, 457, 459, 465, 474, 496, 501-502, 514-515, 518, 529, 552, 560, 568,
        578, 601, 608, 610, 614-615, 617, 630, 638-639, 643, 652, 655, 658, 667, 678, 689, 697, 715, 735, 770,
        774-775, 793, 796, 806, 808, 824, 834, 836-837, 841-842, 869, 887, 903, 906
    """,
    "dogs": "151-268",
    "reptiles": "25-68",
    "carnivores": "269-299, 387-388",
    "ungulates": "101, 339-355, 385-386",
    "sea life": "107-126, 147-150, 327-329",
    "small mammals": "102-106, 330-338, 356-364",
    "arachnids": "69-79",
    "instruments": """
        401-402, 420, 432, 486, 494, 513, 541, 546, 558, 566, 577, 579, 593-594, 641-642, 683-684, 687, 699, 776,
        822, 875, 881, 889
    """,
    "buildings": """
        410, 415, 424-425, 437, 449, 454, 467, 483, 497-498, 509, 525, 536, 538, 580, 582, 598, 624, 634, 660, 663,
        668, 672, 682, 698, 706, 708, 716, 727, 743, 762, 788, 821, 832, 839, 853, 860, 865, 873, 888, 900, 915
    """,
    "kitchen": """
        438, 440-441, 463, 469, 473, 504-505, 521, 534, 544, 550, 567, 572, 618, 647, 651, 653, 659, 666, 725,
        737-738, 760, 766, 773, 809, 813, 827-828, 849, 859, 868, 891, 898-899, 901, 907, 909-910
    """,
    "food": "924-969",
    "nature": "970-980, 984-998",
    "electronics": """
        487, 508, 527-528, 590, 605, 613, 620, 632, 650, 662, 664, 673, 681, 707, 713, 742, 745, 754, 761, 782, 810,
        844, 848, 851, 878
    """,
    "furniture": """
        423, 431, 435, 453, 493, 495, 516, 520, 526, 532, 548, 553, 559, 564, 648, 703, 736, 765, 831, 846, 857,
        861, 876, 894, 896
    """,
}
"""Single classes and ranges, both ends included."""
HELD_OUT = tuple(name for name in TEXT if name not in TUNING)
"""The groups that it was not tuned on: results are of these."""


def parse(text: str) -> tuple[int, ...]:
    """Read single numbers and ranges with both ends, such as ``7-24, 80``."""
    ends = ([int(end) for end in part.split("-")] for part in text.split(","))
    return tuple(number for each in ends for number in range(each[0], each[-1] + 1))


GROUPS: Mapping[str, tuple[int, ...]] = {
    **{name: parse(text) for name, text in TEXT.items()},
    "held_out": tuple(sorted(number for name in HELD_OUT for number in parse(TEXT[name]))),
}
"""The classes of every group; ``held_out`` has those of all the groups in :data:`HELD_OUT`, for streams of
mixed content that nobody tuned on."""


def class_indices(name: str) -> tuple[int, ...]:
    """Give the classes of a group."""
    if name not in GROUPS:
        raise FozoError(f"there is no group of classes {name!r}; choose from {', '.join(GROUPS)}")
    return GROUPS[name]
