"""Streams: every image once, the same batches for every reader, resumable, and never a silent failure."""

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fozo.data.corruptions import frost_source
from fozo.data.images import Pixels
from fozo.data.scenarios import SCENARIOS, Continual, Episodic, Gradual, Mixed, Scenario
from fozo.data.sets import CLEAN, Domain, ImageSet, Sample, open_images
from fozo.data.sets.folder import imagenet_r_wnids
from fozo.data.streams import Corrupting, LabelledBatch, Stream
from fozo.errors import FozoError
from fozo.types import Spec
from tests.data.conftest import MakeSpec, Plant
from tests.refusals import refuses

TWO = ("fog", "snow")


class Numbered:
    """A source whose pixels spell the image, and which counts what it is asked for."""

    domains = (CLEAN, *(Domain(kind, severity) for kind in TWO for severity in range(1, 6)))

    def __init__(self, count: int, quick: int = 0, seconds: float = 0.0, broken: int | None = None) -> None:
        samples = tuple(Sample(f"{i}.png", i % 3) for i in range(count))
        store: Any = SimpleNamespace(stamps=lambda paths, domain: [0] * len(paths))  # streams read through their source
        self.images = ImageSet("numbered", samples, tuple("abc"), store)
        self.loads: list[tuple[Domain, int]] = []
        self.quick, self.seconds, self.broken = quick, seconds, broken

    def load(self, domain: Domain, index: int) -> Pixels:
        self.loads.append((domain, index))
        time.sleep(self.seconds if len(self.loads) > self.quick else 0)
        if index == self.broken:
            raise RuntimeError("the disk is on fire")
        return np.full((8, 8, 3), index, np.uint8)

    def describe(self, used: object) -> Mapping[str, object]:
        return {}


def spec_for(size: int = 8, classes: int = 3) -> Spec:
    return Spec("tiny", 1, 4, classes, 3, (size, size), (8, 8), 4, "0", (0.0,) * 3, (1 / 255,) * 3)


def scenario(name: str) -> Scenario:
    return SCENARIOS[name](kinds=TWO, **({"rounds": 2} if name == "recurring" else {}))


def same(first: LabelledBatch, second: LabelledBatch) -> bool:
    return all(np.array_equal(value, vars(second)[name]) for name, value in vars(first).items())


NAMES, COUNTS, SIZES = st.sampled_from(sorted(SCENARIOS)), st.integers(1, 23), st.integers(1, 30)


@settings(max_examples=40, deadline=None)
@given(name=NAMES, count=COUNTS, batch_size=SIZES, seed=st.integers(0, 2**40))
def test_every_image_comes_once_in_each_segment(name: str, count: int, batch_size: int, seed: int) -> None:
    source = Numbered(count)
    stream = Stream(source, spec_for(), scenario(name), batch_size=batch_size, seed=seed, workers=2)
    batches = list(stream.batches())
    assert [batch.index for batch in batches] == list(range(len(stream)))
    expected = []
    for segment in stream.segments:
        starts = range(0, count * len(segment.domains), batch_size)
        sizes = [min(batch_size, starts.stop - start) for start in starts]  # only a segment's last batch is short
        expected += [(segment.name, size, name == "episodic" and i == 0) for i, size in enumerate(sizes)]
    assert [(batch.domain, len(batch.labels), batch.reset) for batch in batches] == expected
    for batch in batches:
        assert batch.images.dtype == np.float32 and batch.labels.dtype == np.int64
        np.testing.assert_array_equal(batch.images[:, 0, 0, 0].round().astype(int), batch.samples)
        np.testing.assert_array_equal(batch.labels, batch.samples % 3)
    wanted = [(domain, i) for segment in stream.segments for domain in segment.domains for i in range(count)]
    assert sorted(source.loads) == sorted(wanted)


@settings(max_examples=40, deadline=None)
@given(name=NAMES, count=COUNTS, batch_size=SIZES, skip=st.floats(0, 1))
def test_fast_forward_equals_skipping_and_loads_nothing_extra(
    name: str, count: int, batch_size: int, skip: float
) -> None:
    stream = Stream(Numbered(count), spec_for(), scenario(name), batch_size=batch_size, workers=2)
    start = round(skip * len(stream))
    skipped = list(islice(stream.batches(), start, None))
    source = Numbered(count)
    forwarded = list(Stream(source, spec_for(), scenario(name), batch_size=batch_size).batches(start))
    assert len(forwarded) == len(stream) - start
    assert all(same(*pair) for pair in zip(skipped, forwarded, strict=True))
    assert len(source.loads) == sum(len(batch.labels) for batch in forwarded)


# --- the same for every reader ---


def test_the_order_never_changes() -> None:
    """Pinned: results of one version must be comparable with those of another."""
    stream = Stream(Numbered(6), spec_for(), Continual(kinds=TWO), batch_size=6, seed=1)
    assert [batch.samples.tolist() for batch in stream.batches()] == [[3, 5, 2, 0, 1, 4], [0, 5, 3, 4, 2, 1]]


def test_fingerprints_tell_streams_apart(plant: Plant, make_spec: MakeSpec) -> None:
    root = plant(f"{label}/{number}.png" for label in "abc" for number in range(4))
    images = open_images(root)
    default: dict[str, Any] = {"source": images, "spec": make_spec(3), "batch_size": 4, "seed": 1}
    default["scenario"] = Continual(kinds=TWO)
    base = Stream(**default)
    changes: list[dict[str, Any]] = [
        {"seed": 2},
        {"batch_size": 5},
        {"scenario": Continual(kinds=TWO[::-1])},
        {"scenario": Continual(kinds=TWO, severity=4)},
        {"scenario": Episodic(kinds=TWO)},
        {"spec": make_spec(3, mean=(0.5,) * 3)},
        {"spec": make_spec(3, size=24)},
        {"source": replace(images, size=None)},
        {"source": images.take(11)},
        {"source": Corrupting(images, 16, seed=9)},
    ]
    others = [Stream(**(default | change)) for change in changes]
    assert len({stream.fingerprint for stream in [base, *others]}) == 1 + len(others)
    # Speed does not change what a stream is; neither does the model beyond its preprocessing.
    again = Stream(**(default | {"spec": make_spec(3, name="other"), "workers": 1}))
    assert again.fingerprint == base.fingerprint
    assert base.describe()["corruption_seed"] == 0 and "frost" not in base.describe()
    assert Stream(images, make_spec(3), Continual(kinds=("frost",))).describe()["frost"] == frost_source()


def test_fingerprints_notice_images_that_were_replaced(plant: Plant, make_spec: MakeSpec) -> None:
    """Names and labels say nothing about pixels, so a run over other images would have been resumed."""
    root = plant(f"{kind}/5/{label}/0.png" for kind in TWO for label in "abc")

    def fingerprint(*kinds: str) -> str:
        return Stream(open_images(root), make_spec(3), Continual(kinds=kinds)).fingerprint

    with pytest.raises(FozoError, match="gradual scenario needs fog/1"):  # which this tree lacks
        Stream(open_images(root), make_spec(3), Gradual(kinds=("fog",)))
    both, fog, snow = fingerprint(*TWO), fingerprint("fog"), fingerprint("snow")
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    Image.fromarray(noise).save(root / "snow" / "5" / "b" / "0.png")
    assert fingerprint(*TWO) != both and fingerprint("snow") != snow
    assert fingerprint("fog") == fog  # unused domains do not count


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"scenario": "chaos"}, r"no scenario 'chaos'; choose from continual"),
    ({"batch_size": 0}, "batch_size is 0"),
    ({"workers": 0}, "workers is 0"),
    ({"seed": -1}, "seed is -1"),
    ({"seed": 2**64}, "seed is 18446744073709551616"),
    ({"scenario": "continual"}, "needs gaussian_noise/5, which this numbered set lacks; it has clean, fog"),
    ({"spec": spec_for(classes=10)}, "3 classes and tiny has 10"),
    ({"spec": replace(spec_for(), mean=None)}, "mean and std of tiny are unknown"),
    ({"spec": replace(spec_for(), channels=4, mean=(0.5,) * 4, std=(0.5,) * 4)}, "4 channels; streams make"),
]


@pytest.mark.parametrize(("changes", "sentence"), REFUSED)
def test_what_does_not_go_together(changes: dict[str, Any], sentence: str) -> None:
    refuses(
        sentence, Stream, **{"source": Numbered(4), "spec": spec_for(), "scenario": Continual(kinds=TWO), **changes}
    )


def test_imagenet_r_needs_a_head_of_its_classes(plant: Plant, make_spec: MakeSpec) -> None:
    images = open_images(plant(f"{wnid}/art_0.png" for wnid in imagenet_r_wnids()))
    clean = Continual(kinds=("clean",), shuffle=False)
    refuses("200 of the model's outputs; restrict the head", Stream, images, make_spec(1000), clean)
    batches = list(Stream(images, make_spec(200, subset=images.mask), clean, batch_size=200).batches())
    assert batches[0].labels.tolist() == list(range(200))


def stream_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fozo-stream")]


@pytest.mark.parametrize("workers", [1, 3])
def test_an_unreadable_image_raises_at_its_own_batch(workers: int) -> None:
    source, in_order = Numbered(12, broken=7), Continual(kinds=TWO, shuffle=False)
    stream = Stream(source, spec_for(), in_order, batch_size=3, workers=workers)
    seen = []
    with pytest.raises(FozoError, match=r"cannot load 7\.png under fog/5 \(the disk is on fire\); leave it out"):
        for batch in stream.batches():
            seen.append(batch.index)
    assert seen == [0, 1] and stream_threads() == []


def test_readers_of_one_stream_do_not_disturb_each_other() -> None:
    stream = Stream(Numbered(10), spec_for(), Mixed(kinds=TWO), batch_size=3, workers=2)
    pairs = list(zip(stream.batches(), stream.batches(), strict=True))
    assert len(pairs) == len(stream) and all(same(*pair) for pair in pairs)
    pairs[0][0].images[:] = -1
    assert (pairs[0][1].images >= 0).all()


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_may_be_given_by_name(plant: Plant, make_spec: MakeSpec, name: str) -> None:
    stream = Stream(open_images(plant(f"{label}/0.png" for label in "abc")), make_spec(3), name)
    assert stream.scenario == SCENARIOS[name]()
    assert len(next(stream.batches()).images) == min(3 * len(stream.segments[0].domains), 64)
