"""All methods side by side; the paper has no such numbers. Passes count a backward pass as two.

    fozo bench quick --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --imagenet DIR

Times are of one core with a ViT-Tiny. CAZO makes more than half of the passes; ``--methods`` can leave it out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fozo.bench.gains import ADAPTING, FROZEN, LATENCY
from fozo.bench.plan import AVERAGE, OWN, TUNED, Experiment, Methods, Recipe, StreamPlan, grid
from fozo.data import groups
from fozo.data.corruptions import EXTRA_KINDS, KINDS
from fozo.methods.fozo import FOZOConfig
from fozo.types import Value

FAMILIES = ("gaussian_noise", "defocus_blur", "fog", "jpeg_compression")  # one corruption of each family
STATIC: Methods = {
    "CLAHE": ("clahe", {}),
    "Auto levels": ("autolevels", {}),
    "Histogram equalisation": ("histeq", {}),
    "Grey world": ("greyworld", {}),
}
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
    "Equalise": ("equalise", {}),
    **STATIC,
}
PLAIN_AND_ALIGN: Methods = {label: METHODS[label] for label in ("NoAdapt", "Align")}
ONCE: Methods = {label: method for label, method in METHODS.items() if label != "FOZO (paper)"}
TWO_PASSES: Methods = {"Align, {passes} passes": ("align", {"passes": 2})}

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
    title="Every method on narrow content: 14 groups of classes, clean and under five corruptions at level 3",
    cost="360,000 passes",
    calibration=1000,
    rows=grid(ONCE, {group: replace(NARROW_PLAN, classes=group) for group in groups.HELD_OUT}),
)

# Four values of one constant for every method that has a scale, the published one first. Published rates are for a
# ViT-B: gradient descent on LayerNorms hardly moves a short stream, FOZO, ZOA and CAZO move it far. FOA has no rate:
# its weight of the statistics is varied. NEO, GAIN, PEA, LAME and T3A do not descend: what they average over is varied.
NEVER = 1e9  # a jump of PEA's distances that none reaches: its rule of jumps is off


def _each(option: str, *values: float) -> dict[str, dict[str, Value]]:
    return {f"{option} {value:g}": {option: value} for value in values}


def _fozo(factor: float) -> dict[str, Value]:
    schedule = FOZOConfig().schedule
    scaled = ("epsilon", "epsilon_min", "rate", "rate_step", "rate_min", "rate_max", "rate_at_jump")
    return {f"schedule.{name}": factor * (getattr(schedule, name) or 0.0) for name in scaled}


GRID: Mapping[str, Mapping[str, Mapping[str, Value]]] = {
    "TENT": _each("rate", 1e-3, 2.5e-4, 4e-3, 1.6e-2),
    "EATA": _each("rate", 2.5e-4, 6.25e-5, 1e-3, 4e-3),
    "DeYO": _each("rate", 2.5e-4, 6.25e-5, 1e-3, 4e-3),
    "SAR": _each("rate", 1e-3, 2.5e-4, 4e-3, 1.6e-2),
    "ZOA": _each("rate", 5e-4, 3.125e-5, 1.25e-4, 2e-3),
    "FOZO": {f"schedule x {factor:g}": _fozo(factor) for factor in (1.0, 1 / 16, 0.25, 4.0)},
    "FOA": _each("weight", 0.4, 0.1, 1.6, 6.4),
    "NEO": {"mean": {}, **{name: {"average": "ema", **own} for name, own in _each("rate", 0.1, 0.5, 0.8).items()}},
    "GAIN": _each("kappa", 3.0, 10.0, 30.0, 100.0),
    "PEA": {
        **_each("momentum", 0.02, 0.1),
        **{f"{name}, no jumps": {**own, "gamma": NEVER} for name, own in _each("momentum", 0.1, 0.3).items()},
    },
    "LAME": {**_each("neighbours", 5, 3, 10), "RBF": {"preset": "official"}},
    "T3A": _each("supports", 20, 1, 5, 100),
    "CAZO": _each("rate", 1e-2, 6.25e-4, 2.5e-3, 4e-2),
}


def _varied(method: str, name: str) -> tuple[str, Mapping[str, Value]]:
    usual, options = METHODS[method]
    return usual, {**options, **GRID[method][name]}


TUNING = Recipe(  # on the four extra corruptions, which no comparison shows; 75 minutes, CAZO as long again
    name="tuning",
    title="Constants of the rivals on the four extra corruptions at level 5, continual",
    cost="290,000 passes",
    calibration=512,
    rows=grid(
        {"NoAdapt": METHODS["NoAdapt"], **{f"{m}, {name}": _varied(m, name) for m in GRID for name in GRID[m]}},
        {AVERAGE: StreamPlan(data="clean", kinds=EXTRA_KINDS, images=256)},
    ),
)


def choose(method: str, averages: Mapping[str, float]) -> str:
    """The rule for tuned rows: the best of a method's grid on the tuning set; of equals, the published one."""
    return max(GRID[method], key=lambda name: averages[f"{method}, {name}"])  # the first of equals


CHOSEN: Mapping[str, Mapping[str, str]] = {
    "vit_tiny": {
        "NEO": "rate 0.8", "GAIN": "kappa 30", "PEA": "momentum 0.3, no jumps", "ZOA": "rate 3.125e-05",
        "FOZO": "schedule x 0.0625", "FOA": "weight 0.1", "EATA": "rate 0.001", "SAR": "rate 0.004",
        "LAME": "neighbours 3", "CAZO": "rate 0.04",
    },
    "deit_tiny": {
        "NEO": "rate 0.8", "PEA": "momentum 0.3, no jumps", "ZOA": "rate 0.002", "FOZO": "schedule x 0.0625",
        "TENT": "rate 0.016", "EATA": "rate 0.004", "DeYO": "rate 0.001", "SAR": "rate 0.016",
    },
}  # fmt: skip
"""What :func:`choose` chose by model, where it is not the published row; a test compares it with ``results``."""

# The long comparison, for docs/results.md: 15 corruptions, then clean images. Streams come one after the other,
# NoAdapt, Align and then the cheap rows first, so that what an interrupted command has finished is a table already;
# ``--column "reset, severity 5"`` runs that stream alone, ``--pixels DIR`` corrupts the images once for all rows.
# Methods that draw get more seeds by ``--seeds 0,1,2 --methods fozo,zoa,foa,deyo,cazo``.
CHEAP_FIRST = (
    "NoAdapt", "Align", "Equalise", "NEO", "GAIN", "LAME", "T3A", "PEA", "FOZO", "ZOA", "FOA", "TENT", "EATA", "DeYO",
    "SAR",
)  # fmt: skip
AUTHORS: Methods = {  # where METHODS has the FOZO paper's values: the rates are those of the authors' ViT runs
    f"TENT{OWN}": _varied("TENT", "rate 0.00025"),  # of a ResNet-50
    f"EATA{OWN}": _varied("EATA", "rate 0.001"),
    f"DeYO{OWN}": ("deyo", {"preset": "official"}),
    "DeYO, rate / 4": _varied("DeYO", "rate 6.25e-05"),  # does not collapse where the published rate does
}
MANY: Methods = {  # of more than four passes, on four corruptions, beside a NoAdapt and an Align of their own
    **PLAIN_AND_ALIGN,
    "FOA, {passes} passes": ("foa", {"passes": 28}),
    "ZOA, {passes} passes": ("zoa", {"passes": 28}),
    "FOZO, {passes} passes": ("fozo", {"passes": 28}),
    "CAZO": ("cazo", {}),
}


def _tuned(methods: Sequence[str], columns: Mapping[str, StreamPlan]) -> tuple[Experiment, ...]:
    """Rows with the constants that were chosen for a model, which are for that model alone."""
    found: list[Experiment] = []
    for model, names in CHOSEN.items():
        rows = {f"{method}{TUNED}": _varied(method, name) for method, name in names.items() if method in methods}
        found += [replace(row, models=model) for row in grid(rows, columns)]
    return tuple(found)


def _evidence() -> tuple[Experiment, ...]:
    usual: Methods = {label: METHODS[label] for label in CHEAP_FIRST}
    long = StreamPlan(data="clean", kinds=(*KINDS, "clean"), images=1000)
    found: list[Experiment] = []
    for severity in (5, 3):
        for name, scenario in (("continual", "continual"), ("reset", "episodic")):
            column, plan = f"{name}, severity {severity}", replace(long, scenario=scenario, severity=severity)
            found += grid({**usual, **STATIC, **AUTHORS}, {column: plan}) + _tuned(CHEAP_FIRST, {column: plan})
            many = {f"{column}, 4 corruptions": replace(plan, kinds=FAMILIES)}
            found += grid(MANY, many) + _tuned(("CAZO",), many)
    return tuple(found)


EVIDENCE = Recipe(  # 32 to 50 hours, 5 to 8 for one stream without the rows of many passes; --images 512 is half of it
    name="evidence",
    title="Every method on long streams: 15 corruptions and then clean images, continual and reset",
    cost="5.2 million passes",
    calibration=512,
    rows=_evidence(),
)

# Times are of the column ``latency`` and want a machine that does nothing else (``--column latency``, seven minutes);
# ``adapting`` has the runs of the recipe ``evidence``, which are found again in a copy of their folders.
RESET = StreamPlan(data="clean", scenario="episodic", images=192)
TEMPORA = Recipe(
    name="tempora",
    title="Utility under deadlines (Tempora): reset, severity 5, batches of 64",
    cost="310,000 passes",
    calibration=512,
    rows=grid(
        {label: METHODS[label] for label in (*CHEAP_FIRST, *STATIC)},
        {
            LATENCY: replace(RESET, kinds=FAMILIES[:1], images=384, freeze_after=3),
            ADAPTING: replace(RESET, kinds=(*KINDS, "clean")),
            FROZEN: replace(RESET, kinds=(*KINDS, "clean"), freeze_after=1),
        },
    ),
)

# The ablation is on classes and corruptions that Align may be tuned on: those outside the held-out groups, and the four
# extra corruptions beside four that hardly show in an image's descriptor. Its tables are in docs/ablation.md, by
# ``python -m benchmarks.narrow RUNS``. It takes an hour on a core.
WITH_TWO_PASSES: Methods = {**PLAIN_AND_ALIGN, **TWO_PASSES}
HIDDEN = ("elastic_transform", "jpeg_compression", "pixelate", "zoom_blur")  # hardly change an image's descriptor
MIXED = tuple(kind for pair in zip(EXTRA_KINDS, HIDDEN, strict=True) for kind in pair)
ABLATION = Recipe(  # streams begin with clean images, as that of a camera that was put up in good weather
    name="ablation",
    title="Ablation of Align: eight corruptions, balanced and narrow content, continual",
    cost="37,000 passes",
    calibration=1000,
    rows=grid(
        {
            **PLAIN_AND_ALIGN,
            "without CLS": ("align", {"cls_strength": 0.0}),
            "without std": ("align", {"std_strength": 0.0}),
            "without mean": ("align", {"mean_strength": 0.0}),
            "content ignored": ("align", {"content_strength": 0.0}),
            "without content_error": ("align", {"content_error": 0.0}),
            "groups of 16": ("align", {"group_size": 16}),
            "without equaliser": ("align", {"equaliser_strength": 0.0}),
        },
        {
            **{
                f"severity {level}": StreamPlan(
                    "clean", "continual", ("clean", *MIXED), level, 128, batch_size=32, classes="tuning"
                )
                for level in (5, 3)
            },
            **{
                group: StreamPlan(
                    "clean", "continual", ("clean", *EXTRA_KINDS, *HIDDEN[:2]), 3, 56, batch_size=16, classes=group
                )
                for group in groups.TUNING
            },
        },
    ),
)
HELD_OUT = Recipe(  # the 508 classes in all held-out groups, mixed
    name="held_out",
    title="Align against NoAdapt on held-out classes, clean and under 15 corruptions, continual",
    cost="20,000 passes",
    calibration=1000,
    rows=grid(
        WITH_TWO_PASSES,
        {AVERAGE: StreamPlan("clean", kinds=("clean", *KINDS), images=320, batch_size=32, classes="held_out")},
    ),
)

RECIPES = (QUICK, STREAMS, BATCHES, NARROW, TUNING, EVIDENCE, TEMPORA, ABLATION, HELD_OUT)
