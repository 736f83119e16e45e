"""Tempora's utilities: the formulas, and the recipe on a model."""

from dataclasses import replace
from pathlib import Path

import pytest

from fozo.bench.gains import Latency, continuous, discrete, frozen_after, served
from fozo.bench.measures import Cost
from fozo.bench.plan import Experiment, Recipe, Setting, load_recipe
from fozo.bench.report.tables import table_of
from fozo.bench.resources import Paths
from fozo.bench.run import Setup, run_one
from fozo.bench.store import Run, Store

PLAIN = Latency(1.0, 0.0)
NAMES = ("discrete", "continuous", "amortised")


@pytest.mark.parametrize(
    ("latency", "speed", "batches"),
    [
        (PLAIN, 1.0, [0, 1, 2, 3, 4, 5]),
        (Latency(0.6, 0.4), 1.0, [0, 1, 2, 3, 4, 5]),
        (Latency(1.0, 1.0), 1.0, [0, 1, 2, 4]),  # 1 waits until 2, 2 until 4; 3 finds 2 waiting, 5 finds 4
        (Latency(3.0, 0.0), 1.0, [0, 1, 3]),
        (Latency(1.0, 1.0), 0.5, [0, 1, 2, 3, 4, 5]),  # half as fast
    ],
)
def test_batches_that_come_while_another_waits_are_dropped(latency: Latency, speed: float, batches: list[int]) -> None:
    assert served(6, latency, speed) == batches
    shares = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    if speed == 1:
        assert discrete(shares, latency) == pytest.approx(sum(shares[i] for i in batches) / 6)


def test_waiting_beyond_the_reference_costs_by_the_tolerance() -> None:
    assert continuous([40.0, 60.0], Latency(0.7, 0.3)) == 50.0
    # The first batch waits for no adaptation; the second for 1 beyond the reference, which halves it.
    assert continuous([40.0, 60.0], Latency(1.0, 1.0)) == (40 + 30) / 2
    assert continuous([40.0, 60.0], Latency(3.0, 0.0), tolerance=3.0) == 25.0


def test_a_method_is_frozen_once_it_exceeds_the_budget() -> None:
    assert [frozen_after(3, Latency(1.0, each)) for each in (0.0, 0.25, 0.26, 0.6)] == [None, None, 2, 1]


def test_the_recipe_gives_utilities_in_the_report(
    weights: Path, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load_recipe("tempora")
    few = ("NoAdapt", "TENT", "NEO")

    def small(row: Experiment) -> Experiment:
        kinds = ("fog", "clean") if "clean" in row.stream.kinds else ("fog",)
        return replace(row, stream=replace(row.stream, kinds=kinds, images=24, batch_size=4))

    recipe = replace(whole, rows=tuple(small(row) for row in whole.rows if row.label in few))
    assert isinstance(recipe, Recipe) and len(recipe.rows) == 9
    setting = Setting(str(weights), calibration=16, stored=False)
    store = Store(tmp_path / recipe.name)
    store.folder.mkdir()
    store.write(recipe)
    for experiment in recipe.experiments(setting):
        run_one(experiment, Setup(str(store.folder), paths))
    (group,) = store.groups()
    tent = group.of("TENT", "frozen")[0]
    assert [record.metrics.get("loss") is None for record in tent.records()] == [False, *[True] * 5] * 2  # per segment
    assert group.of("TENT", "adapting")[0].records()[0] == tent.records()[0]

    def costs(run: Run) -> list[Cost]:
        slow = {"TENT": 3.0, "NEO": 1.11}.get(run.experiment.label, 1.0)
        last = run.experiment.stream.freeze_after or 99
        return [Cost(i, slow if i < last else 1.0, 0) for i in range(run.measures.batches)]

    monkeypatch.setattr(Run, "costs", costs)
    table = table_of(group)
    found = {
        label: [cell and cell.ours for name, cell in zip(table.columns, cells, strict=True) if name in NAMES]
        for label, cells in table.rows
    }
    shares = {label: [25.0 * r.correct for r in group.of(label, "adapting")[0].records()[:6]] for label in few}
    assert found["NoAdapt"] == [pytest.approx(sum(shares["NoAdapt"]) / 6)] * 3
    expected = [discrete(shares["TENT"], Latency(1, 2)), continuous(shares["TENT"], Latency(1, 2))]
    assert found["TENT"] == pytest.approx([*expected, tent.measures.domains["fog/5"]])
    assert found["NEO"][2] is None  # its budget is exceeded after the last batch but one, and no run was frozen there
