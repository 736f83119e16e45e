"""Every public name, and every name of docs/reference, has an example that runs as it says."""

import doctest
import importlib
import inspect
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fozo
from fozo.data import sample
from fozo.methods import registry
from tests.helpers import REPO, random_vit

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
WITHOUT = {
    "fozo.errors.PluginWarning": "its cause is a broken package, which tests/methods/test_registry.py installs",
    "fozo.methods.align.memory.RetrievalConfig": "a field of AlignConfig, whose example sets it",
    "fozo.methods.equalise.EqualiseConfig": "the example of Equalise prints one",
    "fozo.state.ragged": "the state of many a method has one",
    "fozo.state.derived": "a cache, which nobody sees",
    "fozo.types.Batch": "what engine.check returns in the example of Engine",
    "fozo.types.Affine": "what engine.head returns in the example of Engine",
    "fozo.data.streams.LabelledBatch": "what a stream gives in the example of Stream",
}
"""Names without an example, and why; none is a name of ``import fozo``."""


def listed() -> Iterator[str]:
    """Public names, and those of docs/reference: ``::: name``, or the members of a module."""
    yield from (f"fozo.{name}" for name in fozo.__all__)
    entry = re.compile(r"^::: (\S+)(?:\n    options:\n(?:      .*\n)*?      members: \[(.*)\])?", re.MULTILINE)
    for page in sorted((REPO / "docs" / "reference").glob("*.md")):
        for name, members in entry.findall(page.read_text(encoding="utf-8")):
            yield from (f"{name}.{member}" for member in members.split(", ")) if members else (name,)


def found(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


EXAMPLES = {found(name): name for name in listed()}


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What docs/reference/index.md says that examples begin with."""
    images = fozo.open_images(sample.IMAGES).take(32)
    model = sample.MODELS["float32"]
    engine = fozo.load_engine(model)
    pixels = np.stack([images.read(index) for index in range(16)])
    return {
        "fozo": fozo, "np": np, "warnings": warnings, "model": model, "statistics": sample.statistics(model),
        "reference": sample.MONITOR, "photos": sample.IMAGES, "images": images, "torch_vit": random_vit(),
        "engine": engine, "batch": engine.spec.normalise(pixels[:8, ..., :1]), "pixels": pixels,
        "frames": pixels.transpose(0, 3, 1, 2) / np.float32(255),
    }  # fmt: skip


@pytest.mark.parametrize("public", [pytest.param(public, id=name) for public, name in EXAMPLES.items()])
def test_a_public_name_has_an_example_that_runs(
    public: Any, names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    name, text = EXAMPLES[public], inspect.cleandoc(public.__doc__ or "")
    if name in WITHOUT:
        assert ">>>" not in text and public.__name__ not in fozo.__all__
        return
    for number, image in enumerate(names["pixels"]):
        label = names["images"].labels[number]
        for folder in ("camera/clean", f"camera/labelled/{names['images'].classes[label].replace('/', ' ')}"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(tmp_path / folder / f"{number:02}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    known = {**names, public.__name__: public}
    test = doctest.DocTestParser().get_doctest(text, known, name, None, 0)
    failed, tried = doctest.DocTestRunner(optionflags=OPTIONS).run(test)
    assert (failed, tried > 0) == (0, True), capsys.readouterr().out or f"{name} has no example"
