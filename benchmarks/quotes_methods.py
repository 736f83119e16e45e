"""What the pages on methods quote, and their tables of printed records and of the ablation's runs."""

import json
from collections.abc import Mapping, Sequence
from statistics import fmean

from scipy.stats import sem
from scipy.stats import t as student

from benchmarks import detectors, narrow, prompt_curves, quotes_service
from benchmarks.cells import Cell, name_of
from benchmarks.common import markdown
from benchmarks.conclusions import OURS
from benchmarks.quotes import Quote, ends, every, figures, lines, number, printed, record, row, rows
from benchmarks.quotes_service import DEIT, VIT
from fozo.bench.gains import BASE, Gain, gains, signed
from fozo.bench.store import Group, Run
from fozo.data.corruptions import KINDS
from fozo.data.groups import TUNING
from fozo.errors import FozoError

ENGINES = {"torch": "torch", "float32": "ONNX Runtime, float32"}
LONG = 1334  # images a corruption of the long stream of benchmarks/scaled.toml
PARTS = {"severity 5": ("severity 5",), "severity 3": ("severity 3",), "narrow": TUNING}
"""Columns of the ablation's tables, and of its runs."""


def overhead_table() -> str:
    """What ``python -m benchmarks.overhead`` printed at one thread."""
    body: list[list[str]] = []
    for model, title in (("tiny", "ViT-Tiny"), ("bundled", "bundled, 28 px")):
        for each in rows("overhead.md", f"| {model} |"):
            time = [each["processor time"], each["clock"], signed(number(each["ms an image"]))]
            body.append([title, ENGINES[each[model]], each["batch"], *time, each["rounds"]])
    return markdown(["model", "engine", "batch", "processor time", "clock", "ms an image", "rounds"], body)


def _peaks() -> list[list[float]]:
    """Ratio, both peaks in MiB and the state in MB: ViT-Tiny on torch and ONNX Runtime, then the bundled model."""
    pattern = r"peak memory ([\d.]+)x \((\d+) and (\d+) MiB\); the full state has ([\d.]+) MB"
    found = every("overhead.md", pattern)
    if len(found) != 2 * len(ENGINES):
        raise FozoError(
            f"results/overhead.md has {len(found)} lines on memory instead of 4; docs/cost.md has the options"
        )
    return found


def cost() -> list[Quote]:
    before = rows("settled.md", "What Align cost before levels")
    base = figures((each for each in before if each["model"] == "ViT-B"), "processor time")
    tiny = figures((each for each in before if each["model"] == "ViT-Tiny"), "processor time")
    loop = row("settled.md", "| clock | peak memory", "torch engine")
    torch, onnx, bundled_torch, bundled_onnx = _peaks()
    cached = [
        [number(part) for part in each["kept for 1/4 of the evidence (as it is)"].split("±")]
        for each in rows("settled.md", "What keeping a correction costs")
    ]
    return [
        Quote(
            "ViT-Tiny {:.3f} of plain on torch ({:.0f} and {:.0f} MiB) and {:.3f} on ONNX Runtime ({:.0f} and {:.0f}), "
            "the bundled model {:.3f} and {:.3f}.",
            *(*torch[:3], *onnx[:3], bundled_torch[0], bundled_onnx[0]),
        ),
        Quote(
            "noise had {:.2f} to {:.2f} on a ViT-B, and {:.2f} to {:.2f} on ViT-Tiny in INT8", *ends(base), *ends(tiny)
        ),
        Quote("{:.1f} MB for ViT-Tiny and {:.1f} MB for the bundled model", torch[3], bundled_torch[3]),
        Quote("on a ViT-B is {:.2f} times as fast", number(loop["processor time"])),
        Quote("none above {:.1f} points is likely", max(half - change for change, half in cached)),
    ]


def edge() -> list[Quote]:
    clean = {each[""]: each for each in rows("settled.md", "| agrees with float32 |")}
    plain, ptq, dynamic = (
        clean[name] for name in ("float32, PyTorch", "PTQ4ViT, 8 bits", "ONNX Runtime INT8, dynamic")
    )
    kinds = ("ONNX Runtime float32", "ONNX Runtime INT8 dynamic", "ONNX Runtime INT8 static")
    costs = [row("settled.md", "| clock | peak memory", name) for name in kinds]
    peaks = [each["peak memory, against PyTorch"].split(",") for each in costs]
    draw = row("settled.md", "Table 3 at a reduced size", "Align")
    less = (draw[head].partition("(")[2] for head in ("float32, ONNX Runtime", "ONNX Runtime INT8", "PTQ4ViT, 8 bits"))

    def stream(words: str, name: str) -> Quote:
        found = row("settled.md", "| INT8 static |", name)
        both = (found[head].partition("(")[2].split("±") for head in ("INT8 dynamic", "INT8 static"))
        template = f"| {words} | {{:.1f}} | {{:+.1f}} ± {{:.1f}} | {{:+.1f}} ± {{:.1f}} | - |"
        return Quote(template, number(found["float32"]), *(number(part) for each in both for part in each))

    return [
        Quote(
            "| clean, {:.0f} images | {:.2f} | {:.2f} | - | {:.2f} |",
            *printed("settled.md", r"clean top-1 of (\d+) images"),
            *figures((plain, dynamic, ptq), "top-1"),
        ),
        Quote("same class as float32 | | {} % | - | {} % |", *figures((dynamic, ptq), "agrees with float32")),
        stream("NoAdapt, 15 corruptions at severity 5, 450 images", "NoAdapt"),
        stream("Align, the same", "Align"),
        stream("FOZO with 2 passes, the same", "FOZO, 2 passes"),
        Quote("another draw | {:+.1f} | {:+.1f} | - | {:+.1f} |", *map(number, less)),
        Quote("loop in PyTorch | {:.2f}x as fast | {:.2f}x | {:.2f}x | - |", *figures(costs, "processor time")),
        Quote(
            "| peak memory, the same | {:.0f} MiB ({:.2f}x) | {:.0f} MiB ({:.2f}x) | {:.0f} MiB ({:.2f}x) | - |",
            *(number(part) for each in peaks for part in each),
        ),
    ]


def detection() -> list[Quote]:
    tested = {each["images"] for each in detectors.read_records() if each["domain"] == "clear"}
    studies = detectors.read_records(detectors.STUDIES)
    apart = (detectors.SMOOTH, detectors.RAIN)
    content = [each for each in studies if each["study"] == "narrow" and each["domain"] not in apart]
    choices = [each for each in studies if each["study"] == "choice"]
    chosen = [each["arm"] for each in choices if each["model"] == "YOLOX-nano" and each["arm"].startswith("chose ")]
    images = {each["images"] for each in choices if each["domain"] == "contrast"}
    return [
        Quote("the other {} are tested as they are", *tested),
        Quote("of one group of classes ({:.0f} to {:.0f} each)", *ends(figures(content, "images"))),
        Quote("the fifteen corruptions with {} images each", *images),
        Quote("differed from the default in {} of {} domains only", chosen.count("chose tokens"), len(chosen)),
    ]


def ablation_tables(groups: Sequence[Group]) -> dict[str, str]:
    """For each model, Align's top-1 and what is lost without each part; bold where significant."""
    found = {}
    for group in _of("ablation", groups):
        heads = prompt_curves.NAMES[name_of(group.runs[0].experiment.model)]
        body = [[f"{OURS}, top-1", *(f"{narrow.average(runs):.1f}" for runs in _own(group))]]
        for label, parts in _without(group).items():
            body.append([label, *map(_difference, parts)])
        found[heads] = markdown([heads, *PARTS], body)
    return found


def _difference(gain: Gain) -> str:
    """Bold where significant; ends that round to zero keep their sign, which says so."""
    within = f" ({gain.within.low:+.1f} to {gain.within.high:+.1f})" if gain.within else ""
    text = signed(gain.value) + within
    return f"**{text}**" if gain.side else text


def _of(recipe: str, groups: Sequence[Group]) -> list[Group]:
    return [group for group in groups if group.recipe.name == recipe]


def _own(group: Group) -> list[list[Run]]:
    """Align's runs in each of the parts."""
    return [[run for column in columns for run in group.of(OURS, column)] for columns in PARTS.values()]


def _without(group: Group) -> dict[str, list[Gain]]:
    """Each row less Align, in each of the parts."""
    found = {}
    for label in group.labels:
        if label != OURS:
            both = narrow.pairs(group, label, OURS)
            found[label] = [narrow.gain([pair for name in names for pair in both[name]]) for names in PARTS.values()]
    return found


def ablation(groups: Sequence[Group]) -> list[Quote]:
    orders = rows("orders.md", "| corrupted only |")
    balanced, content = (sum(run.measures.images for run in runs) for runs in _own(_of("ablation", groups)[0])[1:])
    deit, vit = (_without(group) for group in sorted(_of("ablation", groups), key=lambda group: group.setting))

    def lost(label: str, *models: Mapping[str, Sequence[Gain]]) -> tuple[float, float]:
        return ends(-gain.value for model in models for gain in model[label])

    def significant(label: str) -> int:
        return sum(gain.side < 0 for gain in (*vit[label], *deit[label]))

    return [
        Quote(
            "give {:+.1f}, {:+.1f}, {:+.1f} and {:+.1f} on the corruptions, and {:.1f} on clean images. "
            "Their largest loss is {:.1f} points, on JPEG (ViT-Tiny, severity 5)",
            *(*figures(orders, "corrupted only"), min(figures(orders, "clean"))),
            -min(figures(orders, "worst domain")),
        ),
        Quote(
            "FOA, ZOA, NEO, FOZO and PEA {:.0f}, {:.0f}, {:.0f}, {:.0f} and {:.0f} points on ViT-Tiny",
            *(-narrow_gain(groups, label) for label in ("FOA", "ZOA", "NEO", "FOZO", "PEA")),
        ),
        Quote("batches of 32 ({:,} images a column)", balanced),
        Quote("batches of 16 ({:,} images). Top-1 of Align", content),
        Quote(
            "on DeiT-Tiny ({:.1f} to {:.1f} points), the **equaliser** on ViT-Tiny ({:.1f} to {:.1f})",
            *(*lost("without mean", deit), *lost("without equaliser", vit)),
        ),
        Quote(
            "**CLS** earns {:.1f} to {:.1f} points on ViT-Tiny, **groups of 8** rather than 16 earn {:.1f} to {:.1f} "
            "(significant in {} of 6 columns)",
            *(*lost("without CLS", vit), *lost("groups of 16", vit, deit), significant("groups of 16")),
        ),
        Quote("**std** is significant in {} of 6 columns", significant("without std")),
        Quote("**`content_error`** earns {:.1f} points", -deit["without content_error"][2].value),
        Quote("are for its size: {:.1f} MB for a ViT-Tiny", _peaks()[0][3]),
        Quote(
            "by FOZO's loss a hint of {:+.1f} ± {:.1f} for twice the passes",
            *map(number, row("search.md", "| less Align", "Align + SPSA, FOZO's loss")["less Align (95 %)"].split("±")),
        ),
    ]


def narrow_gain(groups: Sequence[Group], label: str) -> float:
    """Of a method on ViT-Tiny over the held-out groups of classes."""
    (group,) = (each for each in _of("narrow", groups) if each.runs[0].experiment.model.startswith(VIT))
    return narrow.gain([pair for both in narrow.pairs(group, label).values() for pair in both]).value


def fozo(cells: Sequence[Cell], groups: Sequence[Group]) -> list[Quote]:
    chosen = [run for group in _of("scaled", groups) for run in group.runs if run.experiment.stream.images == LONG]

    def long(model: str, label: str) -> list[Run]:
        wanted = (f"{model}.onnx", label, "2 passes")
        return [run for run in chosen if (run.experiment.model, run.experiment.label, run.experiment.column) == wanted]

    spread = [gains(long(model, "FOZO scaled"), long(model, BASE)) for model in ("vit", "deit")]
    continual = {cell.model: cell for cell in cells if (cell.scenario, cell.severity) == ("continual", 5)}
    plain, official, scaled = (
        printed("presets.md", rf"\| {label} \| ([\d.]+) \|")[0]
        for label in ("NoAdapt", "official, 2 passes", "scaled, 2 passes")
    )
    prompts = prompt_curves.read(prompt_curves.PROMPTS)
    traced = [each for each in prompts if each.of in prompt_curves.NAMES and each.setting.startswith("official")]
    epsilon = prompt_curves.read(prompt_curves.EPSILON)
    tops = [prompt_curves.picked(epsilon, "bundled", name, "top1")[1] for name in ("Eq. 12", "0.5", "0.2")]
    moved = [each["top1"][-1] - each["top1"][1] for each in lines("ceiling.jsonl") if each["loss"] == "labels"]
    return [
        Quote(
            "long stream loses ({:+.1f} to {:+.1f}, and {:+.1f} to {:+.1f})",
            *(end for each in spread if each for end in ends(each.values.values())),
        ),
        Quote("`official` loses {:.0f} points on ViT-Tiny over", -narrow_gain(groups, "FOZO")),
        Quote(
            "gains {:.1f} and {:.1f} points in one pass, so",
            *(continual[model].gain(OURS).value for model in ("ViT-Tiny", "DeiT-Tiny")),
        ),
        Quote(
            "with {:.1f} % unadapted, `official` changes top-1 by {:+.1f} points and `scaled` by {:+.1f}",
            *(plain, official - plain, scaled - plain),
        ),
        Quote("**Prompts grow** to {:.0f} times", max(each.value for each in traced if each.quantity == "norm")),
        Quote(
            "Alignment, a sum over features, is {:.0f} to {:.0f} % of it",
            *ends(100 * each.value for each in traced if each.quantity == "share"),
        ),
        *_landscape(),
        Quote("on 320 other images, move top-1 by {:+.1f} to {:+.1f} (", *ends(moved)),
        Quote(
            "top-1 is {:.1f} ± {:.1f} with Eq. 12, {:.1f} ± {:.1f} at a fixed 0.5 and {:.1f} ± {:.1f} at 0.2",
            *(part for top in tops for part in (fmean(top), student.ppf(0.975, len(top) - 1) * sem(top))),
        ),
    ]


def _landscape() -> list[Quote]:
    drawn = [[each for each in lines("landscape.jsonl") if each["model"] == model] for model in (VIT, DEIT)]

    def correlated(loss: str) -> list[float]:
        return [end for model in drawn for end in ends(each["with_cross_entropy"][loss] for each in model)]

    def tops(name: str) -> list[float]:
        return [fmean(each["top1"][name] for each in model) for model in drawn]

    return [
        Quote("by {:.2f} to {:.2f} on ViT-Tiny and {:.2f} to {:.2f} on DeiT-Tiny (the four", *correlated("official")),
        Quote("That of `scaled` does by {:.2f} to {:.2f} and {:.2f} to {:.2f}.", *correlated("scaled")),
        Quote(
            "Top-1 there is {:.1f} and {:.1f} %, with the shift {:.1f} and {:.1f} %, with the shift and a random "
            "prompt {:.1f} and {:.1f} %. The best of the 24 in each batch *by the labels* has {:.1f} and {:.1f} %",
            *(top for name in ("plain", "shift", "draw", "best by labels") for top in tops(name)),
        ),
    ]


def demo() -> list[Quote]:
    scenes = every("demo.md", r"^ (?:Clean|Fog|Contrast|Motion blur|Gaussian noise) +([\d.]+) +([\d.]+) ")[:5]
    plain, adapted = zip(*scenes, strict=True)
    gained = printed("demo.md", r"([\d.]+) points more than the plain .*?difference: \+([\d.]+) to \+([\d.]+)\)")
    ahead = every("demo.md", r"([\d.]+) points ahead of FOZO \(95 % interval ([\d.]+) to ([\d.]+)\)")
    return [
        Quote(
            "reports each change without labels, after {:.0f} images", *printed("demo.md", r"worse, after (\d+) images")
        ),
        Quote("| plain | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} |", *plain),
        Quote("| Align | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} |", *adapted),
        Quote("Align gains {:.1f} points ({:.1f} to {:.1f})", *gained),
        Quote(
            "it is {:.1f} points ahead of FOZO in float32 ({:.1f} to {:.1f}) and {:.1f} in INT8 ({:.1f} to {:.1f})",
            *(figure for each in ahead for figure in each),
        ),
    ]


def camera() -> list[Quote]:
    dogs = {each["own images"]: each for each in rows("calibration.md", "## More images of one camera", "dogs")}
    own, mixed = dogs["32"]["own alone"], dogs["0"]["512 mixed alone"]
    return [
        Quote(
            "{:.1f} % with 32 own clean images, {:.1f} % with 512 mixed ones, {:.1f} % unadapted. Gains are ± {:.1f}.",
            *(number(own), number(mixed), number(dogs["32"]["NoAdapt"])),
            max(number(text.partition("±")[2]) for text in (own, mixed)),
        )
    ]


def models() -> list[Quote]:
    kinds = ("clean", "contrast", "fog", "gaussian noise", "glass blur", "**mean of the corruptions**")
    boxes = (row("blackbox.md", "| as it is |", kind) for kind in kinds)
    floats = [each for each in rows("settled.md", "| the model reads |") if "floats" in each["the model reads"]]
    noticed = [text for each in floats for text in [*each.values()][1:] if "*" not in text]
    return [
        Quote("{:.0f} to {:.0f} of 32 if they were resized as floats", *ends(map(number, noticed))),
        *(
            Quote(
                f"| {each['']} | {{}} | {{}} | {{}} ± {{}} |",
                *(each["as it is"], each["adapter"], *each["difference"].split(" ± ")),
            )
            for each in boxes
        ),
    ]


def corruptions() -> list[Quote]:
    found = json.loads(record("unadapted.json"))
    tops = found["top1"]
    by_level = [[tops[f"{kind}/{level}"] for kind in KINDS] for level in (3, 5)]
    return [
        Quote("without adaptation, {} ImageNet validation crops", found["conditions"]["images"]),
        Quote("Clean: {:.1f} %", tops["clean"]),
        Quote("| **mean** | **{:.1f}** | **{:.1f}** |", *map(fmean, by_level)),
        *(Quote(f"| {kind} | {{:.1f}} | {{:.1f}} |", *both) for kind, *both in zip(KINDS, *by_level, strict=True)),
    ]


def methods() -> list[Quote]:
    more = [
        number(each["extra memory"])
        for each in rows("methods.md", "| extra memory |")
        if "backward" in each["passes per image"]
    ]
    return [Quote("{:.1f} to {:.1f} GB more for a ViT-Tiny", *ends(2**20 * each / 1e9 for each in more))]


def quotes(cells: Sequence[Cell], groups: Sequence[Group]) -> dict[str, list[Quote]]:
    """By page."""
    return {
        "docs/monitoring.md": quotes_service.monitoring(),
        "docs/serving.md": quotes_service.serving(),
        "docs/safety.md": quotes_service.safety(),
        "docs/cost.md": cost(),
        "docs/edge.md": edge(),
        "docs/detectors.md": detection(),
        "docs/ablation.md": ablation(groups),
        "docs/fozo.md": fozo(cells, groups),
        "docs/bench.md": demo(),
        "docs/camera.md": camera(),
        "docs/models.md": models(),
        "docs/corruptions.md": corruptions(),
        "docs/methods.md": methods(),
    }
