"""Constants of the rivals for a small model: a grid for each on the four extra corruptions, which no comparison shows.

    fozo bench tuning --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR

A learning rate for a ViT-B is none for a ViT-Tiny. Each rival's scale goes from a sixteenth or a quarter of the
published one to four or sixteen times; FOZO's perturbation goes with its rate. FOA has no rate: its weight of the
statistics is varied. NEO, GAIN and PEA compute rather than learn: how fast their averages forget and how much they
trust them is varied instead. What does best goes into ``TUNED`` of the recipe ``evidence``.
Expected: whatever is best is the result; the paper has no such numbers.
Cost: 1,024 images a row, 47 rows, 115,000 forward passes (a backward pass counted as two): an hour and a quarter on
one core with a ViT-Tiny.
"""

from collections.abc import Mapping

from fozo.bench.plan import AVERAGE, Methods, Recipe, StreamPlan, grid
from fozo.data.corruptions import EXTRA_KINDS
from fozo.methods.deyo import DeYOConfig
from fozo.methods.eata import EATAConfig
from fozo.methods.foa import FOAConfig
from fozo.methods.fozo import FOZOConfig
from fozo.methods.sar import SARConfig
from fozo.methods.tent import TentConfig
from fozo.methods.zoa import ZOAConfig
from fozo.types import Value

PLAN = StreamPlan(data="clean", kinds=EXTRA_KINDS, images=256)
UP = (0.25, 1.0, 4.0, 16.0)
DOWN = (1 / 16, 0.25, 1.0, 4.0)
"""Factors of the published constants: gradient descent on LayerNorms hardly moves a short stream, FOZO and ZOA move it
far."""
NEVER = 1e9
"""A jump of PEA's distances that none reaches: its rule of jumps is off."""


def _fozo(factor: float) -> Mapping[str, Value]:
    schedule = FOZOConfig().schedule
    scaled = ("epsilon", "epsilon_min", "rate", "rate_step", "rate_min", "rate_max", "rate_at_jump")
    return {"passes": 2, **{f"schedule.{name}": factor * (getattr(schedule, name) or 0.0) for name in scaled}}


METHODS: Methods = {
    "NoAdapt": ("noadapt", {}),
    **{f"TENT x {k:g}": ("tent", {"rate": k * TentConfig().rate}) for k in UP},
    **{f"EATA x {k:g}": ("eata", {"rate": k * EATAConfig().rate}) for k in UP},
    **{f"DeYO x {k:g}": ("deyo", {"rate": k * DeYOConfig().rate}) for k in UP},
    **{f"SAR x {k:g}": ("sar", {"rate": k * SARConfig().rate}) for k in UP},
    **{f"ZOA x {k:g}": ("zoa", {"passes": 2, "rate": k * ZOAConfig().rate}) for k in DOWN},
    **{f"FOZO x {k:g}": ("fozo", _fozo(k)) for k in DOWN},
    **{f"FOA, weight x {k:g}": ("foa", {"passes": 2, "weight": k * FOAConfig().weight}) for k in UP},
    "NEO": ("neo", {}),
    **{f"NEO, rate {rate:g}": ("neo", {"average": "ema", "rate": rate}) for rate in (0.1, 0.2, 0.5, 0.8, 1.0)},
    **{f"GAIN, kappa {kappa:g}": ("gain", {"kappa": kappa}) for kappa in (1.0, 3.0, 10.0, 30.0, 100.0)},
    **{f"GAIN, raw, kappa {kappa:g}": ("gain", {"preset": "raw", "kappa": kappa}) for kappa in (3.0, 300.0)},
    **{f"PEA, momentum {pace:g}": ("pea", {"momentum": pace}) for pace in (0.02, 0.1, 0.3)},
    **{f"PEA, momentum {pace:g}, no jumps": ("pea", {"momentum": pace, "gamma": NEVER}) for pace in (0.1, 0.3)},
}

RECIPE = Recipe(
    name="tuning",
    title="Constants of the rivals on the four extra corruptions at level 5, continual",
    cost="115,000 passes",
    calibration=512,
    rows=grid(METHODS, {AVERAGE: PLAN}),
)
