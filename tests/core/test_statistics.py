from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import fozo
from fozo.core.statistics import Moments, SourceStatistics, Window
from fozo.errors import FozoError
from tests.helpers import SMALL, random_images, random_vit

NUMBERS = arrays(np.float64, st.tuples(st.integers(2, 30), st.integers(1, 4)), elements=st.floats(-1e6, 1e6))


@given(values=NUMBERS, cuts=st.lists(st.integers(1, 29), max_size=5))
def test_moments_equal_numpys_on_any_split(values: np.ndarray, cuts: list[int]) -> None:
    parts = [part for part in np.split(values, sorted({c for c in cuts if c < len(values)})) if len(part)]
    total = Moments.of(parts[0])
    for part in parts[1:]:
        total = total.merge(Moments.of(part))
    scale = np.abs(values).max() + 1
    assert total.count == len(values)
    np.testing.assert_allclose(total.mean, values.mean(axis=0), rtol=0, atol=1e-12 * scale)
    np.testing.assert_allclose(total.std, values.std(axis=0, ddof=1), rtol=1e-9, atol=1e-7 * scale)


def test_moments_are_stable_far_from_zero() -> None:
    values = 1e9 + np.random.default_rng(0).standard_normal((1000, 3))
    total = Moments.of(values[:1])
    for row in values[1:]:
        total = total.merge(Moments.of(row[None]))
    np.testing.assert_allclose(total.std, values.std(axis=0, ddof=1), rtol=1e-6)


def test_one_value_has_no_spread() -> None:
    with pytest.raises(FozoError, match="at least two"):
        _ = Moments.of(np.zeros((1, 3))).std


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8))
@settings(max_examples=20, deadline=None)
def test_window_keeps_the_latest_rows(sizes: list[int]) -> None:
    window = Window(6)
    rows = np.arange(sum(sizes), dtype=np.float64)[:, None]
    seen = 0
    for size in sizes:
        batch = rows[seen : seen + size]
        before = rows[max(0, seen - max(0, 6 - size)) : seen] if size < 6 else rows[:0]
        expected = np.concatenate([before, batch])
        moments = window.moments(batch)
        assert moments.count == len(expected)
        np.testing.assert_allclose(moments.mean, expected.mean(axis=0))
        window.push(batch)
        seen += size


def test_collected_statistics_equal_numpys(engine: fozo.Engine) -> None:
    images = random_images(20)
    whole = SourceStatistics.collect(engine, [images])
    parts = SourceStatistics.collect(engine, [images[:3]]).merge(SourceStatistics.collect(engine, [images[3:]]))
    taps = engine.run(engine.embed(images), patch_moments=True)
    np.testing.assert_allclose(whole.features.mean, taps.features[0].mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(whole.cls.std, taps.cls[0].std(axis=0, ddof=1), atol=1e-5)
    assert whole.pooled.mean.shape == (SMALL.dim,)
    assert taps.patch_mean is not None and taps.patch_variance is not None
    np.testing.assert_allclose(whole.patch_mean.mean, taps.patch_mean[0].mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(whole.patch_spread.mean, np.log(taps.patch_variance[0]).mean(axis=0), atol=1e-5)
    assert whole.look.count == whole.images == 20
    for name in SourceStatistics.PARTS:
        np.testing.assert_allclose(getattr(parts, name).std, getattr(whole, name).std, atol=1e-5)


def test_survive_a_file_and_serve_only_their_model(
    engine: fozo.Engine, source: SourceStatistics, tmp_path: Path
) -> None:
    path = tmp_path / "stats.npz"
    source.save(path)
    loaded = SourceStatistics.load(path)
    for name in SourceStatistics.PARTS:
        np.testing.assert_array_equal(getattr(loaded, name).squares, getattr(source, name).squares)
        assert getattr(loaded, name).count == getattr(source, name).count
    fozo.FOZO(engine, loaded)
    other = fozo.load_engine(random_vit(seed=1))
    with pytest.raises(FozoError, match="collect them again"):
        fozo.FOZO(other, loaded)


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_images(engine: fozo.Engine, count: int) -> None:
    with pytest.raises(FozoError, match=f"at least two clean images, not {count}"):
        SourceStatistics.collect(engine, [random_images(1)] * count)


def test_a_broken_file_is_one_clear_error(tmp_path: Path, source: SourceStatistics) -> None:
    path = tmp_path / "stats.npz"
    source.save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FozoError, match="truncated"):
        SourceStatistics.load(path)
    with pytest.raises(FozoError, match="no file"):
        SourceStatistics.load(tmp_path / "none.npz")
    np.savez(path, a=np.array([{}], dtype=object))
    with pytest.raises(FozoError):
        SourceStatistics.load(path)
    with pytest.raises(FozoError, match="cannot write"):
        source.save(tmp_path / "missing" / "stats.npz")


def test_a_file_of_an_older_fozo_is_refused(
    tmp_path: Path, source: SourceStatistics, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.save(tmp_path / "stats.npz")
    monkeypatch.setattr(SourceStatistics, "VERSION", SourceStatistics.VERSION + 1)
    with pytest.raises(FozoError, match="collect them again"):
        SourceStatistics.load(tmp_path / "stats.npz")
