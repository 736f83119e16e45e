"""One contract for every registered method: whoever adds one gets these tests for nothing."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

import fozo
from fozo.engines.base import NO_KNOBS, Engine, Floats, Images, Knobs, Spec, Taps, Tokens
from fozo.engines.torch_engine import TorchEngine
from fozo.methods.base import Method, State
from fozo.methods.eata import fisher
from tests.helpers import random_images, random_vit

METHODS = sorted(fozo.methods())
TORCH_ONLY = {"tent": "gradients", "eata": "gradients", "sar": "gradients", "deyo": "gradients", "zoa": "LayerNorm"}
SUBSET = [5, 1, 3]

# Options that make a method adapt to every batch of the random model, whose predictions are never sure.
EAGER: dict[str, dict[str, object]] = {
    "tent": {"rate": 0.05},
    "sar": {"rate": 0.05, "margin": 2.0, "collapse": 0.0},
    "eata": {"rate": 0.001, "margin": 2.0, "likeness": 2.0},
    "deyo": {"rate": 0.05, "margin": 2.0, "drop": -1.0},
    "zoa": {"smallest": 4, "threshold": 0.001},
    "foa": {"passes": 3},
}


@functools.cache
def engine(dtype: str = "float32", subset: bool = False) -> TorchEngine:
    vit = random_vit().to(getattr(torch, dtype))
    return TorchEngine(vit, classes=SUBSET if subset else None)


@functools.cache
def source(dtype: str = "float32") -> fozo.SourceStatistics:
    return fozo.SourceStatistics.collect(engine(dtype), [random_images(32, seed=100)])


def create(name: str, dtype: str = "float32", subset: bool = False, on: TorchEngine | None = None) -> Method:
    used = on or engine(dtype, subset)
    options = dict(EAGER.get(name, {}))
    if name == "eata":
        options["fisher"] = fisher(used, [random_images(8, seed=101)])
    return fozo.create(name, used, source(dtype), **options)


def stream(batches: int, size: int = 6, start: int = 0) -> list[npt.NDArray[np.float32]]:
    """Batches whose statistics wander, so that ZOA sees new domains."""
    return [np.float32(1 + 0.3 * (i // 3)) * random_images(size, seed=start + i) for i in range(batches)]


def same(one: State, other: State) -> bool:
    equal = [np.array_equal(value, other[key], equal_nan=True) for key, value in one.items() if key in other]
    return one.keys() == other.keys() and all(equal)


def changes(name: str) -> bool:
    return name not in ("noadapt", "lame")


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numpy_in_numpy_out_of_the_models_precision(name: str, dtype: str) -> None:
    method = create(name, dtype)
    for size in (6, 6, 2, 1, 6, 1):  # a ragged batch, and batches of one in mid-stream
        logits = method(random_images(size, seed=size))
        assert isinstance(logits, np.ndarray)
        assert logits.shape == (size, 7)
        assert logits.dtype == np.dtype(dtype)
        assert np.isfinite(logits).all()


@pytest.mark.parametrize("name", METHODS)
def test_torch_in_torch_out_with_the_same_numbers(name: str) -> None:
    by_numpy, by_torch = create(name), create(name)
    for images in stream(3):
        expected = by_numpy(images)
        with torch.inference_mode():  # the mode that deployed models run in must not disturb gradients
            got = by_torch(torch.from_numpy(images))
        assert isinstance(got, torch.Tensor)
        assert not got.requires_grad
        assert np.array_equal(got.numpy(), expected)


@pytest.mark.parametrize("name", METHODS)
def test_single_images_from_the_very_first_on(name: str) -> None:
    method = create(name)
    for i in range(5):
        assert np.isfinite(method(random_images(1, seed=i))).all()


@pytest.mark.parametrize("name", METHODS)
def test_a_class_mask_needs_no_option(name: str) -> None:
    method = create(name, subset=True)
    for images in stream(4):
        logits = method(images)
        assert logits.shape == (6, len(SUBSET))
    plain = create("noadapt")(images)
    np.testing.assert_allclose(create("noadapt", subset=True)(images), plain[:, SUBSET], atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_it_adapts_unless_it_says_that_it_does_not(name: str) -> None:
    method = create(name)
    new = method.state()
    for images in stream(4):
        method(images)
    assert same(new, method.state()) != changes(name)


@pytest.mark.parametrize("name", METHODS)
def test_the_same_again(name: str) -> None:
    one, other = create(name), create(name)
    for images in stream(5):
        assert np.array_equal(one(images), other(images))


@pytest.mark.parametrize("name", METHODS)
def test_a_saved_state_continues_bit_for_bit(name: str, tmp_path: Path) -> None:
    unbroken, first, second = create(name), create(name), create(name)
    batches = stream(9)
    expected = [unbroken(images) for images in batches]
    for images in batches[:5]:
        first(images)
    first.save(tmp_path / "state.npz")
    second(random_images(6, seed=77))  # whatever it learned before must not shine through
    second.restore(tmp_path / "state.npz")
    for images, logits in zip(batches[5:], expected[5:], strict=True):
        assert np.array_equal(second(images), logits)


@pytest.mark.parametrize("name", METHODS)
def test_a_state_of_the_beginning_can_be_restored(name: str, tmp_path: Path) -> None:
    method, other = create(name), create(name)
    other.save(tmp_path / "state.npz")
    for images in stream(3):
        method(images)
    method.restore(tmp_path / "state.npz")
    for images in stream(3):
        assert np.array_equal(method(images), other(images))


@pytest.mark.parametrize("name", METHODS)
def test_another_models_state_is_refused(name: str, tmp_path: Path) -> None:
    create(name).save(tmp_path / "state.npz")
    with pytest.raises(fozo.FozoError, match="classes"):
        create(name, subset=True).restore(tmp_path / "state.npz")


@pytest.mark.parametrize("name", METHODS)
def test_reset_is_exact(name: str) -> None:
    used, new = create(name), create(name)
    for images in stream(4, start=50):
        used(images)
    used.reset()
    before, after = new.state(), used.state()
    assert same(before, after)
    for images in stream(4):
        assert np.array_equal(used(images), new(images))


@pytest.mark.parametrize("name", METHODS)
def test_the_users_model_is_never_touched(name: str) -> None:
    vit = random_vit()
    own = TorchEngine(vit)
    state = {key: tensor.clone() for key, tensor in vit.state_dict().items()}
    method = create(name, on=own)
    for images in stream(20):
        method(images)
    assert own.vit is vit
    assert all(torch.equal(tensor, state[key]) for key, tensor in vit.state_dict().items())
    assert not any(parameter.requires_grad or parameter.grad is not None for parameter in vit.parameters())


@pytest.mark.parametrize("name", METHODS)
def test_global_random_numbers_are_left_alone(name: str) -> None:
    torch_before, numpy_before = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002 - it is asked about
    method = create(name)
    for images in stream(3):
        method(images)
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert str(np.random.get_state()) == numpy_before  # noqa: NPY002


def broken_images() -> npt.NDArray[np.float32]:
    images = random_images(4)
    images[2, 0, 0, 0] = np.nan
    return images


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("images", "message"),
    [
        (broken_images, "image 2 of the batch"),
        (lambda: random_images(0), "no images"),
        (lambda: random_images(2)[:, :, :8], "resize"),
        (lambda: np.zeros((2, 3, 16, 16), dtype=np.int64), "normalise"),
    ],
)
def test_bad_images_are_refused_and_change_nothing(
    name: str, images: Callable[[], npt.NDArray[np.float32]], message: str
) -> None:
    method = create(name)
    method(random_images(4))
    before = method.state()
    with pytest.raises(fozo.FozoError, match=message):
        method(images())
    after = method.state()
    assert same(before, after)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "noadapt"])
def test_a_model_that_breaks_is_reported_and_changes_nothing(name: str) -> None:
    own = TorchEngine(random_vit())
    method, twin = create(name, on=own), create(name)
    for images in stream(2):
        method(images), twin(images)
    before = method.state()
    weight = dict(own.vit.named_parameters())["blocks.3.mlp.fc2.weight"]
    healthy = weight.clone()
    weight.fill_(float("inf"))
    with pytest.raises(fozo.FozoError, match="finite"):
        method(random_images(4))
    after = method.state()
    assert same(before, after)
    weight.copy_(healthy)
    for images in stream(2, start=9):
        assert np.array_equal(method(images), twin(images))


class NumpyTokens:
    """Tokens of :class:`NumpyEngine`."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.batch = tokens.batch


class NumpyEngine:
    """An engine of which only the protocol can be used, as an ONNX engine is."""

    def __init__(self) -> None:
        self._inner: Engine = engine()

    @property
    def spec(self) -> Spec:
        return self._inner.spec

    def embed(self, images: Images) -> NumpyTokens:
        return NumpyTokens(self._inner.embed(images))

    def run(self, tokens: Tokens, knobs: Knobs = NO_KNOBS, *, patch_moments: bool = False) -> Taps:
        assert isinstance(tokens, NumpyTokens)
        return self._inner.run(tokens.tokens, knobs, patch_moments=patch_moments)

    def logits(self, pooled: Floats) -> Floats:
        return self._inner.logits(pooled)


@pytest.mark.parametrize("name", METHODS)
def test_forward_only_methods_run_on_any_engine_and_the_others_say_why_not(name: str) -> None:
    options = EAGER.get(name, {})
    if name in TORCH_ONLY:
        with pytest.raises(fozo.FozoError, match=rf"{name} needs .*{TORCH_ONLY[name]}.*: use a torch engine"):
            fozo.create(name, NumpyEngine(), source(), **options)
        return
    method, expected = fozo.create(name, NumpyEngine(), source(), **options), create(name)
    for images in stream(3):
        assert np.array_equal(method(images), expected(images))


@pytest.mark.parametrize("name", METHODS)
def test_its_entry_in_the_list_is_complete(name: str) -> None:
    info = fozo.methods()[name]
    assert info.name == name
    assert info.summary and info.passes and info.adapts and info.paper
    assert info.needs_gradient == (TORCH_ONLY.get(name) == "gradients")
    assert (create(name).parameters > 0) == (name not in ("noadapt", "lame", "t3a"))
    if info.needs_source:
        with pytest.raises(fozo.FozoError, match="source statistics"):
            fozo.create(name, engine())


@pytest.mark.parametrize("name", METHODS)
def test_unknown_options_are_refused(name: str) -> None:
    with pytest.raises(fozo.FozoError, match="nonsense"):
        fozo.create(name, engine(), source(), nonsense=1)


def test_gradient_methods_refuse_tokens() -> None:
    with pytest.raises(fozo.FozoError, match="call it with the images"):
        create("tent").adapt(engine().embed(random_images(2)))


def test_all_are_known_without_torch() -> None:
    code = "import sys, fozo; print(len(fozo.methods()), 'torch' in sys.modules, 'cma' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split() == [str(len(METHODS)), "False", "False"]
