"""The long comparison: all fifteen methods, 15 corruptions in the paper's order and then clean images again.

    fozo bench evidence --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR --images 512

Severities 5 and 3, never reset (*continual*) and reset at every corruption (*reset*). Rivals have their published
constants and, as ``tuned``, those that did best under the four extra corruptions (the recipe ``tuning``); those of
more than four passes run on four corruptions, beside a NoAdapt and an Align of their own. Streams come one after the
other, NoAdapt, Align and then the cheap rows first, so that what an interrupted command has finished is a table
already; the same command goes on, and ``--column "reset, severity 5"``, say, runs that stream alone. ``python -m
benchmarks.results results RUNS`` makes docs/results.md of it, whose pairs are of images, in whatever order they come:
so NoAdapt needs one seed only, and those that draw get more by ``--seeds 0,1,2 --methods fozo,zoa,foa,deyo,cazo``.
``--pixels DIR`` corrupts the images once for all rows.
Expected: what docs/results.md shows; the paper has no such numbers.
Cost: 16,000 images a row and stream, 5.2 million forward passes a model (a backward pass counted as two): 32 to 50
hours on one core with a ViT-Tiny, 5 to 8 hours for one stream without the rows of many passes. ``--images 512`` is
half of it.
"""

from dataclasses import replace

from fozo.bench.plan import Experiment, Methods, Recipe, StreamPlan, grid
from fozo.bench.recipes import rivals, tuning
from fozo.bench.recipes.streams import FAMILIES
from fozo.data.corruptions import KINDS

PLAN = StreamPlan(data="clean", kinds=(*KINDS, "clean"), images=1000)
STREAMS = {
    f"{name}, severity {severity}": replace(PLAN, scenario=scenario, severity=severity)
    for severity in (5, 3)
    for name, scenario in (("continual", "continual"), ("reset", "episodic"))
}
CHEAP_FIRST = [
    "NoAdapt",
    "Align",
    "NEO",
    "GAIN",
    "LAME",
    "T3A",
    "PEA",
    "FOZO",
    "ZOA",
    "FOA",
    "TENT",
    "EATA",
    "DeYO",
    "SAR",
]
PUBLISHED: Methods = {label: rivals.METHODS[label] for label in CHEAP_FIRST}
TUNED: Methods = {
    "NEO (tuned)": tuning.METHODS["NEO, rate 0.8"],
    "GAIN (tuned)": tuning.METHODS["GAIN, kappa 30"],
    "PEA (tuned)": tuning.METHODS["PEA, momentum 0.1, no jumps"],
    "ZOA (tuned)": tuning.METHODS["ZOA x 0.0625"],
    "FOZO (tuned)": tuning.METHODS["FOZO x 0.0625"],
    "FOA (tuned)": tuning.METHODS["FOA, weight x 0.25"],
    "EATA (tuned)": tuning.METHODS["EATA x 4"],
    "TENT (tuned)": tuning.METHODS["TENT x 0.25"],
    "SAR (tuned)": tuning.METHODS["SAR x 4"],
    "DeYO (tuned)": tuning.METHODS["DeYO x 0.25"],
}
"""What did best in the recipe ``tuning``, of equals the smaller rate: NEO did as well at 0.8 as at 1, TENT and DeYO at
a quarter of their rates as at the published ones, at which they collapse on longer streams."""
MANY: Methods = {
    "NoAdapt": ("noadapt", {}),
    "Align": ("align", {}),
    "FOA, {passes} passes": ("foa", {"passes": 28}),
    "ZOA, {passes} passes": ("zoa", {"passes": 28}),
    "FOZO, {passes} passes": ("fozo", {"passes": 28}),
    "CAZO": ("cazo", {}),
}


def _rows() -> tuple[Experiment, ...]:
    """List the rows stream by stream: published constants, tuned ones, and many passes on four corruptions."""
    found: list[Experiment] = []
    for column, plan in STREAMS.items():
        found += grid({**PUBLISHED, **TUNED}, {column: plan})
        found += grid(MANY, {f"{column}, 4 corruptions": replace(plan, kinds=FAMILIES)})
    return tuple(found)


RECIPE = Recipe(
    name="evidence",
    title="All fifteen methods on long streams: 15 corruptions and then clean images, continual and reset",
    cost="5.2 million passes",
    calibration=512,
    rows=_rows(),
)
