from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fozo
from fozo.errors import FozoError
from fozo.io import load_arrays, save_arrays
from fozo.monitor.reference import PHYSICAL, degrade, turns
from tests.monitor.conftest import Material


def test_it_is_saved_and_loaded_whole(material: Material, tmp_path: Path) -> None:
    path = tmp_path / "monitor.npz"
    material.reference.save(path)
    loaded = fozo.MonitorReference.load(path)
    loaded.save(tmp_path / "again.npz")
    first, second = (load_arrays(p, "monitor reference") for p in (path, tmp_path / "again.npz"))
    assert first[0] == second[0]
    for name, array in first[1].items():
        np.testing.assert_array_equal(array, second[1][name])
    assert path.stat().st_size < 500_000


def test_without_labels_a_part_of_the_clean_accuracy_is_told_and_without_corruptions_drift_only(
    material: Material,
) -> None:
    plain = fozo.NoAdapt(material.adapter.engine)
    images = material.images(slice(400, 464))
    drift_only = fozo.MonitorReference.collect(plain, material.pixels[:100], corruptions=False)
    monitor = fozo.Monitor(drift_only).watch(plain)
    plain(images)
    assert monitor.accuracy is None and monitor.sentence == "no drift"
    unlabelled = fozo.MonitorReference.collect(plain, material.pixels[:30], sample=5)
    assert unlabelled.unlabelled and unlabelled.plain is not None
    monitor.unwatch()
    monitor = fozo.Monitor(unlabelled).watch(plain)
    plain(images)
    relative, metrics = monitor.relative_accuracy, plain.metrics()
    assert monitor.accuracy is None and relative is not None and relative.relative
    assert relative.low < 1 < relative.high + 0.1 and "of that on clean images" in monitor.sentence
    assert metrics["relative_accuracy"] == relative.value and "expected_accuracy" not in metrics


def test_every_image_gets_its_turn() -> None:
    seen = np.concatenate([indices for _, _, indices in turns(500, ("a", "b", "c", "d"), 64)])
    assert set(seen) == set(range(500)) and len(seen) == 4 * 5 * 64


def test_physical_degradations_do_what_they_are_called_after() -> None:
    image = np.random.default_rng(0).integers(0, 256, (24, 24, 3)).astype(np.uint8)
    gray = np.full((24, 24, 1), 128, np.uint8)
    for kind in PHYSICAL:
        made = [degrade(image, kind, severity, "a") for severity in (1, 3, 5)]
        np.testing.assert_array_equal(made[2], degrade(image, kind, 5, "a"))
        means, stds = [one.mean() for one in made], [float(one.std()) for one in made]
        assert means == sorted(means, reverse=kind != "haze") and (
            kind == "gamma" or stds == sorted(stds, reverse=True)
        ), kind
        assert (degrade(gray, kind, 3, "a").std() > 2) == (kind == "low_light")  # photons vary
        assert degrade(gray, kind, 3, "a").shape == gray.shape
    assert not np.array_equal(degrade(gray, "low_light", 3, "a"), degrade(gray, "low_light", 3, "b"))
    assert degrade(gray, "haze", 1, "a").max() == round(0.8 * 128 + 0.2 * 0.85 * 255)


def test_labels_that_are_none_are_refused(material: Material) -> None:
    plain = fozo.NoAdapt(material.adapter.engine)
    for labels in (np.zeros(3, dtype=np.int64), np.full(20, 10)):
        with pytest.raises(FozoError, match=r"labels up to \d+ were given for 20 images and 10 classes"):
            fozo.MonitorReference.collect(plain, material.pixels[:20], labels)
    with pytest.raises(FozoError, match="sample is 1"):
        fozo.MonitorReference.collect(plain, material.pixels[:20], sample=1)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda header, arrays: header.update(version=99), "of version 99"),
        (
            lambda header, arrays: header.update(version=2),
            "of version 2, .* version 3; make it again with fozo",
        ),
        (lambda header, arrays: header.update(statistics=["size"]), "of another version"),
        (lambda header, arrays: header.update(kind="state"), "where 'monitor reference' is needed"),
        (lambda header, arrays: header.pop("fingerprint"), "damaged monitor reference"),
        (lambda header, arrays: header.update(images="many"), "damaged monitor reference"),
        (lambda header, arrays: header.update(kinds=["fog"]), "do not fit together"),
        (lambda header, arrays: arrays.pop("clean.matrix"), "damaged monitor reference"),
        (lambda header, arrays: arrays.update({"clean.matrix": np.eye(3)}), "clean.matrix is float64 of shape"),
        (lambda header, arrays: arrays.update({"clean.std": 0 * arrays["clean.std"]}), "scales are not positive"),
        (lambda header, arrays: arrays.update({"clean.mean": np.nan * arrays["clean.mean"]}), "not finite"),
        (lambda header, arrays: arrays.update({"plain.weights": np.zeros(3)}), "plain.weights is float64 of shape"),
        (
            lambda header, arrays: arrays.update({"plain.covariance": np.zeros((2, 2))}),
            "plain.covariance is float64",
        ),
        (lambda header, arrays: arrays.update({"plain.group": np.zeros(())}), "not positive"),
        (lambda header, arrays: arrays.pop("adapted.dual"), "damaged monitor reference"),
    ],
)
def test_damaged_files_are_refused(material: Material, tmp_path: Path, damage: Any, message: str) -> None:
    path = tmp_path / "monitor.npz"
    material.reference.save(path)
    header, arrays = load_arrays(path, "monitor reference")
    damage(header, arrays)
    save_arrays(path, header, arrays)
    with pytest.raises(FozoError, match=message):
        fozo.MonitorReference.load(path)
