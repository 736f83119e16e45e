"""Conformance suites: run them over a method or an engine of your own, as fozo's tests do over all of its own.

Each raises an ``AssertionError`` that says which promise of :class:`fozo.Method` or :class:`fozo.Engine` was not kept.
They need no test framework, use small random images, and take a few dozen forward passes.
"""

import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fozo.engines.walk import BlockEngine
from fozo.errors import FozoError, ImageWarning
from fozo.methods.common.info import NEEDS
from fozo.methods.method import Method, Result
from fozo.state import Leaf, State, diff, leaves, rebuild, same
from fozo.types import Answer, Batch, Engine, Floats, Knobs, Move, Spec, Tap, taps_of

Images = npt.NDArray[np.float32]
Factory = Callable[[], Method[Any, Any]]
SAME_TOKENS = 1e-9
"""Tokens whose covariance is less than this part of their largest square are the same."""
LAYERS = (Tap.CLS, Tap.FEATURES, Tap.PATCH_MEAN, Tap.PATCH_VARIANCE)


def random_images(spec: Spec, count: int, seed: int = 0) -> Images:
    """Draw normalised images that no camera takes, but every engine has to."""
    numbers = np.random.Generator(np.random.Philox(seed))
    return numbers.standard_normal((count, *spec.image_shape)).astype(np.float32)


def bad_images(spec: Spec) -> dict[str, npt.NDArray[Any]]:
    broken = random_images(spec, 4)
    broken[2, 0, 0, 0] = np.nan
    return {
        "a NaN": broken,
        "a value that no pixel has": np.where(np.isnan(broken), np.float32(1e20), broken),
        "an infinite value": np.where(np.isnan(broken), np.float32(np.inf), broken),
        "no images": broken[:0],
        "another size": random_images(spec, 2)[:, :, :-1],
        "integers": np.zeros((2, *spec.image_shape), dtype=np.int64),
        "one channel without an image": random_images(spec, 1)[0, 0],
    }


@contextmanager
def refused(what: str) -> Iterator[None]:
    try:
        yield
    except FozoError as error:
        assert str(error).strip() and "\n" not in str(error), f"{what}: the error should be one sentence, not {error!r}"
        return
    raise AssertionError(f"{what} was not refused with a FozoError")


@contextmanager
def _refused_unchanged(method: Method[Any, Any], what: str) -> Iterator[None]:
    state = method.state()
    reported = (method.metrics(), method.passes_per_image)
    with refused(what):
        yield
    assert same(state, method.state()), f"{what}, refused, changed the state"
    assert (method.metrics(), method.passes_per_image) == reported, f"{what}, refused, changed metrics or passes"


def check_method(factory: Factory, batches: Sequence[Images] | None = None) -> None:
    """Check that a method keeps the promises of :class:`fozo.Method`.

    Examples:
        >>> check_method(lambda: fozo.create("neo", engine, statistics))

    Args:
        factory: makes a new method on the same engine each time; options that make it adapt to any batch help.
        batches: normalised images to stream, at least six batches; random ones by default.
    """
    spec = factory().engine.spec
    if batches is None:
        batches = [np.float32(1 + 0.3 * (i // 3)) * random_images(spec, 6, seed=i) for i in range(6)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImageWarning)  # random images look like no camera's
        _check_info(factory())
        for check in (
            _check_predictions, _check_values, _check_states, _check_refused_states, _check_refused_batches,
            _check_frozen, _check_clones_and_journals, _check_threads, _check_manners,
        ):  # fmt: skip
            check(factory, batches)


def _check_info(method: Method[Any, Any]) -> None:
    info = method.info
    config = method.config
    for name in ("name", "summary", "passes", "adapts", "paper"):
        assert getattr(info, name), f"MethodInfo.{name} is empty"
    assert info.needs <= NEEDS.keys(), f"{info.name} needs {sorted(info.needs - NEEDS.keys())}, which is unknown"
    frozen = getattr(getattr(config, "__dataclass_params__", None), "frozen", False)
    assert frozen, "the config is not a frozen dataclass"
    assert all(type(preset) is type(config) for preset in method.PRESETS.values()), "a preset is of another class"
    assert type(method).__name__ in repr(method), "repr() does not say what it is"
    for what, preset, options in (("option", None, {"no such": 1}), ("preset", "no such", {})):
        with refused(f"an unknown {what}"):
            method.configure(preset, options)


def _after(batches: Sequence[Images], *methods: Method[Any, Any]) -> tuple[Method[Any, Any], ...]:
    for images in batches:
        for method in methods:
            method(images)
    return methods


def _logits(answer: Floats | Answer) -> Floats:
    assert not isinstance(answer, Answer), "a method is checked on a model that returns logits"
    return answer


def _check_predictions(factory: Factory, batches: Sequence[Images]) -> None:
    one = factory()
    other = factory()
    classes = factory()(batches[0]).shape[1]  # which a black box knows then
    assert classes == one.engine.spec.classes, "logits are not one for each class"
    for images in [*batches, batches[0][:2], batches[0][:1], batches[0], batches[0][:1]]:
        logits = one(images)
        assert isinstance(logits, np.ndarray) and logits.shape == (len(images), classes), "logits have another shape"
        assert logits.dtype.kind == "f" and np.isfinite(logits).all(), "logits are not finite floats"
        assert np.array_equal(logits, other(images)), "the same again gives other predictions"
        assert one.passes_per_image > 0, "passes_per_image is not positive"
        metrics = one.metrics()
        assert all(isinstance(value, float) for value in metrics.values()), "metrics() are not all floats"
        assert np.isfinite(list(metrics.values())).all(), "metrics() are not all finite"
    alone = factory()
    for images in batches[:3]:
        assert np.isfinite(alone(images[:1])).all(), "single images from the first on do not work"


def _check_values(factory: Factory, batches: Sequence[Images]) -> None:
    """A state is a value: it is never written into, and what was learnt later does not show in it."""
    method, twin = _after(batches[:2], factory(), factory())
    old = method.state()
    for path, leaf in leaves(old):
        assert not isinstance(leaf, np.ndarray) or not leaf.flags.writeable, f"{path} of the state can be written into"
    copies = {path: np.array(leaf) for path, leaf in leaves(old)}
    attributes = dict(vars(method))
    _after(batches[2:], method)
    changed = [name for name, value in vars(method).items() if value is not attributes.get(name, value)]
    assert changed in ([], ["_now"]), f"a step sets the attributes {changed}; it should return what it has learnt"
    for path, leaf in leaves(old):
        assert np.array_equal(copies[path], np.array(leaf)), f"a step has changed {path} of an older state"
    method.load_state(old)
    for images in batches[2:]:
        assert np.array_equal(method(images), twin(images)), "an older state does not continue bit for bit"


def _check_states(factory: Factory, batches: Sequence[Images]) -> None:
    unbroken = factory()
    expected = [unbroken(images) for images in batches]
    (first,) = _after(batches[:3], factory())
    (second,) = _after(batches[-1:], factory())  # whatever it learned before must not shine through
    with tempfile.TemporaryDirectory() as folder:
        first.save(Path(folder) / "state")
        second.restore(Path(folder) / "state")
    assert same(first.state(), second.state()), "a restored state is another one"
    for images, logits in zip(batches[3:], expected[3:], strict=True):
        assert np.array_equal(second(images), logits), "a saved state does not continue bit for bit"
    clone = unbroken.clone()
    assert same(clone.state(), factory().state()), "clone() does not give the state of a new method"
    second.load_state(second.init())
    for how, fresh in (("load_state(init())", second), ("clone()", clone)):
        for images, logits in zip(batches[:3], expected, strict=False):
            assert np.array_equal(fresh(images), logits), f"after {how} predictions are not those of a new method"
    state = second.state()
    second.reset()
    assert same(second.state(), second.restart(state)), "reset() does not lead to what restart() returns"


def _check_refused_states(factory: Factory, batches: Sequence[Images]) -> None:
    (method,) = _after(batches[:3], factory())
    good = dict(leaves(method.state()))
    bad: dict[str, dict[str, Leaf]] = {"an array too many": {**good, "no_such_array": np.zeros(3)}}
    for name, leaf in good.items():
        bad[f"{name} missing"] = {path: kept for path, kept in good.items() if path != name}
        if not isinstance(leaf, np.ndarray):
            continue
        bad[f"{name} with an axis too many"] = {**good, name: leaf[None]}
        bad[f"{name} as text"] = {**good, name: np.full(leaf.shape, "text")}
        if leaf.dtype.kind == "f" and leaf.size:
            spoiled = leaf.copy()
            spoiled.flat[0] = np.nan
            bad[f"NaN in {name}"] = {**good, name: spoiled}
    for what, values in bad.items():
        with refused(f"a state with {what}"):
            method.check_state(rebuild(method.init(), values))
    with _refused_unchanged(method, "the state of another method"):
        method.load_state(_Other())


@dataclass(frozen=True)
class _Other(State):
    """The state of no method."""


def _check_refused_batches(factory: Factory, batches: Sequence[Images]) -> None:
    method, twin = _after(batches[:2], factory(), factory())
    step = method.step
    for what, wrong in bad_images(method.engine.spec).items():
        if wrong.ndim == 3:  # an engine refuses it, a method takes it as a batch of one
            continue
        with _refused_unchanged(method, what):
            method(wrong)

    def failing(state: State, batch: Batch) -> Result[Any]:
        raise FozoError(f"after {_logits(step(state, batch).logits).shape}")

    def broken(state: State, batch: Batch) -> Result[Any]:
        result = step(state, batch)
        return replace(result, logits=_logits(result.logits) * np.nan)

    for what, wrong_step in (("a step that raised", failing), ("logits that are not finite", broken)):
        method.step = wrong_step  # type: ignore[method-assign]
        with _refused_unchanged(method, what):
            method(batches[2])
    method.step = step  # type: ignore[method-assign]
    for images in batches[2:]:
        assert np.array_equal(method(images), twin(images)), "after refused batches predictions differ"


def _check_frozen(factory: Factory, batches: Sequence[Images]) -> None:
    method, twin = _after(batches[:3], factory(), factory())
    state = method.state()
    predicted = method.predict(batches[3])
    assert method.state() is state or same(method.state(), state), "predict() learns"
    method.freeze()
    assert np.array_equal(method(batches[3]), predicted), "a frozen method predicts otherwise than predict()"
    assert method.frozen, "freeze() does not show"
    for images in (batches[4], batches[5][:1]):
        assert np.isfinite(method(images)).all(), "a frozen method's logits are not finite"
    assert np.array_equal(method(batches[3]), predicted), "a frozen method predicts the same images differently"
    assert same(method.state(), state), "a frozen method learns"
    method.unfreeze()
    for images in batches[3:]:
        assert np.array_equal(method(images), twin(images)), "freezing leaves a trace in later predictions"


def _check_clones_and_journals(factory: Factory, batches: Sequence[Images]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal"
        method = factory()
        twin = method.clone()
        replayed = method.clone()
        twin.open_journal(journal)
        for images in batches[:3]:
            assert np.array_equal(method(images), twin(images)), "a clone predicts differently from a new method"
        assert same(method.clone().state(), factory().state()), "clone() does not give the state of a new method"
        twin.freeze()
        twin(batches[4])
        twin.close()
        replayed.replay(journal)
        assert not diff(twin.journaled(twin.state()), replayed.state()), "a replayed journal leads elsewhere"
        with refused("a journal with fewer batches"):
            replayed.replay(journal, batches=4)  # a frozen method writes nothing


def _check_threads(factory: Factory, batches: Sequence[Images]) -> None:
    method = factory()
    order: list[int] = []
    answers: dict[int, Floats] = {}
    step = method.step

    def noting(state: State, batch: Batch) -> Result[Any]:
        order.append(next(i for i in range(len(batches)) if np.allclose(batches[i], batch.images)))
        return step(state, batch)

    def work(numbers: range) -> None:
        for i in numbers:
            answers[i] = method(batches[i])

    method.step = noting  # type: ignore[method-assign]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, (range(start, len(batches), 3) for start in range(3))))  # raises what a thread raised
    serial = factory()
    for i in order:
        assert np.array_equal(serial(batches[i]), answers[i]), "threads get results of no serial order"


def _check_manners(factory: Factory, batches: Sequence[Images]) -> None:
    before = str(np.random.get_state())  # noqa: NPY002 - it is asked about
    torch = sys.modules.get("torch")
    seeds = None if torch is None else torch.get_rng_state()
    method = factory()
    twin = factory()
    for images in batches[:2]:
        expected = method(images)
        if torch is not None:
            with torch.inference_mode():  # the mode that deployed models run in must not disturb gradients
                got = twin(torch.from_numpy(images))
            assert isinstance(got, torch.Tensor) and not got.requires_grad, "torch in should be torch out"
            assert np.array_equal(got.numpy(), expected), "torch in gives other numbers than NumPy in"
    assert str(np.random.get_state()) == before, "NumPy's global random numbers were touched"  # noqa: NPY002
    if torch is not None:
        assert torch.equal(torch.get_rng_state(), seeds), "torch's global random numbers were touched"


def check_engine(engine: Engine, tolerance: float = 1e-4) -> None:
    """Check that an engine keeps the promises of :class:`fozo.Engine`.

    Examples:
        >>> check_engine(engine)

    Args:
        engine: what to check.
        tolerance: how far results may differ where only the order of additions does, as a part of their deviation;
            dynamic INT8 measures ranges by the call and needs more (0.2, say).
    """
    spec = engine.spec
    assert isinstance(engine, Engine), "it lacks a part of the Engine protocol"
    assert engine.abilities <= NEEDS.keys() and isinstance(engine.device, str), "abilities or device are unknown"
    images = random_images(spec, 3)
    for what, wrong in bad_images(spec).items():
        with refused(what):
            engine.check(wrong)
    batch = engine.check(images)
    assert len(batch) == 3 and len(batch.part(slice(1, 3))) == 2, "a batch miscounts its images"
    assert np.allclose(batch.images, images) and batch.images.dtype.kind == "f", "a batch shows other images"
    plain = engine.run(batch)
    classes = engine.spec.classes  # which a black box may know only now
    assert list(plain) == [Tap.LOGITS] and plain[Tap.LOGITS].shape == (1, 3, classes), "logits come by default"
    again = engine.run(batch.with_images(images))[Tap.LOGITS]
    assert np.array_equal(plain[Tap.LOGITS], again), "the same images give other logits"
    _close(engine.run(batch.part(slice(1, 2)))[Tap.LOGITS], plain[Tap.LOGITS][:, 1:2], tolerance, "one image alone")
    if "tokens" in engine.abilities:
        _check_taps(engine, batch, tolerance)
        _check_knobs(engine, batch, tolerance)
        _check_matrices(engine, batch, tolerance)
        if "blocks" in engine.abilities:
            assert isinstance(engine, BlockEngine), "it says that it can stop between blocks, and has no walk()"
            walked = engine.walk(batch, lambda layer, moments: None)
            assert list(walked) == [Tap.POOLED, Tap.LOGITS], "a walk reports other taps"
            _close(walked[Tap.LOGITS], plain[Tap.LOGITS], tolerance, "a walk that moves nothing")
        return
    with refused("a tap of tokens that the engine does not have"):
        engine.run(batch, taps=(Tap.CLS,))
    with refused("a knob where there is none"):
        engine.run(batch, Knobs(prompts=np.zeros((1, 1, 1))))


def _close(got: Floats, expected: Floats, tolerance: float, what: str) -> None:
    difference = float(np.abs(got - expected).max() / max(float(np.std(expected)), 1e-12))
    assert got.shape == expected.shape and difference <= tolerance, f"{what} differs by {difference:.1e} deviations"


def _check_taps(engine: Engine, batch: Batch, tolerance: float) -> None:
    spec = engine.spec
    head = engine.head()
    taps = taps_of(engine)
    everything = engine.run(batch, taps=taps)
    for tap in taps:
        alone = engine.run(batch, taps=(tap,))
        assert list(alone) == [tap], f"asked for {tap.value} alone, it also gives {[t.value for t in alone]}"
        assert np.array_equal(alone[tap], everything[tap]), f"{tap.value} depends on what else is asked for"
    for tap in LAYERS:
        assert everything[tap].shape == (1, len(batch), spec.depth, spec.dim), f"{tap.value} has another shape"
    pooled = everything[Tap.POOLED]
    logits = everything[Tap.LOGITS]
    assert pooled.shape == (1, len(batch), spec.head_width), "pooled has another shape"
    assert head.weight.shape == (spec.head_width, spec.classes), "the head's weight is not [h, classes]"
    assert np.array_equal(head(pooled), logits), "head() applied to pooled does not give the logits"
    _close(pooled @ head.weight + head.bias, logits, max(tolerance, 1e-4), "x @ weight + bias of head()")


def _check_knobs(engine: Engine, batch: Batch, tolerance: float) -> None:
    spec = engine.spec
    numbers = np.random.Generator(np.random.Philox(9))
    shape = (1, 1, spec.depth, spec.dim)
    identity = Move(np.ones(shape), np.zeros(shape))
    plain = engine.run(batch)[Tap.LOGITS]
    unmoved = engine.run(batch, Knobs(cls=identity, patches=identity))[Tap.LOGITS]
    _close(unmoved, plain, tolerance, "a move that moves nothing")
    prompts = 0.1 * numbers.standard_normal((3, 2, spec.dim))
    if "prompts" in engine.abilities:
        together = engine.run(batch, Knobs(prompts=prompts))[Tap.LOGITS]
        for k in range(3):
            one = engine.run(batch, Knobs(prompts=prompts[k : k + 1]))[Tap.LOGITS]
            _close(one, together[k : k + 1], tolerance, f"candidate {k} alone")
    else:
        with refused("prompts where the sequence cannot grow"):
            engine.run(batch, Knobs(prompts=prompts))
    by_image = (1, len(batch), spec.depth, spec.dim)
    moves = Move(1 + 0.1 * numbers.standard_normal(by_image), 0.1 * numbers.standard_normal(by_image))
    second = Move(moves.scale[:, 1:2], moves.shift[:, 1:2])
    first = engine.run(batch, taps=(Tap.PATCH_MEAN,))[Tap.PATCH_MEAN][:, :, 0]
    pairs = {
        "cls": (Knobs(cls=moves), Knobs(cls=second)),
        "patches": (Knobs(patches=moves), Knobs(patches=second)),
    }
    for name, (all_images, one_image) in pairs.items():
        moved = engine.run(batch, all_images, (Tap.LOGITS, Tap.PATCH_MEAN))
        alone = engine.run(batch.part(slice(1, 2)), one_image)[Tap.LOGITS]
        _close(alone, moved[Tap.LOGITS][:, 1:2], tolerance, f"an image's own {name} move, alone")
        assert np.allclose(moved[Tap.PATCH_MEAN][:, :, 0], first), "taps are to be read before the move"
        matters = name == "patches" or spec.class_token
        assert np.allclose(moved[Tap.LOGITS], plain) != matters, f"the {name} move does nothing, or there is no token"
    wrong = np.ones((1, 1, spec.depth, spec.dim + 1))
    for knobs in (Knobs(prompts=prompts[0]), Knobs(prompts=prompts[..., 1:]), Knobs(cls=Move(wrong, wrong))):
        with refused("a knob of the wrong shape"):
            engine.run(batch, knobs)
    with refused("another engine's batch"):
        engine.run(list(batch.images))  # type: ignore[arg-type]


def _check_matrices(engine: Engine, batch: Batch, tolerance: float) -> None:
    spec = engine.spec
    blocks = len(spec.aligned)
    shape = (1, 1, blocks, spec.dim, spec.dim)
    identity = np.broadcast_to(np.eye(spec.dim), shape)
    if "matrices" not in engine.abilities:
        with refused("matrices that the engine cannot multiply by"):
            engine.run(batch, Knobs(matrices=identity))
        with refused("moments that the engine cannot report"):
            engine.run(batch, taps=(Tap.PATCH_MOMENTS,))
        return
    wrong = np.zeros((1, 1, blocks, spec.dim, spec.dim + 1))
    with refused("matrices of the wrong shape"):
        engine.run(batch, Knobs(matrices=wrong))
    taps = (Tap.LOGITS, Tap.PATCH_MOMENTS)
    plain = engine.run(batch, taps=taps)
    before = plain[Tap.PATCH_MOMENTS]
    moments_shape = (1, len(batch), blocks, spec.dim + 1, spec.dim)
    assert before.shape == moments_shape, f"patch moments are {list(before.shape)}, not {list(moments_shape)}"
    same = engine.run(batch, Knobs(matrices=identity))
    _close(same[Tap.LOGITS], plain[Tap.LOGITS], tolerance, "multiplying by the identity")
    if blocks == 0:
        return
    covariance = before[..., 1:, :]
    symmetric = np.swapaxes(covariance, -1, -2)
    assert np.allclose(covariance, symmetric, atol=1e-5 * covariance.max()), "covariances are not symmetric"
    numbers = np.random.Generator(np.random.Philox(10))
    matrices = identity + 0.3 * numbers.standard_normal((1, len(batch), *shape[2:])) / spec.dim**0.5
    multiplied = engine.run(batch, Knobs(matrices=matrices), taps)
    assert np.allclose(multiplied[Tap.PATCH_MOMENTS][:, :, 0], before[:, :, 0]), (
        "taps are to be read before the product"
    )
    one = engine.run(batch.part(slice(1, 2)), Knobs(matrices=matrices[:, 1:2]))[Tap.LOGITS]
    _close(one, multiplied[Tap.LOGITS][:, 1:2], tolerance, "an image's own matrices, alone")
    shared = engine.run(batch, Knobs(matrices=matrices[:, :1]))[Tap.LOGITS]
    repeated = engine.run(batch, Knobs(matrices=np.tile(matrices[:, :1], (2, len(batch), 1, 1, 1))))[Tap.LOGITS]
    _close(repeated, np.concatenate([shared, shared]), tolerance, "matrices repeated for every candidate and image")
    factors = 1 + 0.3 * numbers.standard_normal((1, 1, blocks, spec.dim))
    scale = np.ones((1, len(batch), spec.depth, spec.dim))
    shift = np.zeros(scale.shape)
    scale[:, :, spec.aligned] = factors
    diagonal = engine.run(batch, Knobs(matrices=factors[..., None] * identity))[Tap.LOGITS]
    moved = engine.run(batch, Knobs(patches=Move(scale, shift)))[Tap.LOGITS]
    _close(diagonal, moved, tolerance, "a diagonal matrix, which scales as a move does,")
    # Patches that are all the same stay the same: then a product is a shift that can be computed outside.
    scale = np.ones(scale.shape)
    scale[:, :, 0] = 0
    shift[:, :, 0] = numbers.standard_normal(spec.dim)
    product = engine.run(batch, Knobs(patches=Move(scale, shift), matrices=matrices), (Tap.LOGITS, Tap.PATCH_MOMENTS))
    tokens = product[Tap.PATCH_MOMENTS][:, :, :, 0]
    spread = np.abs(product[Tap.PATCH_MOMENTS][:, :, :, 1:]).max()
    if spread > SAME_TOKENS * np.square(tokens).max():  # relative positions make a difference
        return
    scale[:, :, spec.aligned] = 0
    shift[:, :, spec.aligned] = np.einsum("kbad,kbade->kbae", tokens, matrices)
    moved = engine.run(batch, Knobs(patches=Move(scale, shift)))[Tap.LOGITS]
    _close(moved, product[Tap.LOGITS], tolerance, "a product of the same token in every place")
