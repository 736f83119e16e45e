"""Every figure of the pages is what ``results/`` gives."""

import re
from collections.abc import Iterable

import pytest

from benchmarks import pages
from benchmarks.quotes import Quote, put_all
from fozo.errors import FozoError
from tests.helpers import REPO

MARK = "§"
RECORD = re.compile(r"`(?:results/)?([\w-]+\.(?:md|csv|json|jsonl|log\.xz|tar\.xz))`")


@pytest.fixture(scope="module")
def found() -> tuple[list[str], dict[str, str]]:
    """Stale pages, and the text of those with quotes, where every quoted figure is a mark."""
    marked = {}

    def put(name: str, page: str, quotes: Iterable[Quote]) -> str:
        taken = list(quotes)
        marked[name] = page
        for quote in taken:
            marked[name] = quote.put(name, marked[name], [MARK] * len(quote.figures))
        return put_all(name, page, taken)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "put_all", put)
        return pages.stale(), marked


def untied(page: str) -> list[str]:
    """Sentences and rows of hand-written tables that name a record and have figures, but no quoted one."""
    text = re.sub(r"^<!-- table: .*?^<!-- end -->|^```.*?^```|^#.*?$", "", page, flags=re.DOTALL | re.MULTILINE)
    rows = re.findall(r"^\|.*$", text, re.MULTILINE)
    prose = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    sentences = re.split(r"\n\s*\n|\n(?=[-*] )|(?<=[.!?])\s+(?=[^\w\s]*[A-Z])", prose)
    return [
        claim
        for claim in [*rows, *sentences]
        if any((REPO / "results" / name).is_file() for name in RECORD.findall(claim))
        and re.search(r"(?<![\w-])\d", re.sub(r"`[^`]*`|\b95 %", "", claim))
        and MARK not in claim
    ]


def test_no_page_is_stale(found: tuple[list[str], dict[str, str]]) -> None:
    assert found[0] == []  # `make pages` writes them


def test_what_names_a_record_quotes_it(found: tuple[list[str], dict[str, str]]) -> None:
    pages_with_quotes = found[1]
    assert {"docs/monitoring.md", "docs/serving.md", "docs/safety.md", "docs/cost.md"} <= pages_with_quotes.keys()
    assert {name: claims for name, page in pages_with_quotes.items() if (claims := untied(page))} == {}


@pytest.mark.parametrize(
    ("page", "count"),
    [
        ("It takes 3 ms\n(`results/serve.md`). Top-1 in float32: `results/serve.md`.", 1),
        ("It takes § ms of 4 (`results/serve.md`). It takes 3 ms (`other.md`).", 0),
        ("| time | 3 ms | `serve.md` |\n| time | § ms | `serve.md` |", 1),
        ("<!-- table: t -->\n| time | 3 ms | `serve.md` |\n<!-- end -->\n```\n3 `serve.md`\n```\n", 0),
    ],
)
def test_a_figure_beside_a_record_that_is_not_quoted_is_noticed(page: str, count: int) -> None:
    assert len(untied(page)) == count


@pytest.mark.parametrize(
    ("page", "filled"),
    [
        ("a\n<!-- table: t -->\nold\n<!-- end -->\nb", "a\n<!-- table: t -->\nnew\n<!-- end -->\nb"),
        ("a\n<!-- table: t -->\n\nold\n\n<!-- end -->\nb", "a\n<!-- table: t -->\n\nnew\n\n<!-- end -->\nb"),
        ("<!-- table: t -->\n<!-- end -->", "<!-- table: t -->\nnew\n<!-- end -->"),
        ("no table", "no table"),
    ],
)
def test_a_table_is_put_between_its_marks(page: str, filled: str) -> None:
    assert pages.filled("page.md", page, {"t": "new"}) == filled


def test_a_table_that_is_not_known_is_refused() -> None:
    with pytest.raises(FozoError, match=r"page\.md asks for the table 'u'; known there are t"):
        pages.filled("page.md", "<!-- table: u -->\n<!-- end -->", {"t": ""})
