from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
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


def test_a_broken_model_is_one_clear_error_and_no_nan() -> None:
    vit = random_vit()
    vit.get_parameter("blocks.3.mlp.fc2.weight").fill_(float("inf"))
    with pytest.raises(fozo.FozoError, match="logits of noadapt are not all finite"):
        fozo.NoAdapt(fozo.load_engine(vit))(random_images(4))
