import numpy as np

from fozo.methods.t3a import T3A, Supports
from tests.methods.rival_traces import close, engine


def test_starts_from_the_rows_of_the_head() -> None:
    features = T3A(engine()).state().features
    weight = engine().vit.head.weight.numpy()
    unit = weight / np.linalg.norm(weight, axis=1, keepdims=True)
    np.testing.assert_allclose(features[np.lexsort(features.T)], unit[np.lexsort(unit.T)], atol=1e-13)


def test_keeps_the_surest_of_each_class() -> None:
    first = Supports(np.eye(3), np.array([0, 0, 2]), np.array([0.1, 0.5, 0.3]))
    second = Supports(np.eye(3)[::-1], np.array([0, 2, 2]), np.array([0.2, 0.1, 0.9]))
    kept = first.join(second, keep=2)
    assert kept.labels.tolist() == [0, 0, 2, 2]
    assert kept.entropies.tolist() == [0.1, 0.2, 0.1, 0.3]


def test_a_class_without_supports_scores_zero() -> None:
    centroids = Supports(np.array([[3.0, 4.0]]), np.array([1]), np.zeros(1)).centroids(3)
    close(centroids, np.array([[0, 0], [0.6, 0.8], [0, 0]]), "centroids")
