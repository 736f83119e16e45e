"""Every figure of the pages is what ``results/`` gives."""

import pytest

from benchmarks import pages
from fozo.errors import FozoError


def test_no_page_is_stale() -> None:
    assert pages.stale() == []  # `make pages` writes them


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
