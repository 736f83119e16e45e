from typing import Any

import numpy as np
import pytest

import fozo
from fozo.methods.lame import LAMEConfig, adjust
from tests.methods.rival_traces import engine, pixels


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
