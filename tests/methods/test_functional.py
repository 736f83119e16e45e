"""The example of docs/methods.md is a whole method: it is run as it stands there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fozo
from fozo.methods import registry
from fozo.testing import check_method, same
from tests.helpers import REPO, random_images


def example() -> str:
    text = (REPO / "docs" / "methods.md").read_text(encoding="utf-8")
    return text.split("```python\n")[1].split("```")[0]


@pytest.fixture
def sharpen(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    names: dict[str, Any] = {"__name__": "somebody"}
    exec(compile(example(), "docs/methods.md", "exec"), names)
    return names["Balance"]


def test_the_example_keeps_every_promise(sharpen: Any, engine: fozo.Engine) -> None:
    check_method(lambda: sharpen(engine))
    assert fozo.list_methods()["balance"].summary and isinstance(fozo.create("balance", engine), sharpen)


def test_a_state_cannot_be_written_to(sharpen: Any, engine: fozo.Engine) -> None:
    method = sharpen(engine)
    method(random_images(4))

    def careless(state: Any, batch: Any) -> Any:
        state["mean"] += 1
        return state, np.zeros((len(batch), engine.spec.classes))

    before = method.state()
    method.update = careless
    with pytest.raises(ValueError, match="read-only"):
        method(random_images(4))
    assert same(before, method.state())
