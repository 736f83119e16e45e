"""Tables of the recipes narrow, held_out and ablation: what adaptation does to content, and what Align's parts gain.

    fozo bench narrow --model A.safetensors --imagenet DIR --seeds 0,1,2 --out RUNS
    fozo bench held_out --model A.safetensors --imagenet DIR --severity 3 --seeds 0,1,2 --out RUNS
    python -m benchmarks.narrow RUNS

Prints Markdown, of all finished runs of these recipes below a folder. Differences to NoAdapt are paired over batches
(``over_seeds``), averaged over groups, domains and seeds. A group or domain counts as below when
it lost more than half a point, and a group as significantly below when the interval of its difference excludes zero.
"""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import numpy as np

from benchmarks.common import markdown, refusals
from fozo.bench.gains import BASE, Gain, Gains
from fozo.bench.measures import RESAMPLES, BatchRecord, Interval
from fozo.bench.report.tables import SHORT
from fozo.bench.store import Group, Run, collect
from fozo.data.groups import TUNING
from fozo.errors import FozoError
from fozo.types import Array

BELOW = -0.5
"""Points that count as a loss."""
Pairs: TypeAlias = Sequence[tuple[Run, Run]]
"""Runs of a method, each beside NoAdapt's over the same batches."""


def by_batch(ours: Sequence[BatchRecord], theirs: Sequence[BatchRecord], seed: int = 0) -> Gains:
    """Pair two runs batch by batch, for records that keep counts alone.

    From each domain's n batches n - 1 are drawn with replacement, which gives the variance without bias even where n is
    2 (Rao and Wu, 1988); a domain with a single batch has no interval. A last batch of less than half the others' size
    counts with the one before it: drawn twice, a single image would be a gain of 100 points.
    """
    if batches(ours) != batches(theirs):
        raise FozoError("only runs over the same batches can be paired; run both with the same seed and batch size")
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, 1], dtype=np.uint64)))
    values: dict[str, float] = {}
    draws: dict[str, Array | None] = {}
    for name in dict.fromkeys(record.domain for record in ours):
        pairs = [(a.correct - b.correct, a.images) for a, b in zip(ours, theirs, strict=True) if a.domain == name]
        if len(pairs) > 1 and 2 * pairs[-1][1] < pairs[0][1]:
            pairs[-2:] = [(pairs[-2][0] + pairs[-1][0], pairs[-2][1] + pairs[-1][1])]
        gain, images = np.array(pairs, dtype=np.float64).T
        values[name], draws[name] = float(100 * gain.sum() / images.sum()), None
        if len(pairs) > 1:
            times = generator.multinomial(len(pairs) - 1, np.full(len(pairs), 1 / len(pairs)), RESAMPLES)
            draws[name] = 100 * (times @ gain) / (times @ images)
    return Gains(values, draws)


def batches(records: Sequence[BatchRecord]) -> list[tuple[str, int]]:
    return [(record.domain, record.images) for record in records]


def over_seeds(seeds: Sequence[tuple[Sequence[BatchRecord], Sequence[BatchRecord]]]) -> Gain:
    """Mean over several seeds of the difference of two runs' averages, paired by batch.

    Seeds change the order of the images, not the images. So the interval is not narrowed by their number: its ends are
    the means of the seeds' own.
    """
    found = [by_batch(ours, theirs).mean for ours, theirs in seeds]
    within = [gain.within for gain in found if gain.within is not None]
    ends = [float(np.mean([getattr(each, end) for each in within])) for end in ("low", "high") if within]
    return Gain(float(np.mean([gain.value for gain in found])), Interval(*ends) if ends else None)


def difference(gain: Gain) -> str:
    """Write a gain over the plain model, with its interval; bold where the interval excludes zero."""
    within = gain.within
    text = f"{gain.value:+.2f}" + (f" ({within.low:+.2f} to {within.high:+.2f})" if within is not None else "")
    return f"**{text}**" if gain.side else text


def pairs(group: Group, label: str, base_label: str = BASE) -> dict[str, Pairs]:
    """Find a row's runs by column: a pair for each seed that both sides have finished."""
    base = {
        (run.experiment.column, run.experiment.seed): run for run in group.runs if run.experiment.label == base_label
    }
    found: dict[str, list[tuple[Run, Run]]] = {}
    for run in group.runs:
        key = (run.experiment.column, run.experiment.seed)
        if run.experiment.label == label and key in base:
            found.setdefault(key[0], []).append((run, base[key]))
    return dict(found)


def average(runs: Iterable[Run]) -> float:
    return float(np.mean([run.measures.average for run in runs]))


def gain(both: Pairs) -> Gain:
    """Difference over all columns and domains of the pairs, and its interval: mean over seeds."""
    seeds: dict[int, tuple[list[BatchRecord], list[BatchRecord]]] = {}
    for pair in both:
        sides = seeds.setdefault(pair[0].experiment.seed, ([], []))
        for side, run in zip(sides, pair, strict=True):  # fog on dogs and fog on food are two domains
            side += [replace(each, domain=f"{run.experiment.column} {each.domain}") for each in run.records()]
    return over_seeds(list(seeds.values()))


def by_domain(both: Pairs) -> dict[str, float]:
    """Difference in each domain, over all columns and seeds."""
    return {
        name: float(np.mean([own.measures.domains[name] - base.measures.domains[name] for own, base in both]))
        for name in both[0][0].measures.domains
    }


def narrow_table(group: Group, base: str = BASE) -> str:
    """One row a method: on average, by corruption, and in the group of classes that it does worst on."""
    kinds = [name.split("/")[0] for name in group.runs[0].measures.domains]
    heads = ["", "groups", "Avg", f"less {base} (95 %)", *(SHORT.get(kind, kind) for kind in kinds), "worst group",
             f"groups below {BELOW}", "significantly"]  # fmt: skip
    rows: list[list[object]] = []
    for label in group.labels:
        found = pairs(group, label, base)
        everything = [pair for each in found.values() for pair in each]
        if not everything:
            continue
        cells: list[object] = [label, len(found), f"{average(own for own, _ in everything):.2f}"]
        if label == base:
            rows.append([*cells, *["-"] * (len(heads) - len(cells))])
            continue
        gains = {column: gain(each) for column, each in found.items()}
        worst = min(gains, key=lambda column: gains[column].value)
        below = [each for each in gains.values() if each.value < BELOW]
        rows.append(
            [*cells, difference(gain(everything)), *(f"{value:+.1f}" for value in by_domain(everything).values()),
             f"{worst} {gains[worst].value:+.1f}", len(below), sum(each.side < 0 for each in below)]
        )  # fmt: skip
    return markdown(heads, rows)


def held_out_table(groups: Sequence[Group]) -> str:
    """One row a model, severity and method: over all seeds."""
    heads = ["model", "severity", "row", "seeds", BASE, "top-1", "difference (95 %)", "corrupted only", "clean",
             "worst domain", f"domains below {BELOW}"]  # fmt: skip
    rows: list[list[object]] = []
    for group in groups:
        for label in group.labels:
            both = [pair for each in pairs(group, label).values() for pair in each]
            if label == BASE or not both:
                continue
            experiment, domains = both[0][0].experiment, by_domain(both)
            worst = min(domains, key=lambda name: domains[name])
            corrupted = float(np.mean([value for name, value in domains.items() if name != "clean"]))
            rows.append(
                [experiment.model.split(".")[0], experiment.stream.severity, label, len(both),
                 f"{average(base for _, base in both):.2f}", f"{average(own for own, _ in both):.2f}",
                 difference(gain(both)), f"{corrupted:+.1f}", f"{domains['clean']:+.1f}",
                 f"{worst.split('/')[0]} {domains[worst]:+.1f}", sum(value < BELOW for value in domains.values())]
            )  # fmt: skip
    return markdown(heads, rows)


def ablation_table(group: Group, base: str) -> str:
    """One row a part: less ``base`` on balanced streams, on each severity, and on the groups of classes together."""
    parts = {"severity 5": ("severity 5",), "severity 3": ("severity 3",), "narrow": TUNING}
    rows: list[list[object]] = []
    for label in group.labels:
        cells: list[object] = [label]
        found = pairs(group, label, base)
        for columns in parts.values():
            both = [pair for column in columns for pair in found.get(column, ())]
            if len({own.experiment.column for own, _ in both}) == len(columns):
                cells += [f"{average(own for own, _ in both):.2f}", "-" if label == base else difference(gain(both))]
        if len(cells) == 1 + 2 * len(parts):
            rows.append(cells)
    return markdown(["", *(head for part in parts for head in (part, f"less {base} (95 %)"))], rows)


def page(groups: Sequence[Group], base: str = BASE) -> str:
    """All tables that finished runs give; those by group of classes against the row ``base``."""
    named = {
        name: [each for each in groups if each.recipe.name.split("-")[0] == name]
        for name in ("narrow", "ablation", "held_out")
    }
    tables = {"narrow": narrow_table, "ablation": ablation_table}
    parts = [
        f"### {each.recipe.title}\n\n{each.setting}\n\n{table(each, base)}"
        for name, table in tables.items()
        for each in named[name]
    ]
    if named["held_out"]:
        settings = "\n".join(f"- {each.setting}" for each in named["held_out"])
        title = named["held_out"][0].recipe.title
        parts.append(f"### {title}\n\n{settings}\n\n{held_out_table(named['held_out'])}")
    if not parts:
        raise FozoError("there are no finished runs of narrow, ablation or held_out; run fozo bench narrow first")
    alone = [each for each in chain(*named.values()) if base not in each.labels]
    if alone:
        raise FozoError(f"{alone[0].recipe.name} has no finished run of {base} to compare with; run it as well")
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="the --out of fozo bench, or a folder above several")
    parser.add_argument("--base", default=BASE, help="the row that others are compared with, such as Align")
    given = parser.parse_args()
    with refusals("narrow"):
        print(page(collect(given.runs), given.base))


if __name__ == "__main__":
    main()
