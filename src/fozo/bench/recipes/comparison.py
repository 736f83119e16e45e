"""All methods side by side; the paper has no such numbers. Passes count a backward pass as two.

    fozo bench rivals --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR --severity 3

Times are of one core with a ViT-Tiny. CAZO makes more than half of the passes; ``--methods`` can leave it out.
"""

from dataclasses import replace

from fozo.bench.plan import AVERAGE, TUNED, Experiment, Methods, Recipe, StreamPlan, grid
from fozo.data.corruptions import KINDS
from fozo.data.groups import HELD_OUT

FAMILIES = ("gaussian_noise", "defocus_blur", "fog", "jpeg_compression")  # one corruption of each family
METHODS: Methods = {
    "NoAdapt": ("noadapt", {}),
    "LAME": ("lame", {}),
    "T3A": ("t3a", {}),
    "FOA": ("foa", {"passes": 2}),
    "ZOA": ("zoa", {"passes": 2}),
    "FOZO (paper)": ("fozo", {"passes": 2, "preset": "paper"}),
    "FOZO": ("fozo", {"passes": 2}),
    "Align": ("align", {}),
    "TENT": ("tent", {}),
    "EATA": ("eata", {}),
    "SAR": ("sar", {}),
    "DeYO": ("deyo", {}),
    "NEO": ("neo", {}),
    "GAIN": ("gain", {}),
    "PEA": ("pea", {}),
    "CAZO": ("cazo", {}),
}
PLAIN_AND_ALIGN: Methods = {label: METHODS[label] for label in ("NoAdapt", "Align")}
ONCE: Methods = {label: method for label, method in METHODS.items() if label != "FOZO (paper)"}
TWO_PASSES: Methods = {"Align, {passes} passes": ("align", {"passes": 2})}

RIVALS = Recipe(  # 100 minutes
    name="rivals",
    title="All fifteen methods on 15 corruptions, continual",
    cost="146,000 passes",
    calibration=512,
    rows=grid(METHODS, {AVERAGE: StreamPlan(images=128)}),
)

QUICK_PLAN = StreamPlan(kinds=(*FAMILIES[:3], "contrast"), severity=3, images=128, batch_size=32)
QUICK = Recipe(  # 15 minutes, without CAZO, whose 41 passes take longer than all the others together
    name="quick",
    title="A quick look: the cheaper methods on four corruptions",
    cost="11,200 passes",
    calibration=256,
    rows=grid({label: method for label, method in METHODS.items() if label != "CAZO"}, {AVERAGE: QUICK_PLAN}),
)

SHORT = StreamPlan(kinds=FAMILIES, severity=3, images=48, batch_size=16)
STREAMS = Recipe(  # an hour a seed
    name="streams",
    title="All methods on five kinds of stream, four corruptions at level 3",
    cost="90,000 passes",
    calibration=512,
    rows=grid(
        {**ONCE, **TWO_PASSES},
        {
            "continual": SHORT,
            "episodic": replace(SHORT, scenario="episodic"),
            "mixed": replace(SHORT, scenario="mixed"),
            "recurring": replace(SHORT, scenario="recurring", images=12, batch_size=12),  # ten rounds of everything
            "correlated": replace(SHORT, scenario="correlated"),
        },
    ),
)

BATCHES_PLAN = StreamPlan(data="clean", kinds=("clean", *FAMILIES), severity=3, images=64)
BATCHES = Recipe(  # an hour; PEA at B = 1 may end because its logits are not finite, as its docstring says
    name="batches",
    title="All methods at every batch size, clean images and four corruptions at level 3",
    cost="95,000 passes",
    calibration=512,
    rows=grid(
        {**PLAIN_AND_ALIGN, **TWO_PASSES, "Align, passes = auto": ("align", {"passes": "auto"}), **ONCE},
        {f"B = {size}": replace(BATCHES_PLAN, batch_size=size) for size in (1, 8, 32, 128)},
    ),
)

# Each stream is of one group of classes, none tuned on, as a camera sees it; every domain begins again. A method that
# pulls statistics to those of all classes takes a change of content for a corruption; here it shows.
NARROW_PLAN = StreamPlan(
    data="clean", scenario="episodic", kinds=("clean", *FAMILIES[:3], "brightness", FAMILIES[3]),
    severity=3, images=60, batch_size=16,
)  # fmt: skip
NARROW = Recipe(  # four hours a seed, 100 minutes without CAZO; python -m benchmarks.narrow RUNS makes tables of it
    name="narrow",
    title="All fifteen methods on narrow content: 14 groups of classes, clean and under five corruptions at level 3",
    cost="360,000 passes",
    calibration=1000,
    rows=grid(ONCE, {group: replace(NARROW_PLAN, classes=group) for group in HELD_OUT}),
)

# The long comparison, for docs/results.md: 15 corruptions, then clean images. Streams come one after the other,
# NoAdapt, Align and then the cheap rows first, so that what an interrupted command has finished is a table already;
# ``--column "reset, severity 5"`` runs that stream alone, ``--pixels DIR`` corrupts the images once for all rows.
# Methods that draw get more seeds by ``--seeds 0,1,2 --methods fozo,zoa,foa,deyo,cazo``.
CHEAP_FIRST = (
    "NoAdapt", "Align", "NEO", "GAIN", "LAME", "T3A", "PEA", "FOZO", "ZOA", "FOA", "TENT", "EATA", "DeYO", "SAR",
)  # fmt: skip
# Constants that did best on the four extra corruptions, which no comparison shows (docs/methods.md), of equals the
# smaller rate: TENT and DeYO did as well at their published ones, at which they collapse on longer streams.
CHOSEN: Methods = {
    "NEO": ("neo", {"average": "ema", "rate": 0.8}),
    "GAIN": ("gain", {"kappa": 30.0}),
    "PEA": ("pea", {"momentum": 0.1, "gamma": 1e9}),  # which no jump reaches: the rule of jumps is off
    "ZOA": ("zoa", {"passes": 2, "rate": 3.125e-05}),  # a sixteenth of the published rate, as FOZO's of all its steps
    "FOZO": (
        "fozo",
        {
            "passes": 2, "schedule.epsilon": 0.03125, "schedule.epsilon_min": 0.0125, "schedule.rate": 0.005,
            "schedule.rate_step": 0.00625, "schedule.rate_min": 0.00625, "schedule.rate_max": 0.1875,
            "schedule.rate_at_jump": 0.00625,
        },
    ),
    "FOA": ("foa", {"passes": 2, "weight": 0.1}),
    "EATA": ("eata", {"rate": 0.001}),
    "TENT": ("tent", {"rate": 0.00025}),
    "SAR": ("sar", {"rate": 0.004}),
    "DeYO": ("deyo", {"rate": 6.25e-05}),
}  # fmt: skip
MANY: Methods = {  # of more than four passes, on four corruptions, beside a NoAdapt and an Align of their own
    **PLAIN_AND_ALIGN,
    "FOA, {passes} passes": ("foa", {"passes": 28}),
    "ZOA, {passes} passes": ("zoa", {"passes": 28}),
    "FOZO, {passes} passes": ("fozo", {"passes": 28}),
    "CAZO": ("cazo", {}),
}


def _evidence() -> tuple[Experiment, ...]:
    published: Methods = {label: METHODS[label] for label in CHEAP_FIRST}
    tuned: Methods = {f"{label}{TUNED}": method for label, method in CHOSEN.items()}
    long = StreamPlan(data="clean", kinds=(*KINDS, "clean"), images=1000)
    found: list[Experiment] = []
    for severity in (5, 3):
        for name, scenario in (("continual", "continual"), ("reset", "episodic")):
            column, plan = f"{name}, severity {severity}", replace(long, scenario=scenario, severity=severity)
            found += grid({**published, **tuned}, {column: plan})
            found += grid(MANY, {f"{column}, 4 corruptions": replace(plan, kinds=FAMILIES)})
    return tuple(found)


EVIDENCE = Recipe(  # 32 to 50 hours, 5 to 8 for one stream without the rows of many passes; --images 512 is half of it
    name="evidence",
    title="All fifteen methods on long streams: 15 corruptions and then clean images, continual and reset",
    cost="5.2 million passes",
    calibration=512,
    rows=_evidence(),
)

RECIPES = (RIVALS, QUICK, STREAMS, BATCHES, NARROW, EVIDENCE)
