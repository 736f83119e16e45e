"""``load_engine``: what it takes, and what it refuses instead of ignoring."""

from typing import Any

import pytest

import fozo
from tests.helpers import random_vit
from tests.refusals import refuses


def test_an_engine_is_returned_as_it_is(engine: fozo.Engine) -> None:
    assert fozo.load_engine(engine) is engine
    assert fozo.load_engine(engine, fozo.LoadOptions()) is engine


@pytest.mark.parametrize(
    "options", [{"classes": [0, 1]}, {"mean": 0.5}, {"std": 0.5}, {"threads": 1}, {"dtype": "float64"}]
)
def test_options_for_an_engine_are_refused_and_not_ignored(engine: fozo.Engine, options: dict[str, Any]) -> None:
    (name,) = options
    for refused in ({"options": fozo.LoadOptions(**options)}, options):
        refuses(f"{name}= cannot be given here: this is an engine already", fozo.load_engine, engine, **refused)


def test_changes_come_on_top_of_options() -> None:
    options = fozo.LoadOptions(mean=0.5, std=0.25)
    spec = fozo.load_engine(random_vit(), options, mean=(0.1, 0.2, 0.3)).spec
    assert spec.mean == (0.1, 0.2, 0.3) and spec.std == (0.25, 0.25, 0.25)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"speed": 1}, "load_engine has no option 'speed'; its options are architecture"),
        ({"threads": 2}, "threads= cannot be given here: it is for .onnx files; this model runs in PyTorch"),
        ({"runtime": "openvino"}, "runs in PyTorch"),
        ({"dtype": "int8"}, "dtype must be one of auto, bfloat16, float16, float32, float64, not 'int8'"),
        ({"classes": [7]}, "distinct indices below 7"),
        ({"mean": (0.5, 0.5)}, "for 3 channels"),
        ({"chunk": 0}, "chunk is 0; give a whole number from 1 up"),
    ],
)
def test_bad_options_say_what_is_wrong(options: dict[str, Any], sentence: str) -> None:
    refuses(sentence, fozo.load_engine, random_vit(), **options)


def test_a_timm_name_needs_its_tag() -> None:
    refuses("name the full tag", fozo.load_engine, "timm:vit_tiny_patch16_224")
