"""docs/results.md: every method on every corruption, and the paper's ablations at a size that two cores can run.

    python benchmarks/results.py run --imagenet DIR --model A.safetensors --model B.safetensors --out RUNS
    python benchmarks/results.py write RUNS --page docs/results.md

``run`` gives one ``fozo bench`` command after another, for each model, severity and recipe; kill it when you like and
give the same command again. ``--size RECIPE=IMAGES`` or ``RECIPE=IMAGES@PASSES`` changes a recipe's size. ``write``
turns whatever is finished into the page. Every number and every verdict on the page is computed from the runs; text
between the two ``by hand`` comments is the author's and is kept.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fozo.bench.collect import Group, Run, collect
from fozo.bench.measures import paired
from fozo.bench.recipe import AVERAGE
from fozo.bench.tables import SHORT, table_of, words
from fozo.core.files import atomic_write
from fozo.errors import FozoError

SIZES = {
    "rivals": "128",
    "table5": "64@4",
    "tableD1": "64",
    "tableD2": "64",
    "tableD3": "64",
    "figure3": "256@4",
    "figureE1": "64@4",
    "figure1": "256@4",
}
"""Images of each corruption, and passes where the recipe's 26 or 28 would take days on a processor."""
RIVALS = "rivals"
BASE = "NoAdapt"
HAND = ("<!-- by hand: what stands here is kept -->", "<!-- end -->")


# --- run -----------------------------------------------------------------------------------------------------------


def folder(model: str, models: Sequence[str], severity: int) -> str:
    """Name a model's folder by its first letters, or by its whole name where two models begin alike."""
    name = Path(model).name.split(".")[0]
    short = [Path(other).name[:4] for other in models]
    return f"{name[:4] if short.count(name[:4]) == 1 else name}-s{severity}"


def commands(arguments: argparse.Namespace) -> Iterator[list[str]]:
    """List the ``fozo bench`` commands; the ablations are run at the last severity only, which is the paper's."""
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
            for severity in arguments.severity if recipe == RIVALS else arguments.severity[-1:]:
                images, _, passes = sizes[recipe].partition("@")
                out = arguments.out / folder(model, arguments.model, severity)
                yield [
                    "bench", recipe, "--model", model, "--imagenet", arguments.imagenet, "--severity", str(severity),
                    "--images", images, *(["--passes", passes] if passes else []),
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
    command = re.sub(r"(--imagenet(?:-\w+)?|--image-list) \S+", r"\1 DIR", command)
    return re.sub(r"--model \S*/", "--model ", command).strip()


def difference(own: Run, base: Run) -> str:
    """Write a run's gain over the plain model, with its interval; bold where the interval leaves zero out."""
    gain, within = paired(own.records(), base.records())
    if within is None:
        return f"{gain:+.2f}"
    text = f"{gain:+.2f} ({within.low:+.2f} to {within.high:+.2f})"
    return f"**{text}**" if within.low > 0 or within.high < 0 else text


def rivals_table(group: Group) -> str:
    """One table of all methods: corruptions, average, gain, and cost beside the plain model's."""
    base = group.first(BASE) if BASE in group.labels else None
    domains = list(group.runs[0].measures["domains"])
    best = {name: max(group.first(label).measures["domains"][name] for label in group.labels) for name in domains}
    kinds = [SHORT.get(name.split("/")[0], name) for name in domains]
    heads = ["", *kinds, "Avg (95 %)", f"less {BASE} (95 %)", "Passes", "Time", "Memory (MiB)"]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for label in group.labels:
        one = group.first(label)
        own, within = one.measures, one.measures["average_interval"]
        cells = [f"**{own['domains'][n]:.1f}**" if own["domains"][n] == best[n] else f"{own['domains'][n]:.1f}"
                 for n in domains]  # fmt: skip
        slower = "-" if base is None else f"{one.conditions['seconds'] / base.conditions['seconds']:.1f}x"
        gain = "-" if base is None or label == BASE else difference(one, base)
        lines.append(
            f"| {label} | "
            + " | ".join(
                [*cells, f"{own['average']:.2f} ({within['low']:.2f}-{within['high']:.2f})", gain,
                 f"{one.result['passes']:g}", slower, f"{one.conditions['memory'] / 2**20:.0f}"]
            ) + " |"
        )  # fmt: skip
    return "\n".join(lines)


def verdict(group: Group) -> str:
    """Say on which side of zero each method's difference to the plain model lies, by its interval."""
    sides: dict[str, list[str]] = {"above zero": [], "below zero": [], "across zero": []}
    for label in group.labels:
        if label != BASE:
            _, within = paired(group.first(label).records(), group.first(BASE).records())
            side = "above" if within and within.low > 0 else "below" if within and within.high < 0 else "across"
            sides[f"{side} zero"].append(label)
    found = "; ".join(f"{side}: {', '.join(labels)}" for side, labels in sides.items() if labels)
    return f"Where the interval of the difference to {BASE} lies: {found}."


def ranks(values: Sequence[float]) -> np.ndarray:
    """Rank values from 0, equal ones sharing their mean rank."""
    array = np.asarray(values)
    return np.array([((array < value).sum() + (array <= value).sum() - 1) / 2 for value in array])


def correlation(ours: Sequence[float], paper: Sequence[float]) -> float | None:
    """Spearman's rank correlation; ``None`` where there are too few points or one side is flat."""
    a, b = ranks(ours), ranks(paper)
    if len(a) < 3 or a.std() == 0 or b.std() == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def agreement(group: Group) -> str:
    """Compare the order of our numbers with the paper's: along each axis, or down a column; and say if it is noise."""
    table = table_of(group)
    column = next((name for name in reversed(table.columns) if name.endswith(" s")), AVERAGE)  # Table C.1's last budget
    axis = {run.row.label: run.row.axis for run in group.runs}
    found = []
    for name in dict.fromkeys(axis.values()):
        cells = [row[table.columns.index(column)] for label, row in table.rows if axis[label] == name]
        pairs = [(cell.ours, cell.paper) for cell in cells if cell is not None and cell.paper is not None]
        value = correlation([ours for ours, _ in pairs], [paper for _, paper in pairs])
        if value is not None:
            found.append(f"{name or column}: Spearman's rho {value:+.2f} over {len(pairs)} points")
    averages = [run.measures["average"] for run in group.runs]
    widths = [within["high"] - within["low"] for within in (run.measures["average_interval"] for run in group.runs)]
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
    plan, machine = runs[0].result["stream"], runs[0].conditions["environment"]
    images = "all" if plan["images"] is None else plan["images"]
    sizes = sorted({run.result["stream"]["batch_size"] for run in runs})
    seeds = sorted({run.seed for run in runs})
    typed = dict.fromkeys(public(run.conditions["command"]) for run in runs)
    packages = ", ".join(
        f"{name} {version}" for name, version in machine["packages"].items()
        if name in ("fozo", "numpy", "torch", "timm", "pillow", "cma")
    )  # fmt: skip
    return (
        "```\n" + "\n".join(typed) + "\n```\n\n"
        f"{images} images of each corruption in batches of {', '.join(map(str, sizes))}, seeds "
        f"{', '.join(map(str, seeds))}, {plan['scenario']}; threads: {machine['threads']}, on "
        f"{machine['processor']} ({machine['cores']} cores); Python {machine['python']}, {packages}."
    )


def section(group: Group) -> str:
    """One table with its conditions."""
    if group.recipe.name.startswith(RIVALS):
        body = [rivals_table(group), verdict(group)] if BASE in group.labels else [rivals_table(group)]
    else:
        body = [*([group.recipe.note] if group.recipe.note else []), ablation(group), agreement(group)]
    return "\n\n".join([f"### {group.recipe.title}\n\n{group.setting}", *body, conditions(group)])


def page(groups: Sequence[Group], hand: str) -> str:
    """The whole page."""
    rivals = [group for group in groups if group.recipe.name.startswith(RIVALS)]
    others = [group for group in groups if group not in rivals]
    parts = [
        "# Results",
        "Written by `benchmarks/results.py` from finished runs; edit only what is marked as by hand. Accuracies are in "
        "percent. Intervals are 95 % bootstrap intervals of one seed: they tell of the choice of images, not of the "
        "method's own draws, and of many at once some miss. The difference to NoAdapt is paired over batches, because "
        "both saw the same ones; it is bold where its interval leaves zero out. Times are ratios to NoAdapt's on the "
        "same machine, which may have been busy; memory is the peak of the whole process.",
        "\n".join([HAND[0], hand, HAND[1]]),
    ]
    if rivals:
        parts += ["## Every method on every corruption", *map(section, rivals)]
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
