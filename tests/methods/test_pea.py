from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fozo.core.moments import TokenMoments
from fozo.methods.pea import PEA, Covariances, RunningStatistics, cropped, measure_covariances
from tests.methods.rival_traces import close, engine, load, pixels
from tests.methods.test_golden import covariances


def exact() -> Covariances:
    return measure_covariances(engine(), np.split(pixels("source"), 4))


def test_source_statistics_are_exact() -> None:
    published = covariances()
    ours = exact()
    close(ours.mean, published.mean, "source mean")
    whole = measure_covariances(engine(), [pixels("source")])
    close(ours.covariance, whole.covariance, "a covariance does not depend on batches")
    close(ours.variance, whole.covariance.diagonal(axis1=1, axis2=2) - 1e-5, "nor does a variance")
    assert 0.01 < np.abs(published.variance / ours.variance - 1).max() < 0.03


def test_views_are_the_programs() -> None:
    images = pixels("stream")[:1]
    middle = cropped(images)
    expected = load("pea_hotaug_continual")["views_first"]
    close(np.concatenate([images, middle, images[..., ::-1], middle[..., ::-1]]), expected, "views")
    assert np.allclose(cropped(np.ones((1, 3, 8, 24), np.float32)), 1)


def test_aligned_tokens_have_the_sources_statistics() -> None:
    """One block, one batch, full weight: what is seen after the move is what clean images have."""
    method = PEA(engine(), covariances=exact(), skip=0.0)
    batch = engine().check(pixels("stream")[:64])
    running = RunningStatistics(method.init(), method.config)
    aligned: list[TokenMoments] = []

    def visit(layer: int, seen: TokenMoments) -> Any:
        if layer != 4:
            return None
        move = method._move(running, 4, seen, 1.0)
        assert move is not None
        mean = seen.mean @ move.matrix + move.shift
        aligned.append(TokenMoments(seen.count, mean, move.matrix.T @ seen.scatter @ move.matrix))
        return move

    engine().walk(batch, visit)
    clean = exact()
    np.testing.assert_allclose(aligned[0].mean, clean.mean[4], atol=1e-9)
    # The ridge of 1e-5 is in the covariance that is whitened by, and not in the tokens.
    np.testing.assert_allclose(
        aligned[0].covariance, clean.covariance[4], atol=2e-3 * np.abs(clean.covariance[4]).max()
    )


def test_a_surprise_can_begin_anew_with_this_batch() -> None:
    """``restart="this"``: what a batch that surprises comes to is what it would as the first one."""
    images = pixels("stream")
    options: dict[str, Any] = {"covariances": covariances(), "gamma": float("inf")}
    method = PEA(engine(), restart="this", threshold=1e-6, **options)
    new = method.clone()
    for start in (0, 16, 80, 160):
        logits = method(images[start : start + 16])
        if method.metrics()["restarted"]:
            break
    assert method.metrics()["restarted"] and method.passes_per_image == 3
    close(logits, new(images[start : start + 16]), "a restart with this batch")


def test_impossible_covariances_are_refused() -> None:
    known = covariances()
    tilted = known.covariance.copy()
    tilted[0, 0, 1] += 5
    for name, array in (("mean", known.mean[:, :-1]), ("variance", -known.variance), ("covariance", tilted)):
        with pytest.raises(ValueError, match=r"different models|negative|not symmetric"):
            replace(known, **{name: array})  # type: ignore[arg-type]
