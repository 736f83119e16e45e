import numpy as np
import pytest

from fozo.methods.t3a import T3A, Supports
from fozo.types import Tap
from tests.helpers import run
from tests.methods.rival_traces import close, engine, load, pixels, replay


@pytest.mark.parametrize("name", ["t3a_k20_reset", "t3a_k5_continual"])
def test_replays_the_authors_trace(name: str) -> None:
    trace = load(name)
    method = T3A(engine(), supports=trace.hp["filter_K"])
    order = np.argsort(trace["warmup_labels"], kind="stable")
    assert (method.start.labels == np.sort(trace["warmup_labels"])).all()
    close(method.start.entropies, trace["warmup_ent"][order], "entropies of the head's rows")
    features = run(engine(), pixels("stream"))[Tap.POOLED][0]
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    for t, _ in replay(trace, method):
        assert (np.bincount(method.supports.labels, minlength=10) == trace["support_count"][t]).all()
        stored = slice(int(trace["support_offset"][t]), int(trace["support_offset"][t + 1]))
        close(method.supports.entropies, trace["support_ent"][stored], f"entropies after batch {t}")
        seen = trace["support_ids"][stored]
        close(method.supports.features[seen >= 0], unit[seen[seen >= 0]], f"supports after batch {t}")


def test_starts_from_the_rows_of_the_head() -> None:
    method = T3A(engine())
    weight = engine().vit.head.weight.numpy()
    unit = weight / np.linalg.norm(weight, axis=1, keepdims=True)
    np.testing.assert_allclose(
        method.start.features[np.lexsort(method.start.features.T)], unit[np.lexsort(unit.T)], atol=1e-13
    )


def test_keeps_the_surest_of_each_class() -> None:
    first = Supports(np.eye(3), np.array([0, 0, 2]), np.array([0.1, 0.5, 0.3]))
    second = Supports(np.eye(3)[::-1], np.array([0, 2, 2]), np.array([0.2, 0.1, 0.9]))
    kept = first.join(second, keep=2)
    assert kept.labels.tolist() == [0, 0, 2, 2]
    assert kept.entropies.tolist() == [0.1, 0.2, 0.1, 0.3]


def test_a_class_without_supports_scores_zero() -> None:
    centroids = Supports(np.array([[3.0, 4.0]]), np.array([1]), np.zeros(1)).centroids(3)
    close(centroids, np.array([[0, 0], [0.6, 0.8], [0, 0]]), "centroids")
