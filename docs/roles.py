"""For the API reference: docstrings name other things as Sphinx does, and pages show Markdown.

``make docs`` loads it (mkdocs.yml); nobody else does.
"""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`~?([^`]+)`")


class Roles(griffe.Extension):
    """Turns ``:class:`~fozo.types.Spec``` into ``fozo.types.Spec`` in code letters, linked where the page has it."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: ANN401 - griffe's own
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(_shown, obj.docstring.value)


def _shown(match: re.Match[str]) -> str:
    name = match[1]
    short = name.rpartition(".")[2] if match[0].partition("`")[2].startswith("~") else name
    return f"`{short}`"
