import numpy as np
import torch

import fozo
from fozo.engines.torch_engine import TorchEngine
from fozo.methods.cazo import CAZO
from tests.helpers import random_images, random_vit


def test_a_new_adapter_does_nothing_and_a_learned_one_does(engine: fozo.Engine, source: fozo.Statistics) -> None:
    plain = fozo.NoAdapt(engine)(random_images(4))
    method = CAZO(engine, source, passes=3, rate=1e-12, dropout=0.0)
    np.testing.assert_allclose(method(random_images(4)), plain, atol=1e-5)
    eager = CAZO(engine, source, passes=3, rate=1.0, scaled_step=False, dropout=0.0)
    assert np.abs(eager(random_images(4)) - plain).max() > 1e-3


def test_dropout_of_a_chunked_batch_is_that_of_a_whole_one(source: fozo.Statistics) -> None:
    whole = TorchEngine(random_vit(), chunk=64)
    chunked = TorchEngine(random_vit(), chunk=2)
    one = CAZO(whole, source, passes=3, rate=1.0, dropout=0.5)
    other = CAZO(chunked, source, passes=3, rate=1.0, dropout=0.5)
    for seed in range(2):
        np.testing.assert_allclose(one(random_images(5, seed)), other(random_images(5, seed)), atol=1e-4)
    assert torch.equal(whole.vit.head.weight, chunked.vit.head.weight)
