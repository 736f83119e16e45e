"""What fozo refuses, in one line of a test."""

from collections.abc import Callable
from typing import ParamSpec

import pytest

from fozo.errors import FozoError

P = ParamSpec("P")


def refuses(sentence: str, function: Callable[P, object], /, *arguments: P.args, **options: P.kwargs) -> None:
    """Demand a :class:`FozoError` whose sentence matches."""
    with pytest.raises(FozoError, match=sentence):
        function(*arguments, **options)
