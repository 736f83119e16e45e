import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fozo
from fozo.errors import FozoError
from fozo.monitor.quality import NAMES
from fozo.monitor.reference import PHYSICAL, corruption_schedule, degrade
from fozo.state import same
from tests.monitor.conftest import Material

Damage = Callable[[dict[str, Any]], None]


def test_it_is_saved_and_loaded_whole(material: Material, tmp_path: Path) -> None:
    path = tmp_path / "monitor"
    material.reference.save(path)
    assert same(fozo.Reference.load(path), material.reference)
    assert path.stat().st_size < 500_000
    drift_only = replace(material.reference, signatures=None, adapted=None, plain=None)
    drift_only.save(path)
    assert same(fozo.Reference.load(path), drift_only)


def of_version_02(reference: fozo.Reference, path: Path, **changes: object) -> None:
    """Write a reference as fozo 0.2 did."""
    clean = reference.clean
    header: dict[str, object] = {
        "kind": "monitor reference", "version": 3, "fingerprint": reference.fingerprint, "model": reference.model,
        "method": reference.method, "images": clean.images, "statistics": NAMES, "unlabelled": reference.unlabelled,
    }  # fmt: skip
    scales = [clean.length, clean.variance, clean.norm, *(clean.entropy or ())]
    arrays: dict[str, Any] = {"clean.scales": np.array(scales)}
    arrays |= {f"clean.{part}": getattr(clean.whitening, part) for part in ("mean", "std", "centre", "matrix")}
    signatures = reference.signatures
    if signatures is not None:
        header |= {"kinds": signatures.kinds, "sample": signatures.images}
        arrays |= {f"signatures.{part}": getattr(signatures.coordinates, part) for part in ("mean", "std", "matrix")}
        arrays["signatures.points"] = signatures.points
    if reference.adapted is not None:
        arrays |= {"adapted.weights": np.zeros(7)}  # of a regression that is not read any more
    text = np.frombuffer(json.dumps(header | changes).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, **arrays, __header__=text)


def test_a_file_of_version_02_is_read_with_advice(material: Material, tmp_path: Path) -> None:
    drift_only = replace(material.reference, signatures=None, adapted=None, plain=None)
    for reference in (material.reference, drift_only):
        of_version_02(reference, tmp_path / "old.npz")
        with pytest.warns(FutureWarning, match=r"old\.npz is a file of fozo 0\.2"):
            old = fozo.Reference.load(tmp_path / "old.npz")
        assert same(old, replace(reference, adapted=None, plain=None, views=None))
    damages: list[tuple[dict[str, Any], str]] = [
        ({"version": 2}, "it is of version 2"),
        ({"statistics": ["size"]}, "statistics of another version"),
        ({"images": "many"}, "'clean.images' is 'many'"),
        ({"kinds": ["fog"]}, "do not fit together"),
    ]
    for damage, message in damages:
        of_version_02(material.reference, tmp_path / "old.npz", **damage)
        with pytest.raises(FozoError, match=message), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            fozo.Reference.load(tmp_path / "old.npz")


def test_without_labels_a_part_of_the_clean_accuracy_is_told_and_corruptions_are_not_needed(
    material: Material,
) -> None:
    plain = fozo.NoAdapt(material.adapter.engine)
    images = material.images(slice(400, 464))
    for labels, told, untold in (
        (None, "relative_accuracy", "expected_accuracy"),
        (material.labels[:100], "expected_accuracy", "relative_accuracy"),
    ):
        reference = fozo.Reference.collect(plain, material.pixels[:100], labels, corruptions=False)
        with fozo.Monitor(reference).watch(plain) as monitor:
            plain(images)
            metrics = plain.metrics()
            relative = monitor.relative_accuracy
        assert told in metrics and untold not in metrics
        assert ("of that on clean images" in monitor.sentence) == (labels is None) == (relative is not None)
        assert metrics[f"{told}_low"] < metrics[told] <= metrics[f"{told}_high"] <= 1


def test_every_image_gets_its_turn() -> None:
    seen = np.concatenate([indices for _, _, indices in corruption_schedule(500, ("a", "b", "c", "d"), 64)])
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
            fozo.Reference.collect(plain, material.pixels[:20], labels)
    with pytest.raises(FozoError, match="sample is 1"):
        fozo.Reference.collect(plain, material.pixels[:20], sample=1)


def test_another_file_is_refused(material: Material, tmp_path: Path) -> None:
    material.adapter.save(tmp_path / "state")
    with pytest.raises(FozoError, match="where 'monitor reference' is needed"):
        fozo.Reference.load(tmp_path / "state")
    (tmp_path / "state").write_bytes(b"nothing")
    with pytest.raises(FozoError, match="make it again with fozo calibrate --reference"):
        fozo.Reference.load(tmp_path / "state")
