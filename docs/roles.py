"""What ``make docs`` changes on the way: Sphinx's roles in docstrings, and line breaks inside of options.

mkdocs.yml loads it twice, as griffe's extension and as a hook of mkdocs; nothing else does.
"""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`~?([^`]+)`")
CODE = re.compile(r"<code>[^<]*</code>")
OPTION = re.compile(r"(?<=[ >])--?\w[\w-]*")


def on_page_content(html: str, **_: Any) -> str:  # noqa: ANN401 - mkdocs' own
    """Mark options in code (``--model``, ``-m``), which browsers would break after a hyphen; extra.css forbids it."""
    return CODE.sub(lambda code: OPTION.sub(r'<span class="option">\g<0></span>', code[0]), html)


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
