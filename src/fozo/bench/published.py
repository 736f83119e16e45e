"""The paper's numbers beside what was measured here, and how long its tables take."""

from collections.abc import Iterable, Iterator, Sequence

from fozo.bench.gains import BASE, gains
from fozo.bench.plan import Experiment
from fozo.bench.store import Run

CORES = 160  # processor cores that make as many passes of a ViT-B a second as an RTX 4090: 800 by Table 1, 5 each
PAPERS_MODEL = "vit_base_patch16_224"  # how its name begins
PAPERS_IMAGES = 5000  # that the paper's seconds are of


def estimate(rows: Iterable[Experiment]) -> str:
    """Say how long rows will take, from the paper's seconds for 5000 images; nothing where it has none."""
    seconds = sum(row.paper.get("seconds", 0.0) * (row.stream.images or PAPERS_IMAGES) / PAPERS_IMAGES for row in rows)
    if not seconds:
        return ""
    card = f"{seconds / 60:.1f} minutes of an RTX 4090"
    cores = f"{seconds * CORES / 3600:.1f} hours of one processor core"
    return f"a ViT-B takes about {card} or {cores}: an estimate from the paper's times"


def beside_paper(runs: Sequence[Run]) -> Iterator[str]:
    """Compare runs with the paper's numbers: NoAdapt by its accuracy, other rows by what they gain over it."""
    bases = {(run.experiment.column, run.experiment.seed): run for run in runs if run.experiment.title == BASE}
    for run in runs:
        row = run.experiment
        paper = row.paper.get(row.column)
        if paper is None:
            continue
        measured = run.measures
        within = measured.average_interval
        expected = paper
        here = f"here {measured.average:.2f} ({within.low:.2f}-{within.high:.2f}) on {measured.images:,} images"
        base = bases.get((row.column, row.seed), run)
        paired = None if base is run else gains([run], [base])
        if paired is not None and paired.mean.within is not None:
            within = paired.mean.within
            expected = paper - base.experiment.paper[row.column]
            here += f"; gain {expected:+.2f} in the paper, here {paired.mean}"
        verdict = "agrees" if within.low <= expected <= within.high else "differs"
        if PAPERS_MODEL not in row.model:
            verdict += ", on another model"
        yield f"{row.name}, seed {row.seed}: {paper:.2f} in the paper, {here}: {verdict}"
