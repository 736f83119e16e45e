"""All methods side by side; the paper has no such numbers. Passes count a backward pass as two.

    fozo bench quick --model vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --data imagenet=DIR

Rows are those of all registered methods, plug-ins among them, with the options that each declares for it. Times are of
one core with a ViT-Tiny. CAZO makes more than half of the passes; ``--methods`` can leave it out.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from fozo.bench.gains import ADAPTING, FROZEN, LATENCY
from fozo.bench.plan import AVERAGE, CLEAN, Experiment, Methods, Recipe, StreamPlan, every_method, grid, usual
from fozo.data.corruptions import EXTRA_KINDS, KINDS, UNSEEN_KINDS
from fozo.methods.registry import list_methods, method_info

FAMILIES = ("gaussian_noise", "defocus_blur", "fog", "jpeg_compression")  # one corruption of each family
MANY_PASSES = 10.0  # methods of more passes are left out of short comparisons, and have a part of the long one
FRONTS = ("equalise", "autolevels", "clahe")
BEHIND = ("neo", "foa", "pea", "fozo")  # rivals that are compared behind each of the fronts, too
COMPOSITES = (*(f"{front}+{name}" for name in BEHIND for front in FRONTS), "align+neo")


def plain_and_align() -> Methods:
    return usual(["noadapt", "align"])


def quick() -> Recipe:
    """A quarter of an hour, without CAZO, whose 41 passes take longer than all the others together."""
    streams = {AVERAGE: StreamPlan(kinds=(*FAMILIES[:3], "contrast"), severity=3, images=128, batch_size=32)}
    paper = grid({"FOZO": ("fozo", {"passes": 2, "preset": "paper"})}, streams, "paper")
    return Recipe(
        name="quick",
        title="A quick look: the cheaper methods on four corruptions",
        calibration=256,
        rows=grid(every_method(MANY_PASSES), streams) + paper,
    )


def streams() -> Recipe:
    """Streams as cameras have them, at severity 3; the last one, a day of 20,000 images, is two thirds of the cost."""
    plan = StreamPlan(data=CLEAN, kinds=("clean", *FAMILIES), severity=3, images=64, batch_size=16)
    plans = {
        "sorted by class": replace(plan, scenario="sorted", images=192),
        "single images": replace(plan, batch_size=1),
        "64 images a domain": replace(plan, kinds=("clean", *KINDS)),
        "recurring days": replace(plan, scenario="recurring"),
        "mixed day": replace(plan, scenario="day", kinds=FAMILIES, images=500, batch_size=32),
    }
    return Recipe(
        name="streams",
        title="Every method on streams that cameras have, severity 3",
        calibration=512,
        rows=contenders(plans),
    )


def narrow() -> Recipe:
    """Four hours a seed.

    Each stream is of one group of classes, none tuned on, as a camera sees it; every domain begins again. A method
    that pulls statistics to those of all classes takes a change of content for a corruption; here it shows.
    """
    from fozo.data.groups import HELD_OUT  # reads the groups of ImageNet's classes

    plan = StreamPlan(
        data=CLEAN, scenario="episodic", kinds=("clean", *FAMILIES[:3], "brightness", FAMILIES[3]),
        severity=3, images=60, batch_size=16,
    )  # fmt: skip
    return Recipe(
        name="narrow",
        title=f"Every method on narrow content: {len(HELD_OUT)} groups of classes, clean and under five corruptions",
        calibration=1000,
        rows=contenders({group: replace(plan, classes=group) for group in HELD_OUT}),
    )


def tuning() -> Recipe:
    """What every method declares to try, on the four extra corruptions, which no comparison shows.

    It takes 75 minutes, and CAZO as long again. Published rates are for a ViT-B: gradient descent on LayerNorms hardly
    moves a short stream, FOZO, ZOA and CAZO move it far.
    """
    tried: Methods = {
        f"{info.label}, {name}": (info.name, {**info.compared, **options})
        for info in list_methods().values()
        for name, options in info.tuning.items()
    }
    return Recipe(
        name="tuning",
        title="Constants of the rivals on the four extra corruptions at level 5, continual",
        calibration=512,
        rows=grid({**usual(["noadapt"]), **tried}, {AVERAGE: StreamPlan(data=CLEAN, kinds=EXTRA_KINDS, images=256)}),
    )


def choose(method: str, averages: Mapping[str, float]) -> str:
    """The rule for tuned rows: the best of what a method declares, on the tuning set; of equals, the published one."""
    info = method_info(method)
    return max(info.tuning, key=lambda name: averages[f"{info.label}, {name}"])  # the first of equals


CHOSEN: Mapping[str, Mapping[str, str]] = {
    "vit_tiny": {
        "neo": "rate 0.8", "gain": "kappa 30", "pea": "momentum 0.3, no jumps", "zoa": "rate 3.125e-05",
        "fozo": "schedule x 0.0625", "foa": "weight 0.1", "eata": "rate 0.001", "sar": "rate 0.004",
        "lame": "neighbours 3", "cazo": "rate 0.04",
    },
    "deit_tiny": {
        "neo": "rate 0.8", "pea": "momentum 0.3, no jumps", "zoa": "rate 0.002", "fozo": "schedule x 0.0625",
        "tent": "rate 0.016", "eata": "rate 0.004", "deyo": "rate 0.001", "sar": "rate 0.016",
    },
}  # fmt: skip
"""What :func:`choose` chose by model, where it is not the published row; a test compares it with ``results``."""


def varied(method: str, name: str) -> Methods:
    """A method with one of the values that it declares for tuning."""
    info = method_info(method)
    return {info.label: (method, {**info.compared, **info.tuning[name]})}


def _tuned(methods: Collection[str], streams: Mapping[str, StreamPlan]) -> tuple[Experiment, ...]:
    """Rows with the constants that were chosen for a model, which are for that model alone.

    A method behind a front end has those that were chosen for the method alone.
    """
    rows: tuple[Experiment, ...] = ()
    for model, chosen in CHOSEN.items():
        for method in methods:
            name = chosen.get(method.rpartition("+")[2])
            if name is not None:
                rows += grid(varied(method, name), streams, "tuned", model)
    return rows


def contenders(streams: Mapping[str, StreamPlan]) -> tuple[Experiment, ...]:
    """Every method of few passes, published and tuned, and the best of them behind front ends: the cheap rows first."""
    cheap = every_method(MANY_PASSES)
    # Where the usual options are the FOZO paper's: the rates of the authors' ViT runs, TENT's of a ResNet-50.
    authors: Methods = {
        **varied("tent", "rate 0.00025"),
        **varied("eata", "rate 0.001"),
        "DeYO": ("deyo", {"preset": "official"}),
    }
    # It does not collapse where the published rate does.
    slower: Methods = {"DeYO, rate / 4": varied("deyo", "rate 6.25e-05")["DeYO"]}
    return (
        grid({**cheap, **slower}, streams)
        + grid(authors, streams, "authors")
        + _tuned([name for name, _ in cheap.values()], streams)
        + grid(usual(COMPOSITES), streams)
        + _tuned(COMPOSITES, streams)
    )


def _long_streams(severity: int, name: str, scenario: str) -> tuple[Experiment, ...]:
    column = f"{name}, severity {severity}"
    plan = StreamPlan(data=CLEAN, scenario=scenario, kinds=(*KINDS, "clean"), images=1000, severity=severity)
    costly = {label: method for label, method in every_method().items() if label not in every_method(MANY_PASSES)}
    four_corruptions = {f"{column}, 4 corruptions": replace(plan, kinds=FAMILIES)}
    many: Methods = {
        **plain_and_align(),
        **{f"{name.upper()}, {{passes}} passes": (name, {"passes": 28}) for name in ("foa", "zoa", "fozo")},
        **costly,
    }
    return (
        contenders({column: plan})
        + grid(many, four_corruptions)
        + _tuned([name for name, _ in costly.values()], four_corruptions)
    )


def unseen() -> Recipe:
    """The second test set, severity 3 because that is what cameras give: three hours; ``--only`` chooses rows."""
    plan = StreamPlan(data=CLEAN, kinds=(*UNSEEN_KINDS, "clean"), images=192, severity=3)
    return Recipe(
        name="unseen",
        title="Every method on 22 kinds of corruption that nothing here was chosen on, continual",
        calibration=512,
        rows=contenders({AVERAGE: plan}),
    )


def evidence() -> Recipe:
    """The long comparison: two to four days, half a day for one stream without the rows of many passes.

    Streams come one after the other, NoAdapt, Align and then the cheap rows first, so that what an interrupted command
    has finished is a table already; ``--column "reset, severity 5"`` runs that stream alone, ``--pixels DIR`` corrupts
    the images once for all rows, ``--images 512`` is half of it. Methods that draw get more seeds by
    ``--seeds 0,1,2 --methods fozo,zoa,foa,deyo,cazo``.
    """
    rows: tuple[Experiment, ...] = ()
    for severity in (5, 3):
        rows += _long_streams(severity, "continual", "continual")
        rows += _long_streams(severity, "reset", "episodic")
    return Recipe(
        name="evidence",
        title="Every method on long streams: 15 corruptions and then clean images, continual and reset",
        calibration=512,
        rows=rows,
    )


def tempora() -> Recipe:
    """Times are of the column ``latency`` and want a machine that does nothing else, for seven minutes.

    ``adapting`` has the runs of the recipe ``evidence``, which are found again in a copy of their folders.
    """
    reset = StreamPlan(data=CLEAN, scenario="episodic", images=192)
    whole = replace(reset, kinds=(*KINDS, "clean"))
    return Recipe(
        name="tempora",
        title="Utility under deadlines (Tempora): reset, severity 5, batches of 64",
        calibration=512,
        rows=grid(
            every_method(MANY_PASSES),
            {
                LATENCY: replace(reset, kinds=FAMILIES[:1], images=384, freeze_after=3),
                ADAPTING: whole,
                FROZEN: replace(whole, freeze_after=1),
            },
        ),
    )


def ablation() -> Recipe:
    """On classes and corruptions that Align may be tuned on; an hour on a core.

    These are the classes outside the held-out groups, and the four extra corruptions beside four that hardly show in
    an image's descriptor. Streams begin with clean images, as that of a camera that was put up in good weather.
    """
    from fozo.data.groups import TUNING  # reads the groups of ImageNet's classes

    hidden = ("elastic_transform", "jpeg_compression", "pixelate", "zoom_blur")
    alternating = tuple(kind for pair in zip(EXTRA_KINDS, hidden, strict=True) for kind in pair)
    balanced = StreamPlan(data=CLEAN, kinds=("clean", *alternating), images=128, batch_size=32, classes="tuning")
    group = StreamPlan(data=CLEAN, kinds=("clean", *EXTRA_KINDS, *hidden[:2]), severity=3, images=56, batch_size=16)
    parts: Methods = {
        "without CLS": ("align", {"cls_strength": 0.0}),
        "without mean": ("align", {"mean_strength": 0.0}),
        "without covariances": ("align", {"covariance_strength": 0.0}),
        "without re-centring": ("align", {"centre_images": 0.0}),
        "one slot": ("align", {"slots": 1}),
        "without equaliser": ("align", {"equaliser_strength": 0.0}),
    }
    return Recipe(
        name="ablation",
        title="Ablation of Align: eight corruptions, balanced and narrow content, continual",
        calibration=1000,
        rows=grid(
            {**plain_and_align(), **parts},
            {f"severity {level}": replace(balanced, severity=level) for level in (5, 3)}
            | {name: replace(group, classes=name) for name in TUNING},
        ),
    )


def held_out() -> Recipe:
    """The 508 classes in all held-out groups, mixed."""
    plan = StreamPlan(data=CLEAN, kinds=("clean", *KINDS), images=320, batch_size=32, classes="held_out")
    return Recipe(
        name="held_out",
        title="Align against NoAdapt on held-out classes, clean and under 15 corruptions, continual",
        calibration=1000,
        rows=grid(plain_and_align(), {AVERAGE: plan}),
    )


RECIPES: Mapping[str, Callable[[], Recipe]] = {
    make.__name__: make for make in (quick, streams, narrow, tuning, evidence, unseen, tempora, ablation, held_out)
}
