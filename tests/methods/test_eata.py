from dataclasses import replace
from pathlib import Path

import pytest

import fozo
from fozo.methods.eata import EATA, Fisher, measure_fisher
from tests.methods.rival_traces import engine, pixels
from tests.methods.test_golden import fisher


def test_reset_forgets_the_average_prediction_by_default() -> None:
    for preset, forgets in (("paper", True), ("official", False)):
        method = EATA(engine(), preset=preset, fisher=fisher())
        method(pixels("stream")[:16])
        method.reset()
        assert (method.state().averaged == 0) == forgets
        assert (not method.state().average.any()) == forgets


def test_asks_for_the_fisher_information_of_this_model() -> None:
    with pytest.raises(fozo.FozoError, match="needs fisher="):
        fozo.create("eata", engine())
    with pytest.raises(fozo.FozoError, match="at least one batch"):
        measure_fisher(engine(), [])
    with pytest.raises(fozo.FozoError, match="measure it again"):
        fozo.create("eata", engine(), fisher=replace(fisher(), fingerprint="0" * 32))


def test_the_fisher_information_survives_a_file(tmp_path: Path) -> None:
    fisher().save(tmp_path / "fisher")
    loaded = Fisher.load(tmp_path / "fisher")
    assert (loaded.values == fisher().values).all()
    assert (loaded.fingerprint, loaded.model) == (fisher().fingerprint, "golden")
    fozo.create("eata", engine(), fisher=loaded)
