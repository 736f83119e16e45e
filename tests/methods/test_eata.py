import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fozo
from fozo.io import load_arrays, save_arrays
from fozo.methods.eata import EATA, Fisher, measure_fisher
from tests.methods.rival_traces import check_norms, close, engine, load, pixels, replay


@functools.cache
def measured() -> Fisher:
    return measure_fisher(engine(), np.split(pixels("source")[:128], 8))


def test_the_fisher_information_is_the_authors() -> None:
    close(measured().values, load("eata_reset")["fisher"].ravel(), "Fisher information")


@pytest.mark.parametrize("name", ["eata_reset", "eata_hot_continual", "eta_nofisher_reset"])
def test_replays_the_authors_trace(name: str) -> None:
    trace = load(name)
    weight = trace.hp["fisher_alpha"] or 0.0
    method = EATA(
        engine(),
        preset="official",
        rate=trace.hp["lr"],
        d_margin=trace.hp["d_margin"],
        fisher_weight=weight,
        fisher=measured() if weight else None,
    )
    for t, _ in replay(trace, method):
        check_norms(method.norms, trace, t)
        close(method.average, trace["probs_ema_after"][t], f"average prediction after batch {t}")


def test_reset_forgets_the_average_prediction_by_default() -> None:
    for preset, forgets in (("paper", True), ("official", False)):
        method = EATA(engine(), preset=preset, fisher=measured())
        method(pixels("stream")[:16])
        method.reset()
        assert (len(method.average) == 0) == forgets


def test_asks_for_the_fisher_information_of_this_model() -> None:
    with pytest.raises(fozo.FozoError, match="needs fisher="):
        fozo.create("eata", engine())
    with pytest.raises(fozo.FozoError, match="at least one batch"):
        measure_fisher(engine(), [])
    with pytest.raises(fozo.FozoError, match="measure it again"):
        fozo.create("eata", engine(), fisher=replace(measured(), fingerprint="0" * 32))


def test_the_fisher_information_survives_a_file(tmp_path: Path) -> None:
    measured().save(tmp_path / "fisher.npz")
    loaded = Fisher.load(tmp_path / "fisher.npz")
    assert (loaded.values == measured().values).all()
    assert (loaded.fingerprint, loaded.model) == (measured().fingerprint, "golden")
    fozo.create("eata", engine(), fisher=loaded)


def test_a_damaged_file_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "fisher.npz"
    measured().save(path)
    header, arrays = load_arrays(path, Fisher.KIND)
    values = arrays["values"]
    spoiled = [np.where(np.arange(len(values)) == 3, bad, values) for bad in (np.nan, -1e-9, 1e300)]
    damaged = [{"values": wrong} for wrong in (*spoiled, values[None], values.astype(int))]
    nameless = {"kind": Fisher.KIND, "version": 1}
    for head, wrong in (nameless, arrays), (header, {}), *((header, each) for each in damaged):
        save_arrays(path, head, wrong)
        with pytest.raises(fozo.FozoError, match=r"damaged fisher information.*measure it again"):
            Fisher.load(path)
