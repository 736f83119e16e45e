"""Every table and picture that is computed from ``results/`` and the registry: ``make pages`` writes them.

    python -m benchmarks.pages [--check]

docs/results.md, its pictures and its data are written whole, and examples/quickstart.ipynb is run. In other pages a
table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``; ``tables`` below lists the names by page. Figures in
prose are quotes (benchmarks/quotes.py).
``--check`` writes nothing and fails where a page is stale. It leaves out the notebook, which another processor may run
to other last bits; a test compares its figures.
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import detectors, narrow, prompt_curves, quotes_methods, results
from benchmarks.cells import CLEAN, Cell, name_of
from benchmarks.common import markdown, refusals
from benchmarks.conclusions import OURS, rivals, words_of
from benchmarks.quotes import put_all
from fozo.bench.gains import BASE, Gain, gains, signed
from fozo.bench.store import Group, Run
from fozo.errors import FozoError
from fozo.io import atomic_write
from fozo.methods.registry import list_methods, method_class
from fozo.methods.static import StaticFrontEnd

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "results"
TABLE = re.compile(r"(<!-- table: ([^>]+) -->\n(\n?))(?:.*?)(<!-- end -->)", re.DOTALL)
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"
DATES = re.compile(r" \(\d{4}-\d\d-\d\d [\d:]+Z\)")
PAPER = "FOZO"
PROMPTED = "Align and prompts"


def gains_table(cells: Sequence[Cell], held_out: Sequence[Group]) -> str:
    """What a visitor asks first, on continual streams: the plain model, the paper's method, the best rival, Align."""
    apart = [_held_out(cell, held_out) for cell in cells]
    heads = [f"{cell.model}, severity {cell.severity}<br>{cell.images} images" for cell in cells]
    rows = {
        "plain model, top-1 (%)": [f"{cell.top(BASE):.1f}" for cell in cells],
        "FOZO as published, 2 passes": [str(cell.gain(PAPER)) for cell in cells],
        "best rival, published or tuned": [f"{_best(cell)} {cell.gain(_best(cell))}" for cell in cells],
        "**Align, 1 pass**": [f"**{cell.gain(OURS)}**" for cell in cells],
        "Align, clean images afterwards": [str(cell.with_clean(OURS)) for cell in cells],
        "Align, held-out classes": [_interval(both) if both else "not run" for both in apart],
        "its largest loss in a domain": [_worst(both) if both else "not run" for both in apart],
    }
    return markdown(["", *heads], [[name, *texts] for name, texts in rows.items()])


def headline(cell: Cell) -> str:
    """One sentence for the landing page."""
    return (
        f"On {cell.model}, under the fifteen corruptions of ImageNet-C at severity {cell.severity} "
        f"({cell.images} images each), Align gains **{cell.gain(OURS)} points** of top-1 in one forward pass. "
        f"The best rival, {_best(cell)}, gains {cell.gain(_best(cell))}. [All results, losses included](results.md)"
    )


def _best(cell: Cell) -> str:
    return max(rivals(cell), key=lambda label: cell.gain(label).value)


def _held_out(cell: Cell, groups: Sequence[Group]) -> list[tuple[Run, Run]]:
    """Runs of Align on the classes it was not tuned on, of a cell's model and severity, each beside NoAdapt's."""
    own = (group for group in groups if (_model(group), _severity(group)) == (cell.model, cell.severity))
    return [pair for group in own for pair in _pairs(group)]


def _interval(both: narrow.Pairs) -> str:
    gain = narrow.gain(both)
    within = f" ({signed(gain.within.low)} to {signed(gain.within.high)})" if gain.within else ""
    return f"{signed(gain.value)}{within}"


def _worst(both: narrow.Pairs) -> str:
    domains = narrow.by_domain(both)
    name = min(domains, key=lambda name: domains[name])
    return f"{words_of(name)} {signed(domains[name])}" if domains[name] < 0 else "none"


def methods_table() -> str:
    """The registry for the README, without the plain model and static front ends: the newest first."""
    rows = []
    for name, info in sorted(list_methods().items(), key=lambda item: (-_year(item[1].paper), item[0])):
        made = method_class(name)
        if issubclass(made, StaticFrontEnd) or name == "noadapt":
            continue
        paper = re.sub(r"^fozo, (docs/\w+\.md)$", r"[this project](\1)", info.paper)
        traces = len(list((ROOT / "tests" / "golden").glob(f"{name}_*.npz")))
        replayed = f"{traces} runs" if traces else "-" if paper != info.paper else "no program"
        rows.append([f"`{name}`", made.__name__, paper, info.passes, ", ".join(sorted(info.needs)) or "-", replayed])
    heads = ["name", "class", "paper", "passes an image", "needs", "replayed"]
    return markdown(heads, rows).replace("---:", "---")


def _year(paper: str) -> int:
    """Of a paper; those of this project, which have none, come first."""
    found = re.search(r"\d{4}", paper)
    return int(found[0]) if found else 9999


def held_out_table(groups: Sequence[Group]) -> str:
    """Align on classes that it was not tuned on: a row for each model and severity."""
    rows = []
    for group in sorted(groups, key=lambda group: (_model(group), -_severity(group)), reverse=True):
        both = _pairs(group)
        domains = narrow.by_domain(both)
        corrupted = fmean(gain for name, gain in domains.items() if name != CLEAN)
        tops = (f"{narrow.average(side):.1f}" for side in ((base for _, base in both), (own for own, _ in both)))
        gains = (_interval(both), signed(corrupted), signed(domains[CLEAN]))
        rows.append([_model(group), _severity(group), *tops, *gains, _worst(both)])
    heads = ["model", "severity", BASE, OURS, "difference (95 %)", "corrupted only", CLEAN, "largest loss"]
    return markdown(heads, rows)


def narrow_table(groups: Sequence[Group]) -> str:
    """Align on one kind of thing at a time: a row for each model."""
    rows, kinds = [], []
    for group in sorted(groups, key=_model, reverse=True):
        both = _pairs(group)
        domains = narrow.by_domain(both)
        kinds = [words_of(name) for name in domains]
        columns = {name: narrow.gain(each).value for name, each in narrow.pairs(group, OURS).items()}
        worst = min(columns, key=lambda name: columns[name])
        top = f"{narrow.average(base for _, base in both):.1f}"
        gains = (signed(gain) for gain in domains.values())
        rows.append([_model(group), top, _interval(both), *gains, f"{worst} {signed(columns[worst])}"])
    return markdown(["", BASE, "average (95 %)", *kinds, "worst group"], rows)


SCALED = {
    "`official`, 2 passes": ("FOZO", ("2 passes",), 512),
    "`scaled`, 2 passes": ("FOZO scaled", ("2 passes",), 512),
    "the same without its search": ("without search", ("2 passes",), 512),
    "the same without its shift": ("without shift", ("2 passes",), 512),
    "`scaled`, 8 passes": ("FOZO scaled", ("8 passes",), 512),
    "8 passes over 2": ("FOZO scaled", ("8 passes",), 512),
    "`scaled`, 28 passes": ("FOZO scaled", ("28 passes",), 192),
    "28 passes over 2": ("FOZO scaled", ("28 passes",), 192),
    "`scaled`, 2 passes, a stream of 20,010": ("FOZO scaled", ("2 passes",), 1334),
    "`scaled`, 2 passes, narrow content": ("FOZO scaled", ("dogs", "food", "instruments", "kitchen"), 60),
}
"""Rows of docs/fozo.md: the label, columns and images a corruption of runs of ``benchmarks/scaled.toml``."""
AGAINST = dict.fromkeys(("8 passes over 2", "28 passes over 2"), ("FOZO scaled", "2 passes"))
"""Rows of these whose gains are not over NoAdapt in the same column: the label and column of what they are over."""


def scaled_table(groups: Sequence[Group]) -> str:
    """FOZO's presets on exported ViTs: gains over NoAdapt, paired by image; bold where significant."""
    models = ("vit", "deit")
    found: dict[tuple[str, str, str, int], dict[int, Run]] = {}
    for run in (run for group in groups for run in group.runs):
        one = run.experiment
        key = (one.model.split("_")[0].removesuffix(".onnx"), one.label, one.column, one.stream.images or 0)
        found.setdefault(key, {})[one.seed] = run

    def runs(model: str, label: str, column: str, images: int) -> dict[int, Run]:
        return found.get((model, label, column, images), {})

    plain = [f"{runs(model, BASE, '2 passes', 512)[0].measures.top1:.1f}" for model in models]
    rows: list[list[object]] = [["NoAdapt, top-1", 512, "-", *plain]]
    for words, (label, columns, images) in SCALED.items():
        texts, seeds = [], 0
        for model in models:
            both = []
            for column in columns:
                own, base = runs(model, label, column, images), runs(model, *AGAINST.get(words, (BASE, column)), images)
                shared = sorted(own.keys() & base.keys())
                both.append(([own[seed] for seed in shared], [base[seed] for seed in shared]))
            found_gains = [gains(own, base) for own, base in both if own]
            texts.append(", ".join(_gained(each.mean, len(columns) > 1) for each in found_gains if each) or "not run")
            seeds = max(seeds, *(len(own) for own, _ in both))
        rows += [[words, images, seeds, *texts]] if seeds else []
    return markdown(["", "images", "seeds", *(prompt_curves.NAMES[model] for model in models)], rows)


def _gained(gain: Gain, short: bool) -> str:
    """With its interval, or short; bold where it is significant."""
    text = signed(gain.value) if short else str(gain)
    return f"**{text}**" if gain.side else text


def behind_table(lines: Sequence[str]) -> str:
    """Prompts searched behind Align, from what ``python -m benchmarks.prompts behind`` prints."""
    rows = {(row["model"], row["method"], row["passes"]): row for row in map(json.loads, lines)}
    found = []
    for (model, method, passes), prompted in rows.items():
        if method == PROMPTED:
            alone = rows[model, OURS, passes]
            title = f"{prompt_curves.NAMES.get(model, 'bundled')}, {alone['images']} images"
            found.append([title, passes, f"{alone['top1']:.1f}", _around(alone), _around(prompted)])
    return markdown(
        ["", "passes", "Align, top-1", "over one pass", "with prompts, over Align of as many passes"], found
    )


def _around(row: Mapping[str, float]) -> str:
    text = f"{row['gain']:+.2f} ± {row['half']:.2f}"
    return f"**{text}**" if abs(row["gain"]) > row["half"] else text


def tables(cells: Sequence[Cell], groups: Sequence[Group]) -> dict[str, dict[str, str]]:
    """The tables of each page by name."""
    own = {name: [each for each in groups if each.recipe.name == name] for name in ("held_out", "narrow", "scaled")}
    continual = [cell for cell in cells if cell.scenario == "continual"]
    continual.sort(key=lambda cell: (cell.model, cell.severity), reverse=True)
    return {
        "README.md": {"gains": gains_table(continual, own["held_out"]), "methods": methods_table()},
        "docs/index.md": {"headline": headline(cells[0])},
        "docs/cost.md": {"overhead": quotes_methods.overhead_table()},
        "docs/detectors.md": detectors.page_tables(),
        "docs/fozo.md": {
            "scaled": scaled_table(own["scaled"]),
            "diagnosis": prompt_curves.diagnosis(),
            "behind": behind_table((RECORDS / "behind.jsonl").read_text(encoding="utf-8").splitlines()),
        },
        "docs/ablation.md": {
            "held-out classes": held_out_table(own["held_out"]),
            "narrow": narrow_table(own["narrow"]),
            **quotes_methods.ablation_tables(groups),
        },
    }


def _pairs(group: Group) -> list[tuple[Run, Run]]:
    return [pair for both in narrow.pairs(group, OURS).values() for pair in both]


def _severity(group: Group) -> int:
    return group.runs[0].experiment.stream.severity


def _model(group: Group) -> str:
    return name_of(group.runs[0].experiment.model)


def filled(name: str, page: str, known: Mapping[str, str]) -> str:
    """Put every table between its marks, with a blank line on both sides where the first mark has one below it."""
    unknown = [found[1] for found in TABLE.findall(page) if found[1] not in known]
    if unknown:
        raise FozoError(f"{name} asks for the table {unknown[0]!r}; known there are {', '.join(known)}")
    return TABLE.sub(lambda found: f"{found[1]}{known[found[2]]}\n{found[3]}{found[4]}", page)


def computed() -> dict[str, str]:
    """All pages and pictures by their path in the repository, as they should be."""
    with TemporaryDirectory() as scratch:
        page, data = Path(scratch) / "docs" / "results.md", Path(scratch) / "results"
        page.parent.mkdir()
        data.mkdir()
        groups, compared = results.read([RECORDS], Path(scratch) / "records")
        results.write(groups, compared, RECORDS, page, data)
        written = sorted(path for folder in (page.parent, data) for path in folder.rglob("*.*"))
        found = {path.relative_to(scratch).as_posix(): path.read_text(encoding="utf-8") for path in written}
        cells = results.split(compared)[0]
        found["docs/results/prompts.svg"] = prompt_curves.prompts_picture()
        found["docs/results/epsilon.svg"] = prompt_curves.epsilon_picture()
        known, quoted = tables(cells, groups), quotes_methods.quotes(cells, groups)
        for name in known | quoted:
            text = filled(name, (ROOT / name).read_text(encoding="utf-8"), known.get(name, {}))
            found[name] = put_all(name, text, quoted.get(name, ()))
    return found


def executed(path: Path = NOTEBOOK) -> dict[str, Any]:
    """Run a notebook; keep what was printed, in one piece and without dates, and pictures as JPEG alone."""
    import nbformat
    from jupyter_client.manager import KernelManager
    from nbclient import NotebookClient

    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=200, record_timing=False, km=KernelManager(transport="ipc")).execute()
    for outputs in (cell.get("outputs", []) for cell in notebook.cells):
        for later in range(len(outputs) - 1, 0, -1):  # a line may arrive in pieces
            if "text" in outputs[later] and outputs[later].get("name") == outputs[later - 1].get("name"):
                outputs[later - 1].text += outputs.pop(later).text
    for output in (output for cell in notebook.cells for output in cell.get("outputs", ())):
        if "text" in output:
            output.text = DATES.sub("", output.text)
        if "image/jpeg" in output.get("data", {}):
            output.data = {"image/jpeg": output.data["image/jpeg"], "text/plain": "<picture>"}
    found: dict[str, Any] = notebook
    return found


def stale() -> list[str]:
    """Pages and pictures that are not what ``results/`` gives."""
    wanted = computed()
    return [name for name, text in wanted.items() if not _same(ROOT / name, text)]


def _same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page is stale")
    with refusals("pages"):
        if parser.parse_args().check:
            if names := stale():
                raise FozoError(f"{', '.join(names)} are stale; run make pages")
            return
        notebook = json.dumps(executed(), indent=1, ensure_ascii=False) + "\n"
        pages = {**computed(), str(NOTEBOOK.relative_to(ROOT)): notebook}
        for name, text in pages.items():
            if not _same(ROOT / name, text):
                with atomic_write(ROOT / name) as stream:
                    stream.write(text.encode())
                print(name, file=sys.stderr)


if __name__ == "__main__":
    main()
