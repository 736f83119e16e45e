"""Align as a user meets it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import fozo
from fozo.core.statistics import SourceStatistics
from fozo.errors import FozoError
from fozo.io import load_arrays
from fozo.testing import same
from fozo.types import NO_KNOBS, Batch, Floats, Knobs, Tap, Taps
from tests.helpers import EngineAround, random_images, random_vit

BATCHES = [random_images(20, seed=i) for i in range(4)]
SHIFTED = [0.3 * batch + 1.0 for batch in BATCHES]


class Watched(EngineAround):
    """An engine that keeps what was asked of it and what it reported, and breaks down after some runs if told to."""

    def __init__(self, engine: fozo.Engine, runs: float = float("inf")) -> None:
        super().__init__(engine)
        self.runs, self.seen = runs, list[tuple[Knobs, Taps]]()

    def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
        self.runs -= 1
        if self.runs < 0:
            raise RuntimeError("out of memory")
        found = super().run(batch, knobs, taps)
        self.seen.append((knobs, found))
        return found


def test_it_is_what_adapter_makes_and_costs_one_pass(
    engine: fozo.Engine, source: SourceStatistics, tmp_path: Path
) -> None:
    source.save(tmp_path / "source.npz")
    for method in (fozo.adapter(engine, source), fozo.adapter(random_vit(), tmp_path / "source.npz")):
        assert isinstance(method, fozo.Align)
        method(BATCHES[0])
        assert method.passes_per_image == 1
    chosen = fozo.adapter(engine, source, passes=2)
    assert isinstance(chosen, fozo.Align) and chosen.config.passes == 2
    with pytest.raises(FozoError, match="no option 'speed'"):
        fozo.adapter(engine, source, speed=1)


def test_the_first_images_are_predicted_as_they_are(engine: fozo.Engine, source: SourceStatistics) -> None:
    method = fozo.Align(engine, source, equaliser_strength=0.0)
    adapted, plain = method(SHIFTED[0]), fozo.NoAdapt(engine)(SHIFTED[0])
    # Equal up to the order of additions, which depends on how many images go through the model together.
    np.testing.assert_allclose(adapted[:8], plain[:8], atol=1e-5)
    assert np.abs(adapted[8:] - plain[8:]).max() > 1e-3


@pytest.mark.parametrize("size", [1, 20])
def test_faded_images_get_their_contrast_back_at_once(engine: fozo.Engine, source: SourceStatistics, size: int) -> None:
    sharp, faded = BATCHES[0][:size], 0.2 * BATCHES[0][:size]
    method = fozo.Align(engine, source, mean_strength=0.0, std_strength=0.0, cls_strength=0.0)
    plain = fozo.NoAdapt(engine)
    wanted = plain(sharp)
    assert np.square(method(faded) - wanted).sum() < 0.5 * np.square(plain(faded) - wanted).sum()
    method.reset()
    np.testing.assert_allclose(method(sharp), wanted, atol=0.1)


def test_tokens_end_nearer_to_their_clean_statistics(engine: fozo.Engine, source: SourceStatistics) -> None:
    watched = Watched(engine)
    method = fozo.Align(watched, source, group_size=20)

    def deviation(batch: Floats) -> float:
        method(batch)
        knobs, taps = watched.seen[-1]
        moved = taps[Tap.PATCH_MEAN]
        if knobs.patches is not None:
            moved = knobs.patches.scale * moved + knobs.patches.shift
        return float(np.square(moved[0].mean(axis=0) - source.patch_mean.mean).sum())

    distances = [deviation(batch) for batch in SHIFTED]
    assert distances[-1] < 0.8 * distances[0]


def test_the_cls_token_ends_nearer_to_its_clean_average_in_the_first_half(
    engine: fozo.Engine, source: SourceStatistics
) -> None:
    half = engine.spec.depth // 2
    clean, left = source.cls.mean[:half], {}
    for strength in (0.0, 0.3):
        watched = Watched(engine)
        method = fozo.Align(watched, source, group_size=20, cls_strength=strength)
        for batch in SHIFTED:
            method(batch)
        knobs, taps = watched.seen[-1]
        assert knobs.cls is not None and (knobs.cls.scale == 1).all()
        shift = knobs.cls.shift[0]
        assert not shift[:, 0].any() and not shift[:, half + 1 :].any()
        assert shift[:, 1 : half + 1].any() == bool(strength)
        moved = taps[Tap.CLS][0][:, :half] + shift[:, 1 : half + 1]
        left[strength] = float(np.square(moved.mean(axis=0) - clean).sum())
    assert left[0.3] < 0.8 * left[0.0]


@pytest.mark.parametrize("size", [1, 20])
def test_a_clean_stream_is_hardly_moved(engine: fozo.Engine, source: SourceStatistics, size: int) -> None:
    changes = []
    for stream in (BATCHES, SHIFTED):
        method, plain = fozo.Align(engine, source, equaliser_strength=0.0), fozo.NoAdapt(engine)
        for batch in stream:
            logits = np.concatenate([method(batch[start : start + size]) for start in range(0, 20, size)])
        changes.append(np.square(logits - plain(batch)).mean())
    assert changes[0] < 0.02 * changes[1]


def test_another_domain_is_not_moved_by_the_memories_of_this_one(engine: fozo.Engine, source: SourceStatistics) -> None:
    method = fozo.Align(engine, source)
    for batch in SHIFTED:
        method(batch)
    inverted = 3 - 2 * BATCHES[0]
    np.testing.assert_allclose(method(inverted)[:8], fozo.NoAdapt(engine)(inverted)[:8], atol=1e-3)
    assert method.metrics()["effective_sample_size"] < 20


def test_the_shift_score_is_about_one_on_clean_images_and_far_above_it_elsewhere(
    engine: fozo.Engine, source: SourceStatistics
) -> None:
    method = fozo.Align(engine, source)
    scores = {}
    for name, batch in (("clean", BATCHES[0]), ("shifted", SHIFTED[0])):
        method(batch)
        scores[name] = method.metrics()["shift"]
    assert 0.2 < scores["clean"] < 5 and scores["shifted"] > 20


@pytest.mark.parametrize("passes", [1, "auto"])
def test_a_failure_in_mid_batch_leaves_no_trace(
    engine: fozo.Engine, source: SourceStatistics, passes: int | str
) -> None:
    watched = Watched(engine)
    method = fozo.Align(watched, source, passes=passes)
    method(BATCHES[0])
    state, metrics, spent = method.state(), method.metrics(), method.passes_per_image
    watched.runs = 2
    with pytest.raises(RuntimeError, match="out of memory"):
        method(SHIFTED[1])
    assert same(method.state(), state)
    assert method.metrics() == metrics and method.passes_per_image == spent


@pytest.mark.parametrize("size", [1, 4])
def test_early_small_batches_are_judged_with_all_images_before_them(
    engine: fozo.Engine, source: SourceStatistics, size: int
) -> None:
    """Of equal images the k-th is judged with k, up to 16, which the variance remembered shows; after a reset too."""
    method = fozo.Align(engine, source)
    for _ in range(2):
        used = []
        for _ in range(24 // size):
            method(np.repeat(BATCHES[0][:1], size, axis=0))
            used.append(round(1 / float(method.state()["variance"][-1, 0])))
        assert used == [min(size * (i + 1), 16) for i in range(24 // size)]
        method.reset()


def test_its_memory_is_saved_in_the_precision_it_has(
    engine: fozo.Engine, source: SourceStatistics, tmp_path: Path
) -> None:
    method = fozo.Align(engine, source)
    method(BATCHES[0])
    method.save(tmp_path / "state.npz")
    _, arrays = load_arrays(tmp_path / "state.npz", "state")
    assert arrays["codes"].dtype == method.state()["codes"].dtype == np.uint8
    assert arrays["codes"].shape == (20, 5 * engine.spec.depth // 2, engine.spec.dim // 2)
    # What an image shows is remembered beside what the blocks added to it.
    assert arrays["contents"].shape == (20, len(source.content.mean))
    assert arrays["mean"].dtype == np.float32


@pytest.mark.parametrize("size", [1, 3, 8, 20])
def test_any_batch_size_and_uniform_images(engine: fozo.Engine, source: SourceStatistics, size: int) -> None:
    method = fozo.Align(engine, source)
    for images in (SHIFTED[0], np.zeros_like(BATCHES[0]), np.ones_like(BATCHES[0])):
        out = np.concatenate([method(images[i : i + size]) for i in range(0, 20, size)])
        assert out.shape == (20, engine.spec.classes) and np.isfinite(out).all()


def test_half_precision(engine: fozo.Engine, source: SourceStatistics) -> None:
    half = fozo.Align(engine, source)(torch.from_numpy(SHIFTED[0]).bfloat16())
    assert isinstance(half, torch.Tensor) and half.isfinite().all()


def test_onnx_gives_the_same_predictions(engine: fozo.Engine, source: SourceStatistics, tmp_path: Path) -> None:
    fozo.export(engine, tmp_path / "model.onnx")
    edge = fozo.Align(fozo.load_engine(tmp_path / "model.onnx"), source, passes=2)
    here = fozo.Align(engine, source, passes=2)
    for batch in SHIFTED:
        np.testing.assert_allclose(edge(batch), here(batch), atol=1e-3)


def test_auto_passes_twice_where_a_domain_begins_and_keeps_its_budget(
    engine: fozo.Engine, source: SourceStatistics
) -> None:
    method = fozo.Align(engine, source, passes="auto", budget=1.1)
    costs = []
    for _ in range(20):
        method(SHIFTED[0])
        costs.append(method.passes_per_image)
    assert costs[0] > 1.3 and costs[1:] == [1.0] * 19 and np.mean(costs) <= 1.1
    method(3 - 2 * BATCHES[0])
    assert method.passes_per_image > 1.3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"passes": 0}, "from 1 to 1000, or 'auto', not 0"),
        ({"passes": 10**30}, "from 1 to 1000, or 'auto', not 1000000"),
        ({"passes": "much"}, "not 'much'"),
        ({"passes": True}, "not True"),
        ({"mean_strength": 1.5}, "mean_strength is 1.5"),
        ({"std_strength": float("nan")}, "std_strength is nan"),
        ({"equaliser_strength": "all"}, "equaliser_strength is 'all'; give a value like 0.7"),
        ({"cls_strength": -0.1}, "cls_strength is -0.1"),
        ({"content_error": -1}, "content_error is -1"),
        ({"content_error": float("inf")}, "content_error is inf"),
        ({"group_size": 0}, "group_size must be above 0, not 0"),
        ({"budget": 0.5}, "budget is 0.5"),
        ({"retrieval.capacity": 0}, "capacity must be above 0, not 0"),
        ({"retrieval.half_life": 0}, "half_life must be above 0, not 0"),
        ({"retrieval.room": 5}, "no option 'retrieval.room'; its options are context, dimensions"),
        ({"passes.much": 5}, "no option 'passes.much'"),
        ({"speed": 1}, "no option 'speed'"),
        ({"preset": "mine"}, "no preset 'mine'; choose from default"),
    ],
)
def test_bad_options(engine: fozo.Engine, source: SourceStatistics, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(FozoError, match=sentence):
        fozo.create("align", engine, source, **options)  # type: ignore[arg-type]
