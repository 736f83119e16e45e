"""docs/results.md: every method on every corruption, and the paper's ablations at a size that two cores can run.

    python benchmarks/results.py run --imagenet DIR --model A.safetensors --model B.safetensors --out RUNS
    python benchmarks/results.py write RUNS --page docs/results.md

``run`` gives one ``fozo bench`` command after another, for each model, severity and recipe; kill it when you like and
give the same command again. ``--size RECIPE=IMAGES`` or ``RECIPE=IMAGES@PASSES`` changes a recipe's size. ``write``
turns whatever is finished below a folder into the page, other runs of these recipes too: other severities, or
``--methods noadapt,align``. Every number and every verdict on the page is computed from the runs; text between the two
``by hand`` comments is the author's and is kept.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from fozo.bench.measures import RESAMPLES, BatchRecord, Interval, interval
from fozo.bench.plan import AVERAGE
from fozo.bench.report.tables import SHORT, table_of, words
from fozo.bench.store import Group, collect
from fozo.errors import FozoError
from fozo.io import atomic_write

SIZES = {
    "rivals": "128",
    "vs_noadapt": "256",
    "streams": "",
    "passes": "",
    "batches": "",
    "table5": "32@4",
    "tableD1": "16",
    "tableD2": "16",
    "tableD3": "16",
    "figure3": "128@4",
    "figureE1": "16@4",
    "figure1": "16@4",
}
"""Images of each corruption, and passes where the recipe's 26 or 28 would take days on a processor. Recipes without a
size are fozo's own and bring theirs, and their severity, along."""
SEEDS = {"streams": "0,1,2"}
RIVALS = "rivals"
VS_NOADAPT = "vs_noadapt"
BASE = "NoAdapt"
OWN = ("streams", "passes", "batches")
"""Recipes of fozo's own beside ``rivals``; the others are the paper's."""
ELSEWHERE = ("narrow", "held_out")
"""Recipes whose tables benchmarks/narrow.py makes."""
HAND = ("<!-- by hand: what stands here is kept -->", "<!-- end -->")


# --- statistics ------------------------------------------------------------------------------------------------------


def paired(ours: Sequence[BatchRecord], theirs: Sequence[BatchRecord], seed: int = 0) -> tuple[float, Interval | None]:
    """Difference of two runs' averages over the same batches, in points, and its interval.

    Records keep counts, not single images, so pairs are of batches: what is hard for one run is hard for the other,
    and leaves the difference. From each domain's n batches n - 1 are drawn with replacement, which gives the variance
    without bias even where n is 2 (Rao and Wu, 1988); a domain with a single batch has no interval.
    """
    if [(r.domain, r.images) for r in ours] != [(r.domain, r.images) for r in theirs]:
        raise FozoError("only runs over the same batches can be paired; run both with the same seed and batch size")
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, 1], dtype=np.uint64)))
    means, drawn = [], []
    for name in dict.fromkeys(record.domain for record in ours):
        pairs = [(a.correct - b.correct, a.images) for a, b in zip(ours, theirs, strict=True) if a.domain == name]
        gain, images = np.array(pairs, dtype=np.float64).T
        means.append(100 * gain.sum() / images.sum())
        if len(pairs) > 1:
            times = generator.multinomial(len(pairs) - 1, np.full(len(pairs), 1 / len(pairs)), RESAMPLES)
            drawn.append(100 * (times @ gain) / (times @ images))
    complete = len(drawn) == len(means)
    return float(np.mean(means)), interval(np.mean(drawn, axis=0)) if complete else None


def over_seeds(seeds: Sequence[tuple[Sequence[BatchRecord], Sequence[BatchRecord]]]) -> tuple[float, Interval | None]:
    """Mean of the paired differences of several seeds.

    Seeds change the order of the images, not the images. So the interval is not narrowed by their number: its ends are
    the means of the seeds' own.
    """
    found = [paired(ours, theirs) for ours, theirs in seeds]
    within = [each for _, each in found if each is not None]
    ends = [float(np.mean([getattr(each, end) for each in within])) for end in ("low", "high") if within]
    return float(np.mean([gain for gain, _ in found])), Interval(*ends) if ends else None


# --- run -----------------------------------------------------------------------------------------------------------


def folder(model: str, models: Sequence[str]) -> str:
    """Name a model's folder by its first letters, or by its whole name where two models begin alike."""
    name = Path(model).name.split(".")[0]
    short = [Path(other).name[:4] for other in models]
    return name[:4] if short.count(name[:4]) == 1 else name


def commands(arguments: argparse.Namespace) -> Iterator[list[str]]:
    """List the ``fozo bench`` commands.

    ``vs_noadapt`` is run at all severities; the ablations at the last only, which is the paper's.
    """
    sizes = dict(SIZES)
    for change in arguments.size:
        name, _, size = change.partition("=")
        if name not in sizes or not re.fullmatch(r"\d+(@\d+)?", size):
            raise FozoError(f"--size is {change!r}; give RECIPE=IMAGES or RECIPE=IMAGES@PASSES of {', '.join(sizes)}")
        sizes[name] = size
    recipes = arguments.recipe or list(sizes)
    unknown = [name for name in recipes if name not in sizes]
    if unknown:
        raise FozoError(f"there is no recipe {unknown[0]!r} on the page; choose from {', '.join(sizes)}")
    for recipe in recipes:
        for model in arguments.model:
            own = folder(model, arguments.model)
            images, _, passes = sizes[recipe].partition("@")
            for severity in {RIVALS: arguments.severity, VS_NOADAPT: range(1, 6)}.get(recipe, arguments.severity[-1:]):
                size = ["--severity", str(severity), "--images", images] if images else []
                out = arguments.out / (f"{own}-s{severity}" if images else own)
                yield [
                    "bench", recipe, "--model", model, "--imagenet", arguments.imagenet, *size,
                    *(["--passes", passes] if passes else []),
                    *(["--seeds", SEEDS[recipe]] if recipe in SEEDS else []),
                    "--calibration", str(arguments.calibration), "--threads", str(arguments.threads), "--out", str(out),
                ]  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Give the commands in turn; a failed one ends the whole with its own sentence."""
    for command in commands(arguments):
        print("fozo " + " ".join(command), flush=True)
        code = subprocess.run([sys.executable, "-m", "fozo", *command]).returncode
        if code:
            sys.exit(code)


# --- write ---------------------------------------------------------------------------------------------------------


def public(command: str) -> str:
    """Leave out of a command where things lie on the machine that ran it."""
    command = re.sub(r"--out \S+ ?", "", command)
    command = re.sub(r"bench \S*/(\S+\.toml)", r"bench \1", command)
    command = re.sub(r"(--imagenet(?:-\w+)?|--image-list) \S+", r"\1 DIR", command)
    return re.sub(r"--model \S*/", "--model ", command).strip()


def difference(gain: float, within: Interval | None) -> str:
    """Write a gain over the plain model, with its interval; bold where the interval leaves zero out."""
    if within is None:
        return f"{gain:+.2f}"
    text = f"{gain:+.2f} ({within.low:+.2f} to {within.high:+.2f})"
    return f"**{text}**" if within.low > 0 or within.high < 0 else text


def rivals_table(group: Group) -> str:
    """One table of all methods: corruptions, average, gain, and cost beside the plain model's."""
    base = group.first(BASE) if BASE in group.labels else None
    domains = list(group.runs[0].measures.domains)
    best = {name: max(group.first(label).measures.domains[name] for label in group.labels) for name in domains}
    kinds = [SHORT.get(name.split("/")[0], name) for name in domains]
    heads = ["", *kinds, "Avg (95 %)", f"less {BASE} (95 %)", "Passes", "Memory (MiB)"]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for label in group.labels:
        one = group.first(label)
        own, within = one.measures, one.measures.average_interval
        cells = [f"**{own.domains[n]:.1f}**" if own.domains[n] == best[n] else f"{own.domains[n]:.1f}" for n in domains]
        gain = "-" if base is None or label == BASE else difference(*paired(one.records(), base.records()))
        lines.append(
            f"| {label} | "
            + " | ".join(
                [*cells, f"{own.average:.2f} ({within.low:.2f}-{within.high:.2f})", gain,
                 f"{own.passes_per_image:g}", f"{one.conditions.memory / 2**20:.0f}"]
            ) + " |"
        )  # fmt: skip
    return "\n".join(lines)


def never_worse(groups: Sequence[Group]) -> str:
    """Align against NoAdapt at every severity: on average, on clean images, and in the worst domain."""
    heads = ["model", "severity", "images", "row", BASE, "top-1", "difference (95 %)", "clean", "worst domain",
             "domains below -0.5"]  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for group in groups:
        base = group.first(BASE)
        for own in (group.first(label) for label in group.labels if label != BASE):
            gains = {name: value - base.measures.domains[name] for name, value in own.measures.domains.items()}
            worst = min(gains, key=lambda name: gains[name])
            plan, gain = own.experiment.stream, paired(own.records(), base.records())
            cells = [
                own.experiment.model.split(".")[0], plan.severity, plan.images, own.experiment.label,
                f"{base.measures.average:.2f}", f"{own.measures.average:.2f}", difference(*gain),
                f"{gains['clean']:+.1f}", f"{worst.split('/')[0]} {gains[worst]:+.1f}",
                sum(each < -0.5 for each in gains.values()),
            ]  # fmt: skip
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def streams_table(group: Group) -> str:
    """Mean over seeds and gain over the plain model, for each kind of stream."""
    columns = list(dict.fromkeys(run.experiment.column for run in group.runs))
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for label in group.labels:
        cells = []
        for column in columns:
            runs = group.of(label, column)
            bases = {run.experiment.seed: run for run in group.of(BASE, column)}
            text = f"{np.mean([run.measures.average for run in runs]):.1f}" if runs else "-"
            both = [(run, bases[run.experiment.seed]) for run in runs if run.experiment.seed in bases]
            if both and label != BASE:
                gain, within = over_seeds([(run.records(), base.records()) for run, base in both])
                if within is not None:
                    text += f" {gain:+.1f} ({within.low:+.1f} to {within.high:+.1f})"
                    text = f"**{text}**" if within.low > 0 or within.high < 0 else text
            cells.append(text)
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def verdict(group: Group) -> str:
    """Say on which side of zero each method's difference to the plain model lies, by its interval."""
    sides: dict[str, list[str]] = {"above zero": [], "below zero": [], "across zero": [], "unknown (no interval)": []}
    for label in group.labels:
        if label != BASE:
            _, within = paired(group.first(label).records(), group.first(BASE).records())
            if within is None:  # of a domain with a single batch
                sides["unknown (no interval)"].append(label)
                continue
            side = "above" if within.low > 0 else "below" if within.high < 0 else "across"
            sides[f"{side} zero"].append(label)
    found = "; ".join(f"{side}: {', '.join(labels)}" for side, labels in sides.items() if labels)
    return f"Where the interval of the difference to {BASE} lies: {found}."


def correlation(ours: Sequence[float], paper: Sequence[float]) -> float | None:
    """Spearman's rank correlation; ``None`` where there are too few points or one side is flat."""
    if len(ours) < 3 or len(set(ours)) == 1 or len(set(paper)) == 1:
        return None
    return float(spearmanr(ours, paper).statistic)


def agreement(group: Group) -> str:
    """Compare the order of our numbers with the paper's: along each axis, or down a column; and say if it is noise."""
    table = table_of(group)
    column = next((name for name in reversed(table.columns) if name.endswith(" s")), AVERAGE)  # Table C.1's last budget
    axis = {run.experiment.label: run.experiment.axis for run in group.runs}
    found = []
    for name in dict.fromkeys(axis.values()):
        cells = [row[table.columns.index(column)] for label, row in table.rows if axis[label] == name]
        pairs = [(cell.ours, cell.paper) for cell in cells if cell is not None and cell.paper is not None]
        value = correlation([ours for ours, _ in pairs], [paper for _, paper in pairs])
        if value is not None:
            found.append(f"{name or column}: Spearman's rho {value:+.2f} over {len(pairs)} points")
    averages = [run.measures.average for run in group.runs]
    widths = [within.high - within.low for within in (run.measures.average_interval for run in group.runs)]
    noise = (
        f"Our averages span {max(averages) - min(averages):.2f} points; "
        f"the interval of a single one is {np.mean(widths):.2f} wide."
    )
    if not found:
        return f"The paper gives too few numbers for a rank correlation. {noise}"
    return f"Order of the rows, ours against the paper's: {'; '.join(found)}. {noise}"


def ablation(group: Group) -> str:
    """A recipe's averages beside the paper's, with intervals; Table C.1's budgets where it has them."""
    table = table_of(group)
    shown = [name for name in table.columns if name == AVERAGE or name.endswith(" s")]
    budgets = [name for name in shown if name != AVERAGE]
    shown = [AVERAGE, *budgets[:: max(1, len(budgets) // 4)]] if budgets else shown
    lines = ["| | " + " | ".join(shown) + " | 95 % of Avg |", "|---|" + "---:|" * (len(shown) + 1)]
    for label, cells in table.rows:
        by_name = dict(zip(table.columns, cells, strict=True))
        average = by_name[AVERAGE]
        assert average is not None and average.low is not None and average.high is not None
        texts = [words(by_name[name]) for name in shown]
        lines.append(f"| {label} | " + " | ".join(texts) + f" | {average.low:.2f}-{average.high:.2f} |")
    return "\n".join(lines)


def conditions(group: Group) -> str:
    """Say what was run, on what, and with which versions."""
    runs = group.runs
    plans, machine = [run.experiment.stream for run in runs], runs[0].conditions.environment
    images = dict.fromkeys("all" if plan.images is None else str(plan.images) for plan in plans)
    sizes = sorted({plan.batch_size for plan in plans})
    seeds = sorted({run.experiment.seed for run in runs})
    typed = dict.fromkeys(public(run.conditions.command) for run in runs)
    packages = ", ".join(
        f"{name} {version}" for name, version in machine.packages.items()
        if name in ("fozo", "numpy", "torch", "timm", "pillow", "cma")
    )  # fmt: skip
    return (
        "```\n" + "\n".join(typed) + "\n```\n\n"
        f"{' or '.join(images)} images of each corruption in batches of {', '.join(map(str, sizes))}, seeds "
        f"{', '.join(map(str, seeds))}, {', '.join(dict.fromkeys(plan.scenario for plan in plans))}; threads: "
        f"{machine.threads}, on {machine.processor} ({machine.cores} cores); Python {machine.python}, {packages}."
    )


def section(group: Group) -> str:
    """One table with its conditions."""
    if group.recipe.name.split("-")[0] in OWN:
        body = [streams_table(group)]
    elif group.recipe.name.startswith(RIVALS):
        body = [rivals_table(group), verdict(group)] if BASE in group.labels else [rivals_table(group)]
    else:
        body = [*([group.recipe.note] if group.recipe.note else []), ablation(group), agreement(group)]
    return "\n\n".join([f"### {group.recipe.title}\n\n{group.setting}", *body, conditions(group)])


def page(groups: Sequence[Group], hand: str) -> str:
    """The whole page."""
    groups = [group for group in groups if group.recipe.name.split("-")[0] not in ELSEWHERE]
    rivals = [group for group in groups if group.recipe.name.startswith(RIVALS)]
    plain = [group for group in groups if group.recipe.name == VS_NOADAPT]
    own = [group for group in groups if group.recipe.name.split("-")[0] in OWN]
    others = [group for group in groups if group not in (*rivals, *plain, *own)]
    parts = [
        "# Results",
        "Written by `benchmarks/results.py` from finished runs; edit only what is marked as by hand. Accuracies are in "
        "percent. Intervals are 95 % bootstrap intervals of one seed: they tell of the choice of images, not of the "
        "method's own draws, and of many at once some miss. The difference to NoAdapt is paired over batches, because "
        "both saw the same ones; it is bold where its interval leaves zero out. Memory is the peak of the whole "
        "process. Times are not shown: the machine had other work; benchmarks/ measures speed side by side.",
        "\n".join([HAND[0], hand, HAND[1]]),
    ]
    if plain:
        third = [group for group in plain if group.runs[0].experiment.stream.severity == 3]
        parts += [
            f"## Align against {BASE}, on clean images and 15 corruptions at every severity",
            f"Averages are over these 16 domains, one after the other. `fozo bench {VS_NOADAPT}`; for each model:",
            never_worse(plain),
            *dict.fromkeys(map(conditions, third)),
        ]
    if rivals:
        parts += ["## Every method on every corruption", *map(section, rivals)]
    if own:
        parts += ["## Other streams, and more passes", *map(section, own)]
    if others:
        parts += ["## The paper's ablations and curves, at reduced size", *map(section, others)]
    return "\n\n".join(parts) + "\n"


def kept(path: Path) -> str:
    """Find what the author wrote on an earlier version of the page."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    _, found, rest = text.partition(HAND[0])
    inside, end, _ = rest.partition(HAND[1])
    if text and not (found and end):
        raise FozoError(f"{path} has lost its comments {HAND[0]} and {HAND[1]}; put them back, or remove the page")
    return inside.strip("\n")


def write(arguments: argparse.Namespace) -> None:
    """Turn finished runs into the page."""
    text = page(collect(arguments.runs), kept(arguments.page))
    with atomic_write(arguments.page) as stream:
        stream.write(text.encode())
    print(arguments.page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(required=True)
    running = actions.add_parser("run")
    running.add_argument("--imagenet", required=True)
    running.add_argument("--model", action="append", required=True)
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--severity", type=int, nargs="+", default=[3, 5])
    running.add_argument("--recipe", action="append", help="only these; all by default")
    running.add_argument("--size", action="append", default=[], metavar="RECIPE=IMAGES[@PASSES]")
    running.add_argument("--calibration", type=int, default=512)
    running.add_argument("--threads", type=int, default=1)
    running.set_defaults(act=run)
    writing = actions.add_parser("write")
    writing.add_argument("runs", type=Path)
    writing.add_argument("--page", type=Path, default=Path("docs/results.md"))
    writing.set_defaults(act=write)
    arguments = parser.parse_args()
    try:
        arguments.act(arguments)
    except FozoError as error:
        print(f"results: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:  # the command under way has said how to go on
        sys.exit(130)


if __name__ == "__main__":
    main()
