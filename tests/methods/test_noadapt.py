from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import fozo
from tests.helpers import random_images, random_vit


def test_it_is_the_plain_model(engine: fozo.Engine, tmp_path: Path) -> None:
    images = random_images(8)
    method = fozo.NoAdapt(engine)
    plain = random_vit()(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(method(images), plain, atol=1e-5)
    assert method.passes_per_image == 1 and method.parameters == 0 and method.state() == {}
    method.save(tmp_path / "state.npz")
    method.restore(tmp_path / "state.npz")
    method.reset()
    np.testing.assert_allclose(method(images), plain, atol=1e-5)
