"""The one table of colours: a method has the same one in every chart of every page, and in the pictures of the docs.

light, dark = COLOURS["Align"]          # for a picture with colours of its own
indices = assign(labels)                 # for a page: the class of a curve is ``c{index}``, see base.html.j2
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from fozo.bench.plan import published

Colour: TypeAlias = tuple[str, str]  # on white paper, and on a dark screen

COLOURS: Mapping[str, Colour] = {
    "NoAdapt": ("#6b6b6b", "#b0b0b0"),
    "Align": ("#0072b2", "#4fb0f0"),
    "FOZO": ("#d55e00", "#ff9248"),
    "FOZO (paper)": ("#b58900", "#e6c34a"),
    "FOA": ("#009e73", "#3fd3a6"),
    "ZOA": ("#7b3fa0", "#c79bea"),
    "LAME": ("#cc79a7", "#f0a3cb"),
    "T3A": ("#3d9bd6", "#9ad7ff"),
    "TENT": ("#d81b60", "#ff6f9f"),
    "EATA": ("#8c510a", "#d9a066"),
    "SAR": ("#7a9a01", "#b5d64a"),
    "DeYO": ("#00838f", "#5fe0e6"),
    "NEO": ("#3f51b5", "#93a1ff"),
    "GAIN": ("#a8323e", "#ff9b93"),
    "PEA": ("#5d7052", "#b7cfa9"),
    "CAZO": ("#b07aa1", "#dcb4d4"),
}
"""By the labels that the recipes have."""
SPARE: tuple[Colour, ...] = (("#000000", "#ffffff"), ("#8d6e63", "#bcaaa4"), ("#c0a000", "#ffe082"))
"""For rows that are no method as published, before these have to take colours of methods that a page does not show."""
PALETTE: tuple[Colour, ...] = (*COLOURS.values(), *SPARE)
PASSES = re.compile(r"(, \d+ passes| at \d+ passes| \(FP=\d+\))$")


def assign(labels: Iterable[str]) -> dict[str, int]:
    """Give every label of a page an index into :data:`PALETTE`.

    A method has its own, also where its constants are tuned; so has a method at some number of passes, where no other
    label of the page is its. Others take what is free, in the order in which they come, and share colours only where
    there are more labels than colours.
    """
    every = list(dict.fromkeys(labels))
    listed = list(dict.fromkeys(map(published, every)))
    known = list(COLOURS)
    indices = {label: known.index(label) for label in listed if label in COLOURS}
    for label in listed:
        method = PASSES.sub("", label)
        if method in COLOURS and known.index(method) not in indices.values():
            indices[label] = known.index(method)
    ours = known.index("Align")  # the last to be taken for something else
    order = [*range(len(COLOURS), len(PALETTE)), *range(ours + 1, len(COLOURS)), ours]
    free = [index for index in order if index not in indices.values()] or order
    others = [label for label in listed if label not in indices]
    indices |= {label: free[i % len(free)] for i, label in enumerate(others)}
    return {label: indices[published(label)] for label in every}
