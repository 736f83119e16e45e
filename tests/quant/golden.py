"""The authors' scales under this project's names."""

from __future__ import annotations

import numpy as np

from fozo.engines.ptq4vit.scales import Array, Scales
from tests.helpers import Golden

OPERANDS = {
    "matmul1/A_interval": "scores.queries",
    "matmul1/B_interval": "scores.keys",
    "matmul2/B_interval": "mix.values",
    "matmul2/split": "mix.split",
    "/w_interval": ".weight",
    "/a_interval": ".input",
}


def steps(trace: dict[str, np.ndarray]) -> dict[str, Array]:
    found = {}
    for key, value in trace.items():
        for theirs, ours in OPERANDS.items():
            if key.endswith(theirs):
                scalar = ours in (".input", "mix.split")
                found[key.removesuffix(theirs) + ours] = value.reshape(() if scalar else -1)
    return found


def scales(golden: Golden, trace: dict[str, np.ndarray]) -> Scales:
    return Scales(golden.engine.spec.fingerprint, 8, steps(trace))
