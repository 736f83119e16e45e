import numpy as np
import pytest
import torch

import fozo
from fozo.methods.cazo import CAZO
from fozo.types import State
from tests.helpers import random_images
from tests.methods.rival_traces import Array, Trace, close, engine, load, source


class Recorded:
    """The random numbers that the authors' program drew: batch by batch, wherever the method's own count is."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.t, self.passes = trace, 0, 2 * trace.hp["pertub"] + 1
        if "dropout_bits" in trace.arrays:
            shape = trace["dropout_shape"]
            self.kept = np.unpackbits(trace["dropout_bits"], count=int(shape.prod())).reshape(shape).astype(bool)

    def noise(self, step: int, shape: tuple[int, ...]) -> Array:
        found: Array = self.trace["Z"][self.t]
        assert found.shape == shape
        return found

    def keep(self, step: int, shape: tuple[int, ...]) -> Array:
        found: Array = self.kept[self.trace.rows(self.t), step % self.passes].transpose(1, 0, 2, 3)
        assert found.shape == shape
        return found


def make(trace: Trace, recorded: Recorded, start: Array) -> CAZO:
    hp = trace.hp
    return CAZO(
        engine(),
        source(),
        passes=recorded.passes,
        rate=hp["lr"],
        epsilon=hp["epsilon"],
        nu=hp["nu"],
        momentum=hp["beta"] if hp["optimizer_type"] == "sgd_momentum" else 0.0,
        weight=hp["fitness_lambda"],
        blocks=hp["adapter_layer"],
        placement=hp["adapter_style"],
        dropout=hp["dropout"],
        start=start,
        noise=recorded.noise,
        keep=recorded.keep,
    )


def recorded_state(method: CAZO, trace: Trace, t: int) -> State:
    """What the authors' program had after batch ``t``."""
    state = method.state() | {
        "theta": trace["theta_after"][t], "curvature": trace["D_after"][t], "shift": trace["hist_after"][t][None],
        "steps": np.array(int(trace["t_after"][t])),
    }  # fmt: skip
    return state | ({"velocity": trace["momentum_after"][t]} if "momentum_after" in trace.arrays else {})


@pytest.mark.parametrize(
    ("name", "free"),
    [
        ("k3_reset", True),
        ("k20_reset", True),
        ("k3_nodropout_reset", True),
        ("k3_momentum_seq_continual", True),
        ("k3_continual", False),
        ("k3_hot_continual", False),
        ("k20_continual", False),
    ],
)
def test_replays_the_authors_trace(name: str, free: bool) -> None:
    """``free`` runs by itself; otherwise every batch starts from the recorded state.

    With the published constants the curvature swings, and lets rounding errors grow fourfold a batch.
    """
    trace = load(f"cazo_{name}")
    recorded = Recorded(trace)
    restarts = iter(trace["theta_after_reset"]) if trace.hp["mode"] == "reset" else iter([])
    method = make(trace, recorded, trace["theta_init"])
    for t in range(len(trace)):
        recorded.t = t
        if trace.new_domain(t):
            method = make(trace, recorded, next(restarts))
        elif t and not free:
            method.load_state(recorded_state(method, trace, t - 1))
        close(method(trace.batch(t)), trace["logits"][trace.rows(t)], f"logits of batch {t}")
        close(method.theta, trace["theta_after"][t], f"theta after batch {t}")
        close(method.curvature, trace["D_after"][t], f"curvature after batch {t}")
        close(method.metrics()["loss"], trace["final_loss"][t], f"loss of batch {t}")
        assert method.steps == trace["t_after"][t] and method.shift.average is not None
        close(method.shift.average, trace["hist_after"][t], f"shift average after batch {t}")


def test_passes_are_what_it_asks_the_engine_for(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    for passes in (3, 5):
        method = CAZO(engine, source, passes=passes)
        calls: list[int] = []
        inner = method.adapters.run
        method.adapters.run = lambda *given: (calls.append(1), inner(*given))[1]  # type: ignore[method-assign, func-returns-value]  # noqa: B023
        method(random_images(3))
        assert len(calls) == passes == method.passes_per_image


def test_a_new_adapter_does_nothing_and_a_learned_one_does(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    plain = fozo.NoAdapt(engine)(random_images(4))
    method = CAZO(engine, source, passes=3, rate=1e-12, dropout=0.0)
    np.testing.assert_allclose(method(random_images(4)), plain, atol=1e-5)
    eager = CAZO(engine, source, passes=3, rate=1.0, scaled_step=False, dropout=0.0)
    assert np.abs(eager(random_images(4)) - plain).max() > 1e-3


def test_dropout_of_a_chunked_batch_is_that_of_a_whole_one(source: fozo.SourceStatistics) -> None:
    from fozo.engines.torch_engine import TorchEngine
    from tests.helpers import random_vit

    whole, chunked = TorchEngine(random_vit(), chunk=64), TorchEngine(random_vit(), chunk=2)
    one, other = (CAZO(used, source, passes=3, rate=1.0, dropout=0.5) for used in (whole, chunked))
    for seed in range(2):
        np.testing.assert_allclose(one(random_images(5, seed)), other(random_images(5, seed)), atol=1e-4)
    assert torch.equal(whole.vit.head.weight, chunked.vit.head.weight)
