"""Methods by name: presets, options, and sentences that say what went wrong."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import fozo
from fozo.errors import FozoError, PluginWarning
from fozo.methods import registry
from fozo.methods.method import Method, Nothing, Result
from fozo.methods.registry import create, method_class, register
from fozo.types import Batch, Floats, Tap
from tests.helpers import random_images
from tests.refusals import refuses

ENTRY: dict[str, Any] = {"name": "own", "passes": "1", "adapts": "nothing", "paper": "-"}


@dataclass(frozen=True)
class OwnConfig:
    strength: float = 1.0
    batch_size: int = 64


class Own(Method[OwnConfig, Nothing]):
    """A third party's method, whose constructor may have a bug."""

    PRESETS: ClassVar = {"mild": OwnConfig(), "wild": OwnConfig(strength=9.0)}
    broken = False

    def prepare(self) -> None:
        if self.broken:
            len(self.config.strength)  # type: ignore[arg-type]

    def step(self, state: Nothing, batch: Batch) -> Result[Nothing]:
        logits: Floats = self.config.strength * self.engine.run(batch)[Tap.LOGITS][0]
        return Result(logits, state)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Own]]:
    """Registered for one test."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    yield register(**ENTRY)(Own)


def test_an_unknown_name_is_answered_with_the_known_ones(engine: fozo.Engine) -> None:
    refuses(r"^there is no method 'xyzzy'; known are align, autolevels, cazo, .*, zoa$", create, "xyzzy", engine)
    refuses(r"^there is no method 'noadap' \(did you mean 'noadapt'\?\); known are align", create, "noadap", engine)


def test_a_class_becomes_known_by_its_name_once(engine: fozo.Engine, own: type[Own]) -> None:
    assert method_class("own") is own and fozo.list_methods()["own"] is own.info
    assert own.info.summary == "A third party's method, whose constructor may have a bug"
    images = random_images(2)
    plain = fozo.NoAdapt(engine)(images)
    np.testing.assert_allclose(create("own", engine, preset="wild")(images), 9 * plain, rtol=1e-6)
    refuses("a method named 'own' is registered already", register(**ENTRY), Own)


def test_the_streams_batch_size_goes_to_who_asks_for_it(engine: fozo.Engine, own: type[Own]) -> None:
    assert create("own", engine, batch_size=4).config.batch_size == 4
    assert create("tent", engine, batch_size=4).config.batch_size == 4
    create("noadapt", engine, batch_size=4)  # which has no use for it


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"speed": 11}, "own has no option 'speed'; its options are strength, batch_size"),
        ({"strength": "much"}, "own: strength is 'much'; give a value like 1.0"),
        ({"strength": float("nan")}, "own: strength is nan; give a value like 1.0"),
        ({"strength": True}, "own: strength is True; give a value like 1.0"),
        ({"batch_size": 1.5}, "own: batch_size is 1.5; give a value like 64"),
        ({"strength.decay": 1.0}, "own has no option 'strength.decay'; its options are strength, batch_size"),
        ({"preset": "tame"}, "own has no preset 'tame'; choose from mild, wild"),
        ({"config": OwnConfig(), "preset": "wild"}, "own was given config= and wild; give one of them"),
        ({"config": OwnConfig(), "strength": 2.0}, "own was given config= and strength; give one of them"),
    ],
)
def test_wrong_options_are_one_sentence(
    engine: fozo.Engine, own: type[Own], options: dict[str, Any], sentence: str
) -> None:
    refuses(f"^{sentence}$", create, "own", engine, **options)


REFUSED: dict[str, list[dict[str, Any]]] = {
    "tent": [{"rate": 0}, {"rate": float("nan")}, {"batch_size": 0}],
    "sar": [{"refilter": "none"}],
    "deyo": [{"pieces": 33}],
    "lame": [{"affinity": "cosine"}],
    "foa": [{"passes": 1}, {"start": np.zeros((2, 48))}, {"start": np.full((3, 24), np.nan)}, {"seed": -1}],
    "fozo": [
        {"passes": 3}, {"start": np.zeros((2, 2))}, {"shift": "left"}, {"prompts": 0}, {"decay": 0.0},
        {"schedule.memory": 0.5},
    ],
    "zoa": [{"passes": 3}, {"capacity": 1}],
    "t3a": [{"supports": 0}],
    "neo": [{"rate": 0.0}, {"rate": 1.5}, {"average": "median"}, {"bias": np.zeros(3)}],
    "gain": [{"kappa": 0.0}, {"floor": -1.0}],
    "cazo": [
        {"passes": 2}, {"blocks": "9"}, {"nu": 2.0}, {"start": np.zeros(3)},
    ],
}  # fmt: skip


@pytest.mark.parametrize(("name", "bad"), [(name, bad) for name, every in REFUSED.items() for bad in every])
def test_values_that_make_no_sense_are_refused_by_name(
    engine: fozo.Engine, source: fozo.Statistics, name: str, bad: dict[str, Any]
) -> None:
    refuses(
        f"{next(iter(bad))}|of shape",
        create,
        name,
        engine,
        source,
        **{"schedule.decay" if key == "decay" else key: bad[key] for key in bad},
    )


def test_a_bug_in_a_constructor_is_not_taken_for_a_wrong_option(
    engine: fozo.Engine, own: type[Own], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "broken", True)
    with pytest.raises(TypeError, match="has no len"):
        create("own", engine, strength=2.0)


PLUGIN = """
from dataclasses import dataclass
from typing import ClassVar
from fozo.methods.noadapt import NoAdapt
from fozo.methods.registry import register

@register("foreign", passes="1", adapts="nothing", paper="-")
class Foreign(NoAdapt):
    '''Somebody else's method.'''
"""


def distribute(folder: Path, package: str, code: str, entries: str) -> None:
    """Put a package where Python finds it, with the metadata that installing it would have left."""
    (folder / f"{package}.py").write_text(code)
    info = folder / f"{package}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[fozo.methods]\n{entries}\n")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that Python imports from for one test."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_method_of_another_package_is_found_by_its_entry_point(engine: fozo.Engine, elsewhere: Path) -> None:
    distribute(elsewhere, "foreign_package", PLUGIN, "foreign = foreign_package:Foreign")
    assert "foreign_package" not in sys.modules
    create("noadapt", engine)
    assert "foreign_package" not in sys.modules  # it was not asked for
    refuses(r"no method 'foreing' \(did you mean 'foreign'\?\)", create, "foreing", engine)
    images = random_images(2)
    np.testing.assert_array_equal(create("foreign", engine)(images), fozo.NoAdapt(engine)(images))
    assert fozo.list_methods()["foreign"].summary == "Somebody else's method"
    sys.modules.pop("foreign_package")


@pytest.mark.parametrize(
    ("code", "entry", "reason"),
    [
        ("import no_such_module", "broken_package", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("1 / 0", "broken_package", "ZeroDivisionError: division by zero"),
        ("", "broken_package:Nothing", "AttributeError"),
        ("", "broken_package", "registers none of that name"),
    ],
)
def test_a_broken_package_is_one_sentence_and_spoils_no_list(
    engine: fozo.Engine, elsewhere: Path, code: str, entry: str, reason: str
) -> None:
    distribute(elsewhere, "broken_package", code, f"broken = {entry}")
    with pytest.raises(FozoError, match=r"broken_package 1\.2") as caught:
        create("broken", engine)
    assert reason in str(caught.value) and "\n" not in str(caught.value)
    with pytest.warns(PluginWarning, match=r"broken_package 1\.2"):
        assert "broken" not in fozo.list_methods()
    create("noadapt", engine)
    sys.modules.pop("broken_package", None)


def test_a_package_cannot_take_the_name_of_one_of_ours(engine: fozo.Engine, elsewhere: Path) -> None:
    distribute(elsewhere, "taking_package", "raise SystemError", "noadapt = taking_package")
    assert type(create("noadapt", engine)) is fozo.NoAdapt and "noadapt" in fozo.list_methods()
