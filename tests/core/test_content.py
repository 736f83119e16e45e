"""Content: what it explains is found, what it does not explain is left alone, and nothing depends on the batches."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fozo
from fozo.core.content import DIMENSIONS, ContentBasis, ContentMoments, ContentRegression, contents
from fozo.core.moments import Moments
from fozo.core.statistics import Statistics
from fozo.engines.torch_engine import TorchEngine
from fozo.types import Affine, Array
from tests.helpers import SMALL, random_images, random_vit
from tests.refusals import refuses

SUBSET = [5, 1, 3]


def head(features: int, classes: int, seed: int = 0) -> Affine:
    rng = np.random.default_rng(seed)
    return Affine(rng.standard_normal((features, classes)), rng.standard_normal(classes))


def plain_basis(k: int) -> ContentBasis:
    """For content vectors that are drawn, not read from a head."""
    return ContentBasis(np.zeros(k), np.eye(k))


def fit(vectors: Array, statistics: Mapping[str, Array]) -> ContentRegression:
    moments = {name: Moments.of(values) for name, values in statistics.items()}
    return ContentRegression(ContentMoments.of(plain_basis(vectors.shape[1]), vectors, statistics), moments)


def test_the_basis_is_orthonormal_and_spans_the_classes() -> None:
    own = head(24, 7)
    basis = ContentBasis.of(own)
    np.testing.assert_allclose(basis.directions.T @ basis.directions, np.eye(6), atol=1e-12)
    vectors, rows = basis.vectors(own), own.weight.T
    # Seven points span six directions: their distances are all there.
    for i in range(7):
        np.testing.assert_allclose(
            np.linalg.norm(vectors - vectors[i], axis=1), np.linalg.norm(rows - rows[i], axis=1), atol=1e-12
        )
    assert ContentBasis.of(head(96, 100)).directions.shape == (96, DIMENSIONS)
    assert ContentBasis.of(head(8, 100)).directions.shape == (8, 8)


def test_the_signs_of_the_basis_do_not_depend_on_the_singular_value_decomposition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another library may return any singular vector with the other sign; statistics of both have to merge."""
    own, svd = head(24, 7), np.linalg.svd
    expected = ContentBasis.of(own).directions

    def flipped(matrix: Array, full_matrices: bool) -> tuple[Array, Array, Array]:
        left, values, right = svd(matrix, full_matrices=full_matrices)
        signs = np.where(np.arange(len(values)) % 2, 1.0, -1.0)
        return left * signs, values, signs[:, None] * right

    monkeypatch.setattr(np.linalg, "svd", flipped)
    np.testing.assert_array_equal(ContentBasis.of(own).directions, expected)


def test_contents_are_expectations_under_the_predictions() -> None:
    vectors = ContentBasis.of(head(24, 3)).vectors(head(24, 3))
    certain = np.array([[0.0, 1000.0, 0.0], [-1e5, -1e5, 1e5]], dtype=np.float32)  # no exponential may overflow
    np.testing.assert_allclose(contents(certain, vectors), vectors[[1, 2]])
    undecided = contents(np.log([[0.5, 0.25, 0.25]]), vectors)
    np.testing.assert_allclose(undecided, [0.5 * vectors[0] + 0.25 * vectors[1] + 0.25 * vectors[2]])


@pytest.mark.parametrize("cuts", [[1, 2, 40], [50], [13, 14, 15, 99]])
def test_instalments_give_the_same_sums_as_one_go(cuts: list[int]) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((100, 3)) + np.array([5, 0, -2])
    values = {"a": vectors @ rng.standard_normal((3, 4)) + 100, "b": rng.standard_normal((100, 2, 5)) ** 2}
    basis = plain_basis(3)
    whole = ContentMoments.of(basis, vectors, values)
    pieces = np.split(np.arange(100), cuts)
    merged = ContentMoments.of(basis, vectors[pieces[0]], {name: y[pieces[0]] for name, y in values.items()})
    means = {name: Moments.of(y[pieces[0]]) for name, y in values.items()}
    for piece in pieces[1:]:
        theirs = {name: Moments.of(y[piece]) for name, y in values.items()}
        part = ContentMoments.of(basis, vectors[piece], {name: y[piece] for name, y in values.items()})
        merged = merged.merge(part, {name: theirs[name].mean - means[name].mean for name in values})
        means = {name: means[name].merge(theirs[name]) for name in values}

    def same(found: Array, wanted: Array) -> None:
        assert np.abs(found - wanted).max() <= 1e-9 * np.abs(wanted).max()

    assert merged.count == 100
    same(merged.mean, whole.mean)
    same(merged.products, whole.products)
    for name in values:
        same(merged.cross[name], whole.cross[name])


def test_what_content_explains_is_recovered() -> None:
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((200, 5)) + 2
    weights = rng.standard_normal((5, 3, 4))
    regression = fit(vectors, {"y": 7 + np.tensordot(vectors, weights, 1)})
    np.testing.assert_allclose(regression.weights["y"], weights, atol=1e-4)
    assert (regression.unexplained["y"] > 0).all() and regression.unexplained["y"].max() < 1e-6
    offsets = rng.standard_normal((6, 5))
    np.testing.assert_allclose(regression.shift("y", offsets), np.tensordot(offsets, weights, 1), atol=1e-3)


def test_the_unexplained_part_is_that_of_the_noise() -> None:
    """Half of the variance is content's: the rest is estimated without bias, though few images fit their noise."""
    rng = np.random.default_rng(2)
    vectors = rng.standard_normal((100, 20))
    weights = rng.standard_normal((20, 500)) / np.sqrt(20)
    noisy = vectors @ weights + rng.standard_normal((100, 500))
    assert fit(vectors, {"y": noisy}).unexplained["y"].mean() == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("count", [2, 5, 20, 60])
def test_content_that_explains_nothing_gets_no_weight(count: int) -> None:
    """With fewer images than directions anything could be explained; predictions have to stay with the average."""
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((count, 30))
    noise = rng.standard_normal((count, 400))
    regression = fit(vectors, {"y": noise})
    predicted = regression.shift("y", rng.standard_normal((50, 30)))
    assert np.square(predicted).mean() < 0.02 * noise.var()
    assert regression.unexplained["y"].mean() == pytest.approx(1, abs=0.05)


def test_of_two_images_rounding_chooses_no_penalty() -> None:
    """All penalties score the same, and the largest is taken, whatever the processor rounds."""
    rng = np.random.default_rng(5)
    for _ in range(200):
        vectors = rng.standard_normal((2, rng.integers(1, 40)))
        weights = fit(vectors, {"y": rng.standard_normal((2, rng.integers(1, 300)))}).weights["y"]
        assert np.abs(weights).max() < 1e-4


def test_a_feature_that_never_varies_is_neither_explained_nor_much_in_the_way() -> None:
    rng = np.random.default_rng(4)
    vectors = rng.standard_normal((50, 3))
    values = np.concatenate([vectors @ rng.standard_normal((3, 2)), np.full((50, 1), 4.0)], axis=1)
    regression = fit(vectors, {"y": values})
    np.testing.assert_array_equal(regression.weights["y"][:, 2], 0)
    assert regression.unexplained["y"][:2].max() < 1e-3 and regression.unexplained["y"][2] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("k", [0, 2])
def test_content_that_never_varies_says_nothing(k: int) -> None:
    values = np.random.default_rng(5).standard_normal((10, 2, 3))
    regression = fit(np.ones((10, k)), {"y": values})
    np.testing.assert_array_equal(regression.shift("y", np.ones((4, k))), np.zeros((4, 2, 3)))
    np.testing.assert_array_equal(regression.unexplained["y"], np.ones((2, 3)))


@pytest.mark.parametrize("classes", [1, 2])
def test_heads_of_one_and_two_classes(classes: int, tmp_path: Path) -> None:
    """One class leaves no direction, two leave one; both calibrate, survive a file and adapt."""
    engine = fozo.load_engine(random_vit(replace(SMALL, classes=classes)))
    source = fozo.calibrate(engine, [random_images(16, seed=1), random_images(16, seed=2)])
    assert source.content.basis.directions.shape == (SMALL.dim, classes - 1)
    source.save(tmp_path / "statistics.safetensors")
    loaded = Statistics.load(tmp_path / "statistics.safetensors")
    assert loaded.content.products.shape == (classes - 1, classes - 1)
    method = fozo.Align(engine, loaded)
    for seed in range(3):
        assert np.isfinite(method(0.3 * random_images(20, seed=seed) + 1)).all()
    if classes == 1:
        assert not source.regression().shift("cls", np.zeros((1, 0))).any()


def test_a_head_of_some_classes_uses_the_basis_of_calibration() -> None:
    """A user who leaves classes out gets the same content vectors for the others, so that W still means the same."""
    vit = random_vit()
    whole = TorchEngine(vit)
    part = TorchEngine(vit, classes=SUBSET)
    source = fozo.calibrate(whole, [random_images(32)])
    vectors = source.content.basis.vectors(whole.head())
    np.testing.assert_allclose(source.content.basis.vectors(part.head()), vectors[SUBSET], atol=1e-12)


def test_statistics_of_different_heads_are_not_merged() -> None:
    vit = random_vit()
    images = random_images(8)
    some, others = (fozo.calibrate(TorchEngine(vit, classes=classes), [images]) for classes in (SUBSET, [0, 2, 4]))
    for other in (others, fozo.calibrate(TorchEngine(vit), [images])):
        refuses("different heads of one model; collect them again", some.merge, other)
        refuses("different heads of one model; collect them again", some.blend, other)
