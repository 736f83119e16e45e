"""Methods around other methods: what composes keeps every promise."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fozo
from fozo.methods.equalise import Equalise
from fozo.methods.method import Method, Result
from fozo.methods.neo import NEO
from fozo.state import State, leaves, same
from fozo.testing import check_method
from fozo.types import Batch
from tests.helpers import random_images
from tests.methods.test_every_method import create
from tests.refusals import refuses

PAIRS: dict[str, Callable[[], Method[Any, Any]]] = {
    "equalise, fozo": lambda: Equalise.around(create("fozo")),
    "equalise, tent": lambda: Equalise.around(create("tent")),
    "align, neo": lambda: NEO.around(create("align")),
    "equalise, foa, neo": lambda: NEO.around(Equalise.around(create("foa"))),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_a_pair_keeps_every_promise(pair: str) -> None:
    check_method(PAIRS[pair])


def test_each_does_to_the_other_what_it_does_alone() -> None:
    """NEO's correction of logits is linear, so it can be checked against the inner method's own logits."""
    alone, pair = create("foa"), NEO.around(create("foa"))
    bias, total, images = pair.engine.head().bias, 0.0, 0
    for seed in range(3):
        batch = random_images(6, seed=seed)
        logits = alone(batch)
        total, images = total + logits.sum(axis=0, dtype=np.float64), images + len(logits)
        np.testing.assert_allclose(pair(batch), logits - (total / images - bias), atol=1e-5)
    assert pair.passes_per_image == alone.passes_per_image == 3 and pair.parameter_count == alone.parameter_count
    assert pair.metrics()["inner.loss"] == alone.metrics()["loss"]


def test_the_inner_method_sees_equalised_images() -> None:
    inner = create("t3a")
    seen: list[np.ndarray] = []
    step = inner.step

    def noting(state: State, batch: Batch) -> Result[Any]:
        seen.append(batch.images.copy())
        return step(state, batch)

    inner.step = noting  # type: ignore[method-assign]
    pair, alone = Equalise.around(inner), create("equalise")
    for seed in range(3):
        batch = 0.3 * random_images(12, seed=seed)
        pair(batch), alone(batch)
        assert alone.last_input is not None and not np.array_equal(seen[-1], batch)
        np.testing.assert_array_equal(seen[-1][-1], alone.last_input)


def test_states_belong_to_one_combination(tmp_path: Path) -> None:
    pair, batch = Equalise.around(create("t3a")), random_images(6)
    pair(batch)
    pair.save(tmp_path / "pair")
    assert {"memory.mean", "inner.labels"} <= {path for path, _ in leaves(pair.state())}
    for other in (create("equalise"), Equalise.around(create("noadapt"))):
        refuses(r"inner|method", other.restore, tmp_path / "pair")
    create("equalise").save(tmp_path / "alone")
    refuses(r"inner.method=None", pair.restore, tmp_path / "alone")
    assert "inner=<T3A on" in repr(pair)


def test_what_cannot_be_wrapped_is_refused(tmp_path: Path, engine: fozo.Engine) -> None:
    refuses("need one engine", NEO, engine, inner=create("t3a"))
    inner = create("t3a")
    inner.open_journal(tmp_path / "journal")
    refuses("t3a has a journal of its own", NEO.around, inner)


def test_a_frozen_inner_method_stays_as_it_is() -> None:
    inner = create("t3a")
    pair = NEO.around(inner)
    pair(random_images(6))
    inner.freeze()
    before = pair.state()
    pair(random_images(6, seed=1))
    assert same(pair.state().inner, before.inner)
    assert pair.state().count == 12 and not pair.frozen


def test_what_the_inner_method_learnt_before_stays_and_what_it_learns_alone_shows() -> None:
    inner = create("t3a")
    inner(random_images(6))
    pair = NEO.around(inner)
    assert same(pair.state().inner, inner.state())
    inner(random_images(6, seed=1))
    assert same(pair.state().inner, inner.state()) and pair.state().count == 0


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("equalise+neo", ["equalise", "neo", "noadapt"]),
        ("align+neo", ["neo", "align"]),
        ("clahe+equalise+t3a", ["clahe", "equalise", "t3a"]),
    ],
)
def test_a_combination_has_a_name(name: str, classes: list[str]) -> None:
    """Those that change images are outside, those that change logits too; options are the last one's."""
    alone = create("align")
    options = {"average": "batches"} if name.endswith("neo") else {"supports": 3}
    method: Any = fozo.create(name, alone.engine, alone.statistics, seed=4, **options)
    found = []
    while method is not None:
        found.append(method.info.name)
        assert method.seed == 4 or method.info.name == "noadapt"
        if method.info.name == name.rpartition("+")[2]:
            assert all(getattr(method.config, option) == value for option, value in options.items())
        method = getattr(method, "inner", None)
    assert found == classes


def test_methods_of_which_neither_goes_around_another_are_refused() -> None:
    refuses(
        "neither align nor foa goes around another method",
        fozo.create,
        "align+foa",
        create("align").engine,
        create("align").statistics,
    )
