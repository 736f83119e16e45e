"""Pages of ``docs/``: short, plain, linked, and true to the registries, the command line and the records."""

import ast
import pkgutil
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

import fozo
from fozo.bench.plan import load_recipe, names
from fozo.cli import app
from fozo.data.corruptions import EXTRA_KINDS, KINDS
from fozo.data.scenarios import SCENARIOS
from fozo.monitor.faults import LASTING
from fozo.monitor.quality import NAMES
from fozo.monitor.reference import PHYSICAL, SAMPLE, SEVERITIES
from tests.fuzz_images import READERS
from tests.helpers import REPO

BUDGETS = {
    "index": 230, "quickstart": 350, "camera": 300, "models": 1000, "detectors": 900, "monitoring": 1700,
    "serving": 1800, "edge": 850, "safety": 700, "bench": 800, "method": 1150, "ablation": 1050, "fozo": 1400,
    "results": 1200, "methods": 1050, "related": 600, "cost": 620, "corruptions": 300,
}  # fmt: skip
"""Words that a page may have, code and tables included."""
IN_ALL = 16_000
LONGEST = 40  # words of a sentence
PAGES = {path.stem: path for path in (REPO / "docs").glob("*.md")}
COMMAND = re.compile(r"(?<![\w/.-])fozo ((?:data )?[a-z]+)((?: [^`|\n]*)?)")


@cache
def text_of(page: str) -> str:
    return PAGES[page].read_text(encoding="utf-8")


def count_words(text: str) -> int:
    return sum(any(letter.isalnum() for letter in word) for word in text.split())


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(page), flags=re.DOTALL | re.MULTILINE)


def sentences(page: str) -> list[str]:
    """Sentences outside of code, tables, headings and pictures."""
    prose = re.sub(r"^```.*?^```|<!--.*?-->", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^(?:\||#|!\[).*$", "", prose, flags=re.MULTILINE)
    prose = re.sub(r"\]\([^)]*\)", "]", prose)
    paragraphs = re.split(r"\n\s*\n|\n\s*(?=(?:[-*]|\d+\.) )", prose)
    ends = r"(?<=[.!?])[\"*_)]*\s+(?=[\"*_(`\[]*[A-Z0-9`])"
    return [sentence for each in paragraphs for sentence in re.split(ends, " ".join(each.split()))]


@pytest.mark.parametrize("page", sorted(BUDGETS))
def test_a_page_is_within_its_budget_and_its_sentences_are_short(page: str) -> None:
    assert count_words(text_of(page)) <= BUDGETS[page]
    assert [each for each in sentences(page) if count_words(each) > LONGEST] == []


def test_a_long_sentence_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a table, behind a list and over several lines; figures and ``e.g.`` do not end one."""
    long = "one 2.5 of " * 14
    page = f"# T\n\n| {long} |\n\n```\n{long}\n```\n\nShort.\n- Also short.\n- {long}\n{long}end. Another.\n"
    monkeypatch.setattr(f"{__name__}.text_of", lambda page: page)
    found = [each for each in sentences(page) if count_words(each) > LONGEST]
    assert [count_words(each) for each in found] == [85]


def test_all_pages_together_are_within_the_budget() -> None:
    assert sum(count_words(text_of(page)) for page in PAGES) <= IN_ALL


def test_every_page_has_a_budget_and_a_place_in_the_navigation() -> None:
    assert sum(BUDGETS.values()) <= IN_ALL
    assert PAGES.keys() == BUDGETS.keys()
    navigation = (REPO / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    listed = re.findall(r"[\w/]+\.md", navigation)
    docs = REPO / "docs"
    assert sorted(listed) == sorted(str(path.relative_to(docs)) for path in docs.rglob("*.md"))


def anchors(path: Path) -> set[str]:
    """Of a page's headings, as Python-Markdown and GitHub make them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", each) for each in headings)
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", each).strip().lower()) for each in plain}


def test_links_between_pages_and_from_the_program_lead_somewhere() -> None:
    links = [
        (path, link) for path in PAGES.values() for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", path.read_text())
    ]
    broken = []
    for path, link in links:
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            broken.append(f"{path.name}: {link}")
    for folder in ("src", "examples", "benchmarks", "deploy", "results", "tests"):
        files = (path for path in (REPO / folder).rglob("*") if path.suffix in {".py", ".toml", ".md", ".yaml"})
        for path in (path for path in files if path != Path(__file__)):
            for file, anchor in re.findall(r"\bdocs/([\w/]+\.md)(?:#([\w-]+))?", path.read_text(encoding="utf-8")):
                if not (REPO / "docs" / file).is_file() or (anchor and anchor not in anchors(REPO / "docs" / file)):
                    broken.append(f"{path.relative_to(REPO)}: docs/{file}")
    for page in BUDGETS:
        records = re.findall(r"(?:`|results/)([\w-]+\.md|(?<=/)[\w-]+\.(?:csv|json|log\.xz|tar\.xz))`", text_of(page))
        broken += [f"{page}: {file}" for file in records if not (REPO / "results" / file).is_file()]
    assert broken == []


def test_commands_on_the_pages_have_these_options() -> None:
    group = typer.main.get_command(app)
    wrong, seen = [], set()
    for page in PAGES:
        for name, rest in COMMAND.findall(re.sub(r"(?m)#.*$", "", text_of(page))):
            command: Any = group
            for part in name.split():
                command = getattr(command, "commands", {}).get(part)
            options = re.findall(r"(?<!\S)\[?(--?[a-z][\w-]*)", rest)
            if command is None:
                wrong += [f"{page}: fozo {name}"] if options else []  # else it is a sentence about fozo
                continue
            seen.add(name)
            known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            wrong += [f"{page}: fozo {name} {option}" for option in options if option not in known]
    assert wrong == []
    assert seen >= {
        "adapt",
        "bench",
        "calibrate",
        "corrupt",
        "data check",
        "export",
        "quantise",
        "rank",
        "report",
        "watch",
    }


def test_python_on_the_pages_is_python_and_names_what_there_is() -> None:
    missing = []
    for page in PAGES:
        for block in blocks(page, "python"):
            ast.parse(block)
        for name in re.findall(r"(?<![\w/.\"-])fozo((?:\.[A-Za-z_]\w*)+)(?![\w/]|\.\w)", text_of(page)):
            if not name.endswith((".md", ".toml", ".html", ".py")) and not exists(f"fozo{name}"):
                missing.append(f"{page}: fozo{name}")
    assert missing == []


def exists(name: str) -> bool:
    try:
        return name.startswith("fozo.serve.ray") or bool(pkgutil.resolve_name(name))  # tests/serve imports Ray
    except (ImportError, AttributeError):
        return False


def spelled(count: int) -> str:
    words = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty"
    return words.split()[count - 10]


WAYS = len(KINDS) + len(PHYSICAL)
WITHOUT_TORCH = fozo.list_methods(without={"torch", "blocks"})
COUNTS = (
    ("methods", f"{spelled(len(fozo.list_methods())).capitalize()} methods with the same interface"),
    ("bench", f"every method, {len(KINDS)} corruptions"),
    ("bench", f"Streams are {', '.join([*SCENARIOS][:-1])} or {[*SCENARIOS][-1]}"),
    ("edge", f"Align, FOZO, FOA and {spelled(len(WITHOUT_TORCH) - 3)} others"),
    ("safety", f"all {len(READERS)} readers"),
    ("corruptions", f"The {len(KINDS)} corruptions of ImageNet-C and the {len(EXTRA_KINDS)} extra ones"),
    ("corruptions", f"`all` ({len(KINDS)}), `all+extra` ({len(KINDS) + len(EXTRA_KINDS)})"),
    ("monitoring", f"degrades {SAMPLE} of them (`sample=`, `--sample`) in {WAYS} ways at {len(SEVERITIES)} severities"),
    ("monitoring", f"2 × (images + {WAYS * len(SEVERITIES) * SAMPLE}) forward passes"),
    ("monitoring", f"measures {len(NAMES)} statistics"),
)


@pytest.mark.parametrize(("page", "sentence"), COUNTS)
def test_counts_in_prose_are_the_registries(page: str, sentence: str) -> None:
    assert " ".join(sentence.split()) in " ".join(text_of(page).split())


def test_tables_list_what_there_is() -> None:
    methods = dict(
        re.findall(r"^\| ([a-z0-9]+) \| .* \| ([a-z, -]+) \| (?:yes|none.*|-) \|$", text_of("methods"), re.MULTILINE)
    )
    assert methods == {name: ", ".join(sorted(info.needs)) or "-" for name, info in fozo.list_methods().items()}
    recipes = text_of("bench").partition("| recipe |")[2].partition("\n\n")[0]
    listed = {
        name for row in re.findall(r"^\|([^|]*)\|", recipes, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    papers = {name for name in names() if name.startswith(("table", "figure"))}
    assert listed | papers == {*names()} and {row.method for row in load_recipe("evidence").rows} == {
        *fozo.list_methods()
    }
    faults = re.findall(r"^\| ([a-z-]+) \| .* \| (\d+) \|$", text_of("monitoring"), re.MULTILINE)
    assert {name: int(frames) for name, frames in faults} == LASTING
    statistics = text_of("monitoring").partition("| statistic |")[2].partition("\n\n")[0]
    assert [name for name in NAMES if name.partition(" detail")[0] not in statistics] == []


def test_the_example_of_a_recipe_is_one(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(blocks("bench", "toml")[0])
    assert [row.label for row in load_recipe(str(tmp_path / "mine.toml")).rows] == ["FOZO, 4 passes"]
