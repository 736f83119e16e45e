"""Transformers with random weights, and the ways in which people write them as ONNX files.

Small ones, so that each is found, proved and checked in seconds. Exporters that are not installed raise ImportError.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from fozo.types import Knobs, Move, Spec
from tests.models.helpers import shake

SIZE, PATCH, WIDTH, DEPTH, HEADS, CLASSES = 32, 8, 48, 3, 3, 7
TIMM: dict[str, Any] = {
    "img_size": SIZE, "patch_size": PATCH, "embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS,
    "num_classes": CLASSES,
}  # fmt: skip
HUGGING_FACE: dict[str, Any] = {
    "image_size": SIZE, "patch_size": PATCH, "hidden_size": WIDTH, "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS, "intermediate_size": 2 * WIDTH, "num_labels": CLASSES,
}  # fmt: skip


def timm_vit(**changes: Any) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return shake(VisionTransformer(**{**TIMM, **changes}))


def timm_model(module: str, name: str, **changes: Any) -> nn.Module:
    import importlib

    return shake(getattr(importlib.import_module(f"timm.models.{module}"), name)(**changes))


class Logits(nn.Module):
    """A model of transformers whose answer is its logits alone, or its embeddings."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        output = self.model(images)
        logits: Tensor = output.logits if "logits" in output else output.image_embeds
        return logits


def hugging_face(family: str, attention: str = "eager", **changes: Any) -> nn.Module:
    import transformers

    options = {**HUGGING_FACE, **changes}
    config = getattr(transformers, f"{family}Config")(**options, attn_implementation=attention)
    return shake(Logits(getattr(transformers, f"{family}ForImageClassification")(config)))


class Probed(nn.Module):
    """A body of transformers under a linear classifier of the user's own, as DINOv3 is used."""

    def __init__(self, family: str) -> None:
        import transformers

        super().__init__()
        options = {name: value for name, value in HUGGING_FACE.items() if name != "num_labels"}
        config = getattr(transformers, f"{family}Config")(**options)
        self.body = getattr(transformers, f"{family}Model")(config)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(images).pooler_output)
        return logits


def clip_tower() -> nn.Module:
    """CLIP's image tower, whose answers are embeddings."""
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    options = {name: value for name, value in HUGGING_FACE.items() if name != "num_labels"}
    return shake(Logits(CLIPVisionModelWithProjection(CLIPVisionConfig(**options, projection_dim=CLASSES))))


def hugging_face_swin(family: str = "Swin") -> nn.Module:
    import transformers

    sizes: dict[str, Any] = {"image_size": 32, "patch_size": 4, "embed_dim": 24, "window_size": 4}
    config = getattr(transformers, f"{family}Config")(**sizes, depths=[2, 2], num_heads=[2, 4], num_labels=CLASSES)
    return shake(Logits(getattr(transformers, f"{family}ForImageClassification")(config)))


def torchvision_vit() -> nn.Module:
    from torchvision.models.vision_transformer import VisionTransformer

    return shake(
        VisionTransformer(
            image_size=SIZE, patch_size=PATCH, num_layers=DEPTH, num_heads=HEADS, hidden_dim=WIDTH,
            mlp_dim=2 * WIDTH, num_classes=CLASSES,
        )
    )  # fmt: skip


class Normalised(nn.Module):
    """Takes pixels from 0 to 1, and normalises them itself."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model((images - 0.45) / 0.22)
        return logits.softmax(dim=-1)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "timm ViT": timm_vit,
    "timm ViT, mean of patches": lambda: timm_vit(global_pool="avg"),
    "timm ViT, mean of patches without CLS": lambda: timm_vit(global_pool="avg", class_token=False),
    "timm ViT, attention pooling (SigLIP)": lambda: timm_vit(global_pool="map", class_token=False),
    "timm ViT, 4 registers": lambda: timm_vit(reg_tokens=4),
    "timm ViT, pre-norm (CLIP)": lambda: timm_vit(pre_norm=True),
    "timm ViT, layer scale (DeiT-3)": lambda: timm_vit(init_values=0.1),
    "timm DeiT, distilled": lambda: timm_model("deit", "VisionTransformerDistilled", **TIMM),
    "timm BEiT": lambda: timm_model("beit", "Beit", **TIMM, use_abs_pos_emb=False, use_rel_pos_bias=True),
    "timm EVA-02": lambda: timm_model(
        "eva", "Eva", **TIMM, use_rot_pos_emb=True, swiglu_mlp=True, ref_feat_shape=(4, 4)
    ),
    "timm DINOv3": lambda: timm_model(
        "eva", "Eva", **TIMM, use_abs_pos_emb=False, use_rot_pos_emb=True, rope_type="dinov3", num_reg_tokens=4
    ),
    "transformers ViT": lambda: hugging_face("ViT"),
    "transformers ViT, sdpa": lambda: hugging_face("ViT", "sdpa"),
    "transformers DINOv2": lambda: hugging_face("Dinov2"),
    "transformers DINOv2, registers": lambda: hugging_face("Dinov2WithRegisters"),
    "transformers BEiT": lambda: hugging_face("Beit", use_relative_position_bias=True),
    "transformers DINOv3 under a linear layer": lambda: shake(Probed("DINOv3ViT")),
    "transformers I-JEPA": lambda: hugging_face("IJepa"),
    "transformers Data2Vec": lambda: hugging_face("Data2VecVision", use_relative_position_bias=True),
    "CLIP's image tower": clip_tower,
    "torchvision ViT": torchvision_vit,
    "normalisation and softmax inside": lambda: Normalised(timm_vit()),
    "timm Swin": lambda: timm_model(
        "swin_transformer", "SwinTransformer", img_size=64, patch_size=4, embed_dim=24, depths=(2, 2),
        num_heads=(2, 4), window_size=4, num_classes=CLASSES,
    ),
    "transformers Swin": hugging_face_swin,
    "transformers Swin v2": lambda: hugging_face_swin("Swinv2"),
    "timm CaiT": lambda: timm_model("cait", "Cait", **TIMM),
    "timm XCiT": lambda: timm_model("xcit", "Xcit", **TIMM),
    "timm ResNet": lambda: timm_model("resnet", "resnet18", num_classes=CLASSES),
    "timm ConvNeXt": lambda: timm_model("convnext", "ConvNeXt", num_classes=CLASSES, depths=(1, 1, 1, 1)),
}  # fmt: skip


def module(name: str) -> nn.Module:
    """Make a model of :data:`MODULES`, the same in every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MODULES[name]().eval()


def size_of(name: str) -> int:
    return 64 if name == "timm Swin" else SIZE


def by_torchscript(
    module: nn.Module, path: Path, *, opset: int = 17, dynamic: bool = True, size: int = SIZE, eager: bool = False
) -> Path:
    for layer in module.modules():
        if hasattr(layer, "fused_attn"):  # older opsets do not know it, and fp16 converters break it
            setattr(layer, "fused_attn", opset >= 14 and not eager)  # noqa: B010 - of layers of any class
    axes = {"images": {0: "batch"}, "logits": {0: "batch"}} if dynamic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (torch.randn(1, 3, size, size),), str(path), dynamo=False, opset_version=opset,
            input_names=["images"], output_names=["logits"], dynamic_axes=axes,
        )  # fmt: skip
    return path


def by_dynamo(module: nn.Module, path: Path, *, dynamic: bool = True, size: int = SIZE) -> Path:
    shapes = ({0: torch.export.Dim("batch")},) if dynamic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (torch.randn(2 if dynamic else 1, 3, size, size),), str(path), dynamo=True, opset_version=18,
            dynamic_shapes=shapes, external_data=True, verbose=False,
        )  # fmt: skip
    return path


def by_onnxsim(module: nn.Module, path: Path) -> Path:
    import onnxsim

    simple, _ = onnxsim.simplify(onnx.load(by_torchscript(module, path)))
    onnx.save(simple, path)
    return path


def by_ort(module: nn.Module, path: Path, level: str = "ORT_ENABLE_EXTENDED") -> Path:
    """Write what ONNX Runtime's own optimiser makes of the graph, its fused operators included."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 4
    plain = by_torchscript(module, path.with_name(f"plain-{path.name}"))
    onnxruntime.InferenceSession(str(plain), options, providers=["CPUExecutionProvider"])
    return path


def by_transformer_fusions(module: nn.Module, path: Path) -> Path:
    from onnxruntime.transformers.optimizer import optimize_model

    plain = by_torchscript(module, path.with_name(f"plain-{path.name}"))
    optimize_model(str(plain), model_type="vit", num_heads=HEADS, hidden_size=WIDTH).save_model_to_file(str(path))
    return path


def in_half(module: nn.Module, path: Path, *, keep_io_types: bool = True) -> Path:
    from onnxconverter_common import float16

    plain = onnx.load(by_torchscript(module, path, eager=True))
    onnx.save(float16.convert_float_to_float16(plain, keep_io_types=keep_io_types), path)
    return path


def in_int8(module: nn.Module, path: Path, *, operators: bool = False, only: tuple[str, ...] = ()) -> Path:
    """Static INT8 of ONNX Runtime's quantiser: everything that it can quantise, or some operators only."""
    import numpy as np
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Random(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            numbers = np.random.default_rng(0)
            self.batches = [numbers.standard_normal((2, 3, SIZE, SIZE)).astype(np.float32) for _ in range(8)]

        def get_next(self) -> dict[str, Any] | None:
            return {"images": self.batches.pop()} if self.batches else None

    plain = by_torchscript(module, path.with_name(f"plain-{path.name}"))
    quantize_static(
        str(plain), str(path), Random(), op_types_to_quantize=list(only) or None,
        quant_format=QuantFormat.QOperator if operators else QuantFormat.QDQ,
    )  # fmt: skip
    return path


def in_dynamic_int8(module: nn.Module, path: Path) -> Path:
    from onnxruntime.quantization import quantize_dynamic

    plain = by_torchscript(module, path.with_name(f"plain-{path.name}"))
    quantize_dynamic(str(plain), str(path))
    return path


WRITERS: dict[str, Callable[[nn.Module, Path], Path]] = {
    "TorchScript, opset 17": by_torchscript,
    "TorchScript, opset 11": lambda module, path: by_torchscript(module, path, opset=11),
    "TorchScript, opset 13, one image": lambda module, path: by_torchscript(module, path, opset=13, dynamic=False),
    "TorchScript, opset 20": lambda module, path: by_torchscript(module, path, opset=20),
    "dynamo, opset 18": by_dynamo,
    "dynamo, opset 18, one image": lambda module, path: by_dynamo(module, path, dynamic=False),
    "onnxsim": by_onnxsim,
    "ONNX Runtime's basic optimisations": lambda module, path: by_ort(module, path, "ORT_ENABLE_BASIC"),
    "ONNX Runtime's extended optimisations": by_ort,
    "ONNX Runtime's fusions for transformers": by_transformer_fusions,
    "fp16": in_half,
    "fp16, images too": lambda module, path: in_half(module, path, keep_io_types=False),
    "INT8 QDQ": in_int8,
    "INT8 QDQ of products only": lambda module, path: in_int8(module, path, only=("MatMul", "Gemm", "Conv")),
    "INT8 operators": lambda module, path: in_int8(module, path, operators=True),
    "dynamic INT8": in_dynamic_int8,
}


def images(count: int = 3, size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(5).standard_normal((count, 3, size, size)).astype(np.float32)


def random_knobs(spec: Spec) -> Knobs:
    """Moves and matrices of three images under two candidates."""
    numbers = np.random.default_rng(6)

    def move() -> Move:
        shape = (2, 3, spec.depth, spec.dim)
        return Move(1 + 0.2 * numbers.standard_normal(shape), 0.3 * numbers.standard_normal(shape))

    noise = numbers.standard_normal((2, 3, len(spec.aligned), spec.dim, spec.dim))
    return Knobs(cls=move(), patches=move(), matrices=np.eye(spec.dim) + 0.3 * noise / spec.dim**0.5)
