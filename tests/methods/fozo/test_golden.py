"""The authors' own runs of FOZO, replayed through the public classes with their noise injected."""

from __future__ import annotations

import numpy as np
import pytest

from fozo import FOZO
from tests.helpers import Golden

TOLERANCE = 1e-9


def test_source_statistics_equal_the_authors(golden: Golden) -> None:
    trace = golden.trace("fozo_n1_continual_f64")
    np.testing.assert_allclose(golden.source.features.mean.ravel(), trace["src_all_mean"], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(golden.source.features.std.ravel(), trace["src_all_std"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("mode", ["continual", "reset"])
@pytest.mark.parametrize("n", [1, 3])
def test_replays_the_authors_run(golden: Golden, n: int, mode: str) -> None:
    trace = golden.trace(f"fozo_n{n}_{mode}_f64")
    images = golden.images["stream"]
    ends = np.cumsum(trace["batch_size"])
    method: FOZO | None = None
    for t, (end, size) in enumerate(zip(ends, trace["batch_size"], strict=True)):
        batch = slice(end - size, end)
        domain = int(trace["domain"][t])
        if method is None or (mode == "reset" and domain != trace["domain"][t - 1]):
            start = trace["prompts_init"] if t == 0 else trace["prompts_after_reset"][domain - 1]
            noise = trace["Z"][t:]
            method = FOZO(
                golden.engine,
                golden.source,
                passes=2 * n,
                preset="official",
                start=start[0],
                noise=lambda step, shape, noise=noise: noise[step].reshape(shape),
            )
        assert method.spsa.pace.epsilon == trace["eps_used"][t]
        assert method.spsa.pace.rate == trace["lr_before"][t]
        shift = method.shift.vector(golden.source.pooled.mean)
        assert (shift is not None) == trace["has_shift"][t]
        if shift is not None:
            np.testing.assert_allclose(shift, trace["shift_vector"][t], rtol=0, atol=TOLERANCE)

        logits = method(images[batch])

        np.testing.assert_allclose(logits, trace["logits"][batch], rtol=0, atol=TOLERANCE)
        # The returned logits are those of the pass the authors' program chose, and of no other.
        passes = trace["logits_pm"][batch].reshape(size, 2 * n, -1)
        distances = np.abs(passes - logits[:, None]).max(axis=(0, 2))
        assert int(np.argmin(distances)) == trace["best_index"][t]
        last = method.spsa.last
        assert last is not None and method.shift.average is not None
        np.testing.assert_allclose(np.array(last.gradients), trace["projected_grad"][t], rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(last.loss, trace["best_loss"][t], rtol=0, atol=TOLERANCE)
        metrics = {"loss": last.loss, "epsilon": trace["eps_used"][t], "rate": trace["lr_after"][t]}
        assert method.metrics() == pytest.approx(metrics, rel=0, abs=TOLERANCE)
        np.testing.assert_allclose(method.prompts, trace["prompts_after"][t][0], rtol=0, atol=TOLERANCE)
        assert method.spsa.pace.average == pytest.approx(trace["avg_loss_after"][t], rel=0, abs=TOLERANCE)
        assert method.spsa.pace.jumped == trace["loss_increasing"][t]
        assert method.spsa.pace.epsilon == trace["eps_after"][t]
        assert method.spsa.pace.rate == trace["lr_after"][t]
        np.testing.assert_allclose(method.shift.average, trace["hist_after"][t], rtol=0, atol=TOLERANCE)
