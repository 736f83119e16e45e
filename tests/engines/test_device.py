"""A torch batch stays on its device: what comes back to the CPU is counted, on a device that there is not."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import fozo
from fozo.engines.torch_engine import TorchEngine
from fozo.types import Batch, Floats, Taps
from tests.helpers import random_images, random_vit

ELSEWHERE = torch.device("privateuseone:0")
READERS = ("numpy", "item", "tolist", "__array__", "__bool__", "__float__", "__int__", "__index__", "__dlpack__")
"""What reads values: on a device it waits, or is refused."""


class Remote(torch.Tensor):
    """A tensor that says it is elsewhere; all that is computed from it is too."""


class Device(TorchFunctionMode):
    """Takes tensors elsewhere where they are sent there, and notes the sizes of those that come back."""

    def __init__(self) -> None:
        super().__init__()
        self.back = list[int]()

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        name = function.__name__
        if isinstance(args[0], Remote):
            if getattr(function, "__self__", None) is torch.Tensor.device:
                return ELSEWHERE
            if name == "cpu":
                self.back.append(args[0].numel())
                return args[0].as_subclass(torch.Tensor)
            assert name not in READERS, f"a tensor elsewhere was read by {name}"
        targets = [*args[1:], *given.values()]
        if name in ("to", "empty", "tensor", "as_tensor") and any(map(_is_elsewhere, targets)):
            makers: dict[str, Callable[..., torch.Tensor]] = {
                "to": torch.as_tensor, "as_tensor": torch.as_tensor, "tensor": torch.tensor, "empty": torch.empty,
            }  # fmt: skip
            tensor = makers[name](args[0])
            kinds = [target for target in targets if isinstance(target, torch.dtype)]
            return tensor.to(kinds[0] if kinds else tensor.dtype).as_subclass(Remote)
        return function(*args, **given)


def _is_elsewhere(target: object) -> bool:
    return isinstance(target, Remote) or (isinstance(target, (str, torch.device)) and str(target) == str(ELSEWHERE))


def pictures(count: int, seed: int, fade: float = 1.0) -> Floats:
    images: Floats = np.float32(0.25 * fade) * random_images(count, seed).clip(-2, 2)
    return images


@pytest.fixture(scope="module")
def engines() -> tuple[fozo.Engine, TorchEngine]:
    """The same model here and elsewhere."""
    here, there = (fozo.load_engine(random_vit(), mean=0.5, std=1.0) for _ in range(2))
    assert isinstance(there, TorchEngine)
    there.device = str(ELSEWHERE)
    return here, there


@pytest.mark.parametrize("size", [1, 8, 40])
def test_images_and_taps_come_back_once_each(
    engines: tuple[fozo.Engine, TorchEngine], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many layers and taps there are: one synchronisation for the images, and one for each pass."""
    source = fozo.calibrate(engines[0], [pictures(32, seed) for seed in range(3)])
    here = fozo.Align(engines[0], source)
    there = fozo.Align(engines[1], source)
    passes: list[int] = []
    run = TorchEngine.run

    def counted(engine: TorchEngine, batch: Batch, *knobs_and_taps: Any, **named: Any) -> Taps:
        passes.append(len(batch))
        return run(engine, batch, *knobs_and_taps, **named)

    with Device() as device:
        for number in range(6):
            batch = pictures(size, 20 + number, fade=0.3)
            expected = here(batch)
            device.back.clear()
            with monkeypatch.context() as patch:
                patch.setattr(TorchEngine, "run", counted)
                passes.clear()
                logits = there(torch.from_numpy(batch).to(ELSEWHERE))
            assert len(device.back) == 1 + len(passes) and device.back[0] == math.prod(batch.shape)
            assert isinstance(logits, Remote)
            np.testing.assert_allclose(logits.cpu().numpy(), expected, atol=1e-4)
        device.back.clear()
        there(pictures(size, 30, fade=0.3))
        assert device.back and len(device.back) <= len(passes)  # images of the CPU need not come back


def test_the_plain_model_brings_back_images_to_check_and_logits(engines: tuple[fozo.Engine, TorchEngine]) -> None:
    with Device() as device:
        fozo.NoAdapt(engines[1])(torch.from_numpy(pictures(8, 1)).to(ELSEWHERE))
    assert len(device.back) == 2


def test_what_reads_a_tensor_elsewhere_is_caught() -> None:
    """The device of these tests can fail."""
    with Device(), pytest.raises(AssertionError, match="read by"):
        float(torch.ones(3).to(ELSEWHERE).sum())
