"""What fozo refuses, in one line of a test."""

from collections.abc import Callable
from typing import Any

import pytest

from fozo.errors import FozoError


def refuses(sentence: str, function: Callable[..., object], /, *arguments: Any, **options: Any) -> None:
    """Demand a :class:`FozoError` whose sentence matches; arguments are of any type, because many are wrong."""
    with pytest.raises(FozoError, match=sentence):
        function(*arguments, **options)
