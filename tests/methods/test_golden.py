"""Every rival over the traces of its authors' own program: one table, and how each method is made and compared.

A new method adds a :class:`Replay` that makes it, its rows to ``TRACES``, and the trace to ``tests/golden``.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fozo.core.moments import MovingAverage
from fozo.methods.cazo import CAZO, CAZOState
from fozo.methods.common.layernorm import LayerNorms, lower_blocks
from fozo.methods.deyo import DeYO
from fozo.methods.eata import EATA, Fisher, measure_fisher
from fozo.methods.registry import AnyMethod
from fozo.methods.sar import SAR
from fozo.methods.tent import Tent
from fozo.methods.zoa import ZOA
from tests.methods.rival_traces import TOLERANCE, Array, Trace, close, engine, load, pixels, replay, source

Comparison = tuple[str, npt.ArrayLike, npt.ArrayLike]  # what it is, ours, theirs


class Replay:
    """How a method is made for a trace, and what is compared besides the logits."""

    stream = "stream"
    """The images that the trace is of."""

    def __init__(self, trace: Trace, **options: Any) -> None:
        self.trace = trace
        self.options = options

    def make(self) -> AnyMethod:
        """The method as the authors' program begins."""
        raise NotImplementedError

    def renew(self, method: AnyMethod) -> AnyMethod:
        """What the authors' program does before a new domain."""
        method.reset()
        return method

    def compare(self, t: int, method: AnyMethod) -> Iterator[Comparison]:
        """What batch ``t`` has led to."""
        yield from ()

    def prepare_next(self, t: int, method: AnyMethod) -> None:
        """Before batch ``t``."""


class NormsReplay(Replay):
    """Compares every LayerNorm of the adapted model with the trace's, where it is kept."""

    blocks: range | None = None

    def __init__(self, trace: Trace, **options: Any) -> None:
        super().__init__(trace, **options)
        self.norms = LayerNorms(engine(), self.blocks)
        assert set(self.norms.names) == set(trace["updated"])  # the others cannot change

    def compare(self, t: int, method: AnyMethod) -> Iterator[Comparison]:
        kept = self.trace.after("ln_after", t)
        if kept is None:
            return
        self.norms.write(method.state().norms)
        tensors = self.norms.engine.vit.state_dict()
        for name, (weight, bias) in zip(self.trace["ln_names"], kept, strict=True):
            yield f"{name}.weight", tensors[f"{name}.weight"], weight
            yield f"{name}.bias", tensors[f"{name}.bias"], bias


class TentReplay(NormsReplay):
    def make(self) -> Tent:
        return Tent(engine(), rate=self.trace.hp["lr"])


@functools.cache
def fisher() -> Fisher:
    return measure_fisher(engine(), np.split(pixels("source")[:128], 8))


class EATAReplay(NormsReplay):
    def make(self) -> EATA:
        hp = self.trace.hp
        weight = hp["fisher_alpha"] or 0.0
        information = fisher() if weight else None
        options = {"rate": hp["lr"], "d_margin": hp["d_margin"], "fisher_weight": weight, "fisher": information}
        return EATA(engine(), preset="official", **options)

    def compare(self, t: int, method: AnyMethod) -> Iterator[Comparison]:
        yield from super().compare(t, method)
        state = method.state()
        if state.averaged:
            yield "average prediction", state.average, self.trace["probs_ema_after"][t]


class SARReplay(NormsReplay):
    blocks = lower_blocks(engine().spec.depth)

    def make(self) -> SAR:
        margin = self.trace.hp["margin"] / math.log(10)
        return SAR(engine(), rate=self.trace.hp["lr"], e_margin=margin, **self.options)

    def renew(self, method: AnyMethod) -> AnyMethod:
        """SAR's program makes a new net for each domain, FOA's calls reset(), which lets the momentum survive."""
        return self.make() if self.options["preset"] == "official" else super().renew(method)

    def compare(self, t: int, method: AnyMethod) -> Iterator[Comparison]:
        yield from super().compare(t, method)
        state = method.state()
        average = math.nan if state.average_loss is None else state.average_loss
        yield "average loss", average, self.trace["ema_after"][t]
        if "reset_flag" in self.trace.arrays and self.trace["reset_flag"][t]:
            yield "recovered LayerNorms", state.norms, method.init().norms


class DeYOReplay(NormsReplay):
    blocks = lower_blocks(engine().spec.depth)

    def make(self) -> DeYO:
        batches = iter(range(len(self.trace)))

        def recorded(step: int, images: int, pieces: int) -> npt.NDArray[np.int64]:
            order: npt.NDArray[np.int64] = self.trace["perm"][self.trace.rows(next(batches))]
            assert order.shape == (images, pieces)
            return order

        return DeYO(engine(), preset="official", rate=self.trace.hp["lr"], permutations=recorded)


class ZOAReplay(Replay):
    stream = "zoa"

    def __init__(self, trace: Trace, **options: Any) -> None:
        super().__init__(trace, **options)
        self.norms = LayerNorms(engine(), lower_blocks(engine().spec.depth, first=1))
        assert [name.removesuffix(".weight") for name in self.norms.names[::2]] == trace["layer_names"].tolist()

    def make(self) -> ZOA:
        return zoa_of(self.trace)

    def compare(self, t: int, method: AnyMethod) -> Iterator[Comparison]:
        trace = self.trace
        state = method.state()
        offsets = state.knowledge.offsets
        count = int(trace["weight_nums"][t])
        yield "number of offsets", len(offsets), count
        point = state.search.point
        mixture = point[:count]
        learned = point[count:]
        yield "mixture", mixture, trace["alpha_after"][t][:count]
        expected = trace.after("eps_after", t)
        if expected is not None:
            yield "e", learned, expected
        yield "domain mean", state.domain.average[0], trace["domain_mean_after"][t]
        yield "domain variance", state.domain.average[1], trace["domain_var_after"][t]
        yield "shift", state.shift.average, trace["hist_after"][t]
        expected = trace.after("fused_after", t)
        if expected is not None:
            scores = np.exp(method.config.inverse_temperature * mixture)
            yield "LayerNorms", self.norms.values() + scores / scores.sum() @ offsets + learned, expected.ravel()
        if t + 1 == len(trace):
            table = trace["similar_matrix_final"]
            yield "bank", offsets, trace["bank_final"].reshape(count, -1)
            yield "similarity table", state.knowledge.similarity[: len(table), : len(table)], table


def zoa_of(trace: Trace) -> ZOA:
    """The authors' program, with the draws that it made."""
    samples = trace.hp["sp_avg"]

    def noise(step: int, shape: tuple[int, ...]) -> Array:
        draw, odd = divmod(step, 2)
        recorded = trace["perturb_eps" if odd else "perturb_alpha"]  # [batch, draw, number]
        batch, index = divmod(draw, recorded.shape[1])
        numbers: Array = recorded[batch, index, : shape[0]]
        return numbers

    method = ZOA(
        engine(),
        source(),
        preset="official",
        passes=trace.hp["steps"] * (1 + samples),
        samples=samples,
        capacity=trace.hp["max_weight_nums"],
        noise=noise,
    )
    start = method.state()
    point = start.search.point.copy()
    point[:1] = trace["alpha_init"]  # ours begins with zero, which one number alone is as good as
    method.load_state(replace(start, search=replace(start.search, point=point)))
    return method


class CAZOReplay(Replay):
    """Runs by itself if ``free``; otherwise every batch starts from the recorded state.

    With the published constants the curvature swings, and lets rounding errors grow fourfold a batch.
    """

    def __init__(self, trace: Trace, *, free: bool) -> None:
        super().__init__(trace)
        self.free = free
        self.batch = 0
        self.passes = 2 * trace.hp["pertub"] + 1
        self.restarts = iter(trace["theta_after_reset"]) if trace.hp["mode"] == "reset" else iter([])
        if "dropout_bits" in trace.arrays:
            shape = trace["dropout_shape"]
            self.kept = np.unpackbits(trace["dropout_bits"], count=int(shape.prod())).reshape(shape).astype(bool)

    def make(self) -> CAZO:
        return self.starting_at(self.trace["theta_init"])

    def renew(self, method: AnyMethod) -> AnyMethod:
        return self.starting_at(next(self.restarts))

    def starting_at(self, start: Array) -> CAZO:
        hp = self.trace.hp
        return CAZO(
            engine(),
            source(),
            passes=self.passes,
            rate=hp["lr"],
            epsilon=hp["epsilon"],
            nu=hp["nu"],
            momentum=hp["beta"] if hp["optimizer_type"] == "sgd_momentum" else 0.0,
            weight=hp["fitness_lambda"],
            blocks=hp["adapter_layer"],
            placement=hp["adapter_style"],
            dropout=hp["dropout"],
            start=start,
            noise=self.noise,
            keep=self.keep,
        )

    def noise(self, step: int, shape: tuple[int, ...]) -> Array:
        """The directions that the authors' program drew for this batch, wherever the method's own count is."""
        directions: Array = self.trace["Z"][self.batch]
        assert directions.shape == shape
        return directions

    def keep(self, step: int, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
        masks: npt.NDArray[np.bool_] = self.kept[self.trace.rows(self.batch), step % self.passes].transpose(1, 0, 2, 3)
        assert masks.shape == shape
        return masks

    def prepare_next(self, t: int, method: AnyMethod) -> None:
        self.batch = t
        if not self.free:
            method.load_state(self.recorded(method.state(), t - 1))

    def recorded(self, state: CAZOState, t: int) -> CAZOState:
        """What the authors' program had after batch ``t``."""
        trace = self.trace
        steps = int(trace["t_after"][t])
        return replace(
            state,
            theta=trace["theta_after"][t],
            curvature=trace["D_after"][t],
            velocity=trace["momentum_after"][t] if "momentum_after" in trace.arrays else state.velocity,
            shift=MovingAverage(trace["hist_after"][t], steps),
            steps=steps,
        )

    def compare(self, t: int, method: AnyMethod) -> Iterator[Comparison]:
        trace = self.trace
        state = method.state()
        yield "theta", state.theta, trace["theta_after"][t]
        yield "curvature", state.curvature, trace["D_after"][t]
        yield "loss", method.metrics()["loss"], trace["final_loss"][t]
        yield "steps", state.steps, trace["t_after"][t]
        yield "shift", state.shift.average, trace["hist_after"][t]


@dataclass(frozen=True)
class Row:
    """A trace, and how it is replayed."""

    trace: str
    kind: type[Replay]
    options: dict[str, Any] = field(default_factory=dict)
    tolerance: float = TOLERANCE


TRACES = [
    Row("tent_reset", TentReplay),
    Row("tent_hot_continual", TentReplay),
    Row("sar_official_reset", SARReplay, {"preset": "official"}),
    Row("sar_official_hot_continual", SARReplay, {"preset": "official"}),
    Row("sar_official_edge_continual", SARReplay, {"preset": "official"}),
    Row("sar_foavariant_reset", SARReplay, {"preset": "foa"}),
    Row("eata_reset", EATAReplay),
    Row("eata_hot_continual", EATAReplay),
    Row("eta_nofisher_reset", EATAReplay),
    Row("deyo_reset", DeYOReplay),
    Row("deyo_hot_continual", DeYOReplay),
    Row("zoa_steps1", ZOAReplay),
    Row("zoa_steps2", ZOAReplay),
    Row("zoa_bank2_rounds2", ZOAReplay),
    Row("cazo_k3_reset", CAZOReplay, {"free": True}),
    Row("cazo_k20_reset", CAZOReplay, {"free": True}),
    Row("cazo_k3_nodropout_reset", CAZOReplay, {"free": True}),
    Row("cazo_k3_momentum_seq_continual", CAZOReplay, {"free": True}),
    Row("cazo_k3_continual", CAZOReplay, {"free": False}),
    Row("cazo_k3_hot_continual", CAZOReplay, {"free": False}),
    Row("cazo_k20_continual", CAZOReplay, {"free": False}),
]


@pytest.mark.parametrize("row", TRACES, ids=lambda row: row.trace)
def test_it_replays_the_authors_trace(row: Row) -> None:
    trace = load(row.trace, row.kind.stream)
    rival = row.kind(trace, **row.options)
    for t, method in replay(trace, rival.make(), rival.renew, row.tolerance):
        for what, ours, theirs in rival.compare(t, method):
            close(ours, theirs, f"{what} after batch {t}", row.tolerance)
        if t + 1 < len(trace):
            rival.prepare_next(t + 1, method)


def test_the_fisher_information_is_the_authors() -> None:
    close(fisher().values, load("eata_reset")["fisher"].ravel(), "Fisher information")
