"""One contract for every registered method: a new one is tested by these without more code."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fozo
from fozo.engines.torch_engine import TorchEngine
from fozo.methods.common.measured import MEASURED
from fozo.methods.method import Method
from fozo.state import same
from fozo.testing import check_method
from fozo.types import Engine
from tests.helpers import EngineAround, random_images, random_vit
from tests.refusals import refuses

METHODS = sorted(fozo.list_methods())
SUBSET = [5, 1, 3]
MEAN = (0.5,) * 3
STD = (0.05,) * 3  # of which random images can be normalised pixels
STATIC = ("autolevels", "clahe", "greyworld", "histeq")

# Options that make a method adapt to every batch of the random model, whose predictions always have a high entropy.
EAGER: dict[str, dict[str, Any]] = {
    "tent": {"rate": 0.05},
    "sar": {"rate": 0.05, "e_margin": 2.0, "reset_threshold": 0.0},
    "eata": {"rate": 0.001, "e_margin": 2.0, "d_margin": 2.0},
    "deyo": {"rate": 0.05, "e_margin": 2.0, "plpd_threshold": -1.0},
    "zoa": {"min_batch": 4, "threshold": 0.001},
    "foa": {"passes": 3},
    "cazo": {"passes": 3},
}


@functools.cache
def engine(dtype: str = "float32", subset: bool = False) -> TorchEngine:
    vit = random_vit().to(getattr(torch, dtype))
    return TorchEngine(vit, mean=MEAN, std=STD, classes=SUBSET if subset else None)


@functools.cache
def source(dtype: str = "float32") -> fozo.Statistics:
    return fozo.calibrate(engine(dtype), [random_images(32, seed=100)])


def create(
    name: str,
    dtype: str = "float32",
    subset: bool = False,
    on: Engine | None = None,
    **more: Any,
) -> Method[Any, Any]:
    used = on or engine(dtype, subset)
    options: dict[str, Any] = EAGER.get(name, {}) | more
    for need in fozo.list_methods()[name].needs & MEASURED.keys():
        options[need] = MEASURED[need].measure(used, [random_images(8, seed=101)])
    return fozo.create(name, used, source(dtype), **options)


def stream(batches: int, size: int = 6, start: int = 0) -> list[np.ndarray]:
    """Batches whose statistics wander, so that ZOA sees new domains."""
    return [np.float32(1 + 0.3 * (i // 3)) * random_images(size, seed=start + i) for i in range(batches)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in METHODS),
        ("align", {"covariance_strength": 0.0}),
        ("align", {"slots": 1}),
        ("fozo", {"preset": "paper"}),
    ],
)
def test_it_keeps_every_promise(name: str, options: dict[str, Any]) -> None:
    check_method(lambda: create(name, **options))


def test_the_suite_does_not_warn_of_its_own_random_images(recwarn: pytest.WarningsRecorder) -> None:
    engine = fozo.load_engine(random_vit(), mean=0.5, std=0.5)
    check_method(lambda: fozo.create("noadapt", engine))
    assert recwarn.list == []


@pytest.mark.parametrize("name", METHODS)
def test_logits_have_the_models_precision(name: str) -> None:
    for dtype in ("float32", "float64"):
        method = create(name, dtype)
        method(random_images(3))
        method.load_state(method.state())
        assert method(random_images(3, seed=1)).dtype == np.dtype(dtype)


@pytest.mark.parametrize("name", METHODS)
def test_a_class_mask_needs_no_option(name: str) -> None:
    method = create(name, subset=True)
    for images in stream(4):
        assert method(images).shape == (6, len(SUBSET))
    plain = create("noadapt")(images)
    np.testing.assert_allclose(create("noadapt", subset=True)(images), plain[:, SUBSET], atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_it_adapts_unless_it_says_that_it_does_not(name: str) -> None:
    method = create(name)
    new = method.state()
    for images in stream(4):
        method(images)
    assert same(new, method.state()) == (fozo.list_methods()[name].adapts == "nothing")
    assert (method.parameter_count > 0) == (name not in ("noadapt", "lame", "t3a", "neo", "gain", "pea", *STATIC))


@pytest.mark.parametrize("name", METHODS)
def test_another_models_or_configs_state_is_refused(name: str, tmp_path: Path) -> None:
    create(name).save(tmp_path / "camera.state")
    refuses("classes", create(name, subset=True).restore, tmp_path / "camera.state")
    other = "noadapt" if name != "noadapt" else "lame"
    refuses("method", create(other).restore, tmp_path / "camera.state")
    if name == "align":
        refuses(r"cls_strength=0.3", create(name, cls_strength=0.2).restore, tmp_path / "camera.state")
        with pytest.raises(fozo.FozoError, match="fingerprint"):
            other_model = fozo.load_engine(random_vit(seed=1))
            fozo.adapter(other_model, [random_images(8)]).restore(tmp_path / "camera.state")


@pytest.mark.parametrize("name", METHODS)
def test_the_users_model_is_never_touched(name: str) -> None:
    vit = random_vit()
    own = TorchEngine(vit, mean=MEAN, std=STD)
    state = {key: tensor.clone() for key, tensor in vit.state_dict().items()}
    method = create(name, on=own)
    for images in stream(20):
        method(images)
    assert own.vit is vit
    assert all(torch.equal(tensor, state[key]) for key, tensor in vit.state_dict().items())
    assert not any(parameter.requires_grad or parameter.grad is not None for parameter in vit.parameters())


@pytest.mark.parametrize("name", METHODS)
def test_a_model_that_breaks_is_reported_and_changes_nothing(name: str) -> None:
    own = TorchEngine(random_vit(), mean=MEAN, std=STD)
    method = create(name, on=own)
    twin = create(name)
    for images in stream(2):
        method(images)
        twin(images)
    before = method.state()
    metrics = method.metrics()
    weight = dict(own.vit.named_parameters())["blocks.3.mlp.fc2.weight"]
    healthy = weight.clone()
    weight.fill_(float("inf"))
    refuses("finite", method, random_images(4))
    assert same(before, method.state()) and method.metrics() == metrics
    weight.copy_(healthy)
    for images in stream(2, start=9):
        assert np.array_equal(method(images), twin(images))


class TokensOnly(EngineAround):
    """An engine of which only the protocol can be used, as an exported ONNX file is."""

    shown = frozenset({"tokens", "prompts", "matrices"})

    def __init__(self) -> None:
        super().__init__(engine())
        self.abilities = self.shown


@pytest.mark.parametrize("name", METHODS)
def test_methods_run_on_any_engine_with_what_they_need_and_the_others_say_why_not(name: str) -> None:
    options = EAGER.get(name, {})
    if name not in fozo.list_methods(without={"torch", "blocks"}):
        refuses(
            rf"{name} needs (gradients|to change|to move).*: use a torch engine",
            fozo.create,
            name,
            TokensOnly(),
            source(),
            **options,
        )
        return
    method = fozo.create(name, TokensOnly(), source(), **options)
    expected = create(name)
    for images in stream(3):
        assert np.array_equal(method(images), expected(images))


def test_noadapt_is_the_plain_model() -> None:
    plain = random_vit()(torch.from_numpy(random_images(8))).numpy()
    np.testing.assert_allclose(create("noadapt")(random_images(8)), plain, atol=1e-5)


def test_the_list_can_be_cut_by_what_is_not_there() -> None:
    forward_only = {"align", "equalise", "foa", "fozo", "gain", "lame", "neo", "noadapt", "scaled-fozo", "t3a", *STATIC}
    assert set(fozo.list_methods(without={"torch", "blocks"})) == forward_only
    assert "zoa" in fozo.list_methods(without={"gradient"}) and "tent" not in fozo.list_methods(without={"gradient"})
    assert set(fozo.list_methods(without={"statistics", "torch", "tokens"})) == {"neo", "noadapt", *STATIC}
    refuses("no method can need 'gpu'", fozo.list_methods, without={"gpu"})


@pytest.mark.parametrize("name", METHODS)
def test_what_it_needs_is_asked_for(name: str) -> None:
    if "statistics" in fozo.list_methods()[name].needs:
        refuses("needs source statistics", fozo.create, name, engine())
