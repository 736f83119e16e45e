from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fozo
from fozo.io import save_arrays
from fozo.methods.eata import EATA, Fisher, measure_fisher
from fozo.state import save
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


def test_what_no_gradients_are_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "fisher"
    information = fisher()
    values = information.values
    negative = np.where(np.arange(values.size) == 3, -1e-9, values)
    with pytest.raises(ValueError, match="negative"):
        replace(information, values=negative)
    not_finite = np.where(np.arange(values.size) == 3, np.nan, values)
    single: Any = values.astype(np.float32)
    for damaged in (not_finite, single):
        save(path, replace(information, values=damaged), {}, kind=Fisher.KIND)
        with pytest.raises(fozo.FozoError, match=r"fisher information in .* is damaged.*measure it again"):
            Fisher.load(path)


def test_a_file_of_the_last_release_is_read(tmp_path: Path) -> None:
    path = tmp_path / "fisher.safetensors"
    information = fisher()
    header = {"kind": Fisher.KIND, "version": 1, "fingerprint": information.fingerprint, "model": "golden"}
    save_arrays(path, header, {"values": information.values})
    with pytest.warns(FutureWarning, match="load and save it once"):
        loaded = Fisher.load(path)
    assert (loaded.values == information.values).all()
    save_arrays(path, header, {"values": -information.values})
    with pytest.warns(FutureWarning), pytest.raises(fozo.FozoError, match=r"damaged.*negative.*measure it again"):
        Fisher.load(path)
