"""The authors' own runs of FOZO, replayed through the public classes with their noise injected."""

import numpy as np
import pytest

from fozo import FOZO
from tests.methods.rival_traces import Array, Trace, close, engine, load, replay, source


def make(trace: Trace, n: int, start: Array, first: int) -> FOZO:
    """A run from batch ``first`` on, with the directions that the authors' program drew."""
    drawn = trace["Z"][first:]
    return FOZO(
        engine(), source(), passes=2 * n, preset="official", start=start[0],
        noise=lambda step, shape: drawn[step].reshape(shape),
    )  # fmt: skip


def test_source_statistics_equal_the_authors() -> None:
    trace = load("fozo_n1_continual")
    close(source().features.mean.ravel(), trace["src_all_mean"], "source mean")
    close(source().features.std.ravel(), trace["src_all_std"], "source deviation")


@pytest.mark.parametrize("mode", ["continual", "reset"])
@pytest.mark.parametrize("n", [1, 3])
def test_replays_the_authors_run(n: int, mode: str) -> None:
    trace = load(f"fozo_n{n}_{mode}")
    firsts = iter(t for t in range(len(trace)) if trace.new_domain(t))
    restarts = iter(trace["prompts_after_reset"])
    begun = make(trace, n, trace["prompts_init"], 0)
    for t, method in replay(trace, begun, lambda _: make(trace, n, next(restarts), next(firsts))):
        # The returned logits are those of the pass that the authors' program chose, and of no other.
        rows, size = trace.rows(t), int(trace["batch_size"][t])
        passes = trace["logits_pm"][rows].reshape(size, 2 * n, -1)
        distances = np.abs(passes - trace["logits"][rows][:, None]).max(axis=(0, 2))
        assert int(np.argmin(distances)) == trace["best_index"][t]
        last, pace = method.spsa.last, method.spsa.pace
        assert last is not None and method.shift.average is not None
        close(np.array(last.gradients), trace["projected_grad"][t].ravel(), f"gradients of batch {t}")
        metrics = {"loss": trace["best_loss"][t], "epsilon": trace["eps_used"][t], "rate": trace["lr_after"][t]}
        assert method.metrics() == pytest.approx(metrics, rel=0, abs=1e-9)
        close(method.prompts, trace["prompts_after"][t][0], f"prompts after batch {t}")
        close(pace.average or np.nan, trace["avg_loss_after"][t], f"average loss after batch {t}")
        assert pace.jumped == trace["loss_increasing"][t]
        assert (pace.epsilon, pace.rate) == (trace["eps_after"][t], trace["lr_after"][t])
        close(method.shift.average, trace["hist_after"][t], f"shift average after batch {t}")
