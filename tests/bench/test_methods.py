"""benchmarks/methods.py: its section of docs/methods.md."""

from __future__ import annotations

import pytest

from benchmarks.methods import MARKS, replaced
from fozo.errors import FozoError


def test_a_section_is_put_where_the_old_one_was() -> None:
    page = f"by hand\n{MARKS[0]}\nold\n{MARKS[1]}\nalso by hand\n"
    assert replaced(page, "new\n") == f"by hand\n{MARKS[0]}\nnew\n{MARKS[1]}\nalso by hand\n"
    with pytest.raises(FozoError, match="has lost its comments"):
        replaced("by hand", "new")
