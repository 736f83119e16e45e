"""Every public name is used in an example of a public docstring, and every example runs as it says."""

import doctest
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fozo
from fozo.data import sample
from tests.helpers import random_vit

EXAMPLES = {name: inspect.getdoc(getattr(fozo, name)) or "" for name in fozo.__all__}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
ELSEWHERE = {
    "Align", "FozoError", "Knobs", "LoadOptions", "MethodInfo", "MonitorReference", "Move", "NoAdapt",
    "SourceStatistics", "Spec", "Tap",
}  # fmt: skip
"""Names that others take or return, and whose examples they are in."""


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What docs/reference/index.md says that examples begin with."""
    images = fozo.open_images(sample.IMAGES).take(32)
    model = sample.MODELS["float32"]
    spec = fozo.load_engine(model).spec
    pixels = np.stack([images.read(index) for index in range(16)])
    return {
        "fozo": fozo, "np": np, "model": model, "source": sample.source(model), "reference": sample.MONITOR,
        "photos": sample.IMAGES, "images": images, "batch": spec.normalise(pixels[:8, ..., :1]),
        "torch_vit": random_vit(), "pixels": pixels,
    }  # fmt: skip


@pytest.mark.parametrize("name", [name for name, text in EXAMPLES.items() if ">>>" in text])
def test_an_example_runs(
    name: str, names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "camera" / "clean").mkdir(parents=True)
    for number, image in enumerate(names["pixels"]):
        Image.fromarray(image).save(tmp_path / "camera" / "clean" / f"{number:02}.png")
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], dict(names), name, None, 0)
    failed, tried = doctest.DocTestRunner(optionflags=OPTIONS).run(test)
    assert (failed, tried > 0) == (0, True), capsys.readouterr().out


def test_every_public_name_is_in_an_example() -> None:
    assert {name for name, text in EXAMPLES.items() if ">>>" not in text} == ELSEWHERE
    shown = "".join(text.partition(">>>")[2] for text in EXAMPLES.values())
    assert [name for name in ELSEWHERE if not re.search(rf"\b{name}\b", shown)] == []
