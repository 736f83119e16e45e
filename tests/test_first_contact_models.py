"""First contact: every kind of model that is taken, and what is said to all others."""

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fozo
from fozo.errors import FozoError
from tests.helpers import HALF, normalised, pixels, random_vit


def shaken(model: nn.Module) -> nn.Module:
    """The same weights every time, at which every part of the model matters."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if parameter.dim() == 1 and name.endswith("weight") else 0.0
            parameter.copy_(centre + 0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def timm_vit() -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return shaken(VisionTransformer(img_size=16, patch_size=4, embed_dim=24, depth=2, num_heads=3, num_classes=5))


def transformers_vit() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    names = ["ant", "bee", "cat", "dog", "eel"]
    config = ViTConfig(
        image_size=16, patch_size=4, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48,
        id2label=dict(enumerate(names)), label2id={name: i for i, name in enumerate(names)},
    )  # fmt: skip
    return shaken(ViTForImageClassification(config))


def torchvision_vit(**changes: Any) -> nn.Module:
    from torchvision.models import VisionTransformer

    return shaken(VisionTransformer(16, 4, 2, 3, 24, 48, num_classes=5, **changes))


def wrapped_for_many_processes(model: nn.Module, folder: Path) -> nn.Module:
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    return nn.parallel.DistributedDataParallel(model)


def written(model: nn.Module, path: Path) -> Path:
    if path.suffix == ".onnx":
        fozo.export(fozo.load_engine(model), path)
    elif path.suffix == ".pt":
        torch.save({"state_dict": model.state_dict()}, path)
    else:
        save_file(model.state_dict(), path)
    return path


def transformers_folder(folder: Path, **preprocessor: Any) -> Path:
    transformers_vit().save_pretrained(folder / "hf")
    header = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "rescale_factor": 1 / 255, **preprocessor}
    (folder / "hf" / "preprocessor_config.json").write_text(json.dumps(header))
    return folder / "hf"


def traced() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(convolutions(), torch.zeros(1, 3, 16, 16))  # type: ignore[no-untyped-call]


def convolutions() -> nn.Module:
    """No tokens to be seen, so it is adapted as a black box."""
    return shaken(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)))


MODELS: dict[str, Callable[[Path], tuple[nn.Module, Any]]] = {
    "fozo": lambda folder: (random_vit(), random_vit()),
    "timm": lambda folder: (timm_vit(), timm_vit()),
    "transformers": lambda folder: (transformers_vit(), transformers_vit()),
    "torchvision": lambda folder: (torchvision_vit(), torchvision_vit()),
    "compiled inside": lambda folder: (timm_vit(), nn.DataParallel(torch.compile(timm_vit()))),
    "DDP": lambda folder: (timm_vit(), wrapped_for_many_processes(timm_vit(), folder)),
    "weights": lambda folder: (random_vit(), written(random_vit(), folder / "model.safetensors")),
    "state dict": lambda folder: (random_vit(), written(random_vit(), folder / "model.pt")),
    "onnx": lambda folder: (random_vit(), written(random_vit(), folder / "model.onnx")),
    "transformers folder": lambda folder: (transformers_vit(), transformers_folder(folder)),
    "traced": lambda folder: (convolutions(), traced()),
    "convolutions": lambda folder: (convolutions(), convolutions()),
    "function": lambda folder: (convolutions(), lambda images: convolutions()(images)),
    "engine": lambda folder: (random_vit(), fozo.load_engine(random_vit())),
}


@pytest.mark.parametrize("kind", MODELS)
def test_models(kind: str, tmp_path: Path) -> None:
    original, model = MODELS[kind](tmp_path)
    images = normalised(pixels(6))
    options = {"heads": 3} if kind.startswith(("weights", "state")) else {}
    adapter = fozo.adapter(model, [normalised(pixels(20, seed=1))], **options)
    assert adapter(torch.from_numpy(images)).shape == (6, adapter.engine.spec.classes)
    with torch.inference_mode():
        expected = original(torch.from_numpy(images))
        plain = fozo.NoAdapt(adapter.engine)(torch.from_numpy(images))
    np.testing.assert_allclose(plain, getattr(expected, "logits", expected), rtol=0, atol=2e-5)


def test_a_name_of_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    import timm

    asked: list[Any] = []

    def create(name: str, pretrained: bool) -> nn.Module:
        asked.append((name, pretrained))
        return timm_vit()

    monkeypatch.setattr(timm, "create_model", create)
    adapter = fozo.adapter("timm:vit_mini_patch4_16.augreg_in1k", normalised(pixels(20)))
    assert asked == [("vit_mini_patch4_16.augreg_in1k", True)] and adapter.engine.spec.mean == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        ("ImportError('No module named timm')", r"pip install 'fozo\[timm\]'"),
        ("RuntimeError('operator torchvision::nms does not exist')", "torchvision is of another build than torch"),
    ],
)
def test_a_timm_that_cannot_be_imported_is_one_sentence(
    error: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "timm.py").write_text(f"raise {error}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(FozoError, match=f"cannot import timm.*{sentence}"):
        fozo.load_engine("timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k")


def test_a_transformers_folder_brings_labels_normalisation_and_name(tmp_path: Path) -> None:
    folder = transformers_folder(tmp_path, rescale_factor=1 / 127.5)
    spec = fozo.load_engine(folder).spec
    assert spec.name == "hf" and spec.labels == ("ant", "bee", "cat", "dog", "eel")
    np.testing.assert_allclose(np.array(spec.normalisation), 0.25)  # (2 x - 0.5) / 0.5 is (x - 0.25) / 0.25
    assert fozo.load_engine(folder, **HALF).spec.mean == (0.5, 0.5, 0.5)
    file = folder / "preprocessor_config.json"
    for text, std in (('{"do_normalize": false}', (1.0, 1.0, 1.0)), ("{}", None)):
        file.write_text(text)
        assert fozo.load_engine(folder).spec.std == std
    for odd in ('{"image_mean": 3, "image_std": [1]}', '{"image_mean": ["a"], "image_std": [1]}', "[]", "{"):
        file.write_text(odd)
        with pytest.raises(FozoError, match=r"preprocessor_config\.json"):
            fozo.load_engine(folder)
    file.unlink()
    assert fozo.load_engine(folder).spec.mean is None


def headless(folder: Path) -> Path:
    from transformers import ViTModel

    ViTModel(transformers_vit().config).save_pretrained(folder / "headless")
    return folder / "headless"


def folder_with(folder: Path, config: str) -> Path:
    (folder / "config.json").write_text(config)
    return folder


REFUSED_MODELS: dict[str, tuple[Callable[[Path], Any], dict[str, Any], str]] = {
    "number": (lambda folder: 3, {}, "int cannot be called; give a function, a torch module or an .onnx file"),
    "no file": (lambda folder: folder / "model.safetensors", {}, "model.safetensors"),
    "no onnx file": (lambda folder: folder / "model.onnx", {}, "there is no file .*model.onnx; check the path"),
    "empty folder": (lambda folder: folder, {}, "has no config.json, so it is not a transformers model"),
    "odd folder": (lambda folder: folder_with(folder, '{"model_type": "what"}'), {}, "cannot be loaded by trans"),
    "no json": (lambda folder: folder_with(folder, "{"), {}, "config.json"),
    "no head": (headless, {}, "no weights for 'classifier.bias'; give a model that was trained to classify"),
    "untagged": (lambda folder: "timm:vit_tiny_patch16_224", {}, "name the full tag"),
    "no such device": (lambda folder: random_vit(), {"device": "cuda"}, "device='cuda' cannot be used here .*'cpu'"),
    "no device": (lambda folder: random_vit(), {"device": "toaster"}, "device='toaster' cannot be used here"),
    "option": (lambda folder: random_vit(), {"speed": 1}, "align has no option 'speed'"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED_MODELS)
def test_refused_models(kind: str, tmp_path: Path) -> None:
    make, options, sentence = REFUSED_MODELS[kind]
    if kind == "no such device" and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(FozoError, match=sentence) as refusal:
        fozo.adapter(make(tmp_path), normalised(pixels(4)), **options)
    assert "\n" not in str(refusal.value)


def test_methods_take_models_and_files(tmp_path: Path) -> None:
    """FINDINGS B4: these were raw exceptions."""
    path = tmp_path / "statistics.safetensors"
    fozo.calibrate(fozo.load_engine(random_vit(), **HALF), normalised(pixels(20))).save(path)
    assert fozo.calibrate(written(random_vit(), tmp_path / "model.onnx"), [normalised(pixels(8))]).images == 8
    make: Any = fozo.FOZO
    assert make(random_vit(), path, passes=2)(normalised(pixels(2))).shape == (2, 7)
    with pytest.raises(FozoError, match=r"fozo takes source statistics; make them with fozo.calibrate.*, not a list"):
        make(random_vit(), [normalised(pixels(2))])
    with pytest.raises(FozoError, match="NoneType cannot be called"):
        fozo.NoAdapt(None)  # type: ignore[arg-type]


def test_everything_says_in_one_line_what_it_is(tmp_path: Path) -> None:
    adapter = fozo.adapter(random_vit(), [normalised(pixels(20))], slots=2, **HALF)
    assert fozo.load_engine(adapter.engine) is adapter.engine
    onnx = fozo.load_engine(written(random_vit(), tmp_path / "model.onnx"))
    assert repr(adapter) == "<Align on vit, slots=2>"
    assert repr(adapter.engine) == "<TorchEngine vit: 3x16x16 to 7 classes, cpu>"
    assert repr(onnx) == "<OnnxEngine vit: 3x16x16 to 7 classes, cpu>"
    of = f"<Statistics of vit ({adapter.engine.spec.fingerprint[:12]}): "
    assert repr(adapter.statistics).startswith(f"{of}20 images, pixels normalised with a mean")
