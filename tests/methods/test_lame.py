from typing import Any

import numpy as np
import pytest

import fozo
from fozo.methods.lame import LAME, LAMEConfig, adjust
from fozo.types import Tap
from tests.helpers import run
from tests.methods.rival_traces import close, engine, load, pixels, replay


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lame_foa_knn", {}),
        ("lame_official_rbf", {"preset": "official"}),
        ("lame_official_knn", {"symmetric": False}),
        ("lame_official_linear", {"affinity": "linear", "symmetric": False}),
    ],
)
def test_replays_the_authors_trace(name: str, options: dict[str, Any]) -> None:
    trace = load(name)
    method = LAME(engine(), None, **options)
    for t, _ in replay(trace, method):
        size = int(trace["batch_size"][t])
        taps = run(engine(), trace.batch(t))
        kernel = method.affinity(taps[Tap.POOLED][0].astype(np.float64))
        close(kernel, trace["kernel"][t][:size, :size], f"kernel of batch {t}")
        steps = adjust(taps[Tap.LOGITS][0].astype(np.float64), kernel, method.config)[1]
        assert steps == trace["n_iter"][t]


@pytest.mark.parametrize("options", [{}, {"preset": "official"}, {"affinity": "linear"}])
def test_single_and_identical_images(options: dict[str, Any]) -> None:
    image = pixels("stream")[:1]
    plain = fozo.create("noadapt", engine())(image)
    output = fozo.create("lame", engine(), None, **options)(image)
    np.testing.assert_allclose(output, plain - np.log(np.exp(plain).sum()), atol=1e-4)  # TINY inside the logarithm
    output = fozo.create("lame", engine(), None, **options)(np.repeat(image, 4, axis=0))
    assert np.isfinite(output).all()
    np.testing.assert_allclose(output, output[:1].repeat(4, axis=0), atol=1e-12)


def test_neighbours_pull_an_unsure_image_to_their_class() -> None:
    logits = np.array([[4.0, 0.0], [4.0, 0.0], [0.4, 0.5]])
    kernel = np.ones((3, 3)) - np.eye(3)
    adjusted, _ = adjust(logits, kernel, LAMEConfig())
    assert adjusted[2].argmax() == 0
    np.testing.assert_allclose(np.exp(adjusted).sum(axis=1), 1)
