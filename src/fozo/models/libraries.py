"""Models of timm, transformers and torchvision become the one ViT.

Nothing is imported from these libraries: their models are recognised by what they have, converted by name, and the
result is compared with the original on a probe image, so that a model which only looks familiar is refused rather than
adapted wrongly.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from fozo.core.normalisation import Normalisation
from fozo.errors import FozoError
from fozo.io import read_json
from fozo.models.convert import BLACK_BOX, Hints, Weights, vit_from_state
from fozo.models.vit import ViT
from fozo.types import LOG

Converter: TypeAlias = Callable[[Any, Hints], tuple[ViT, Hints]]

PROBE_TOLERANCE = 1e-3  # relative difference of logits above which a conversion is refused (rounding gives 1e-6)

ACTIVATIONS = {
    "GELU": "gelu", "GELUTanh": "gelu_tanh", "GeluTanh": "gelu_tanh", "QuickGELU": "quick_gelu",
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
}  # fmt: skip  # timm's classes and transformers' words


def converter(model: nn.Module) -> Converter | None:
    """What converts a ViT of some kind, or what means to be one: converting it tells what is wrong with it."""
    if isinstance(model, ViT):
        return _from_fozo
    if hasattr(getattr(model, "config", None), "model_type"):
        return _from_transformers
    if all(hasattr(model, part) for part in ("conv_proj", "class_token", "encoder", "heads", "image_size")):
        return _from_torchvision
    if all(hasattr(model, part) for part in ("patch_embed", "cls_token", "blocks", "norm", "head")):
        return _from_timm
    return None


def _from_fozo(model: ViT, hints: Hints) -> tuple[ViT, Hints]:
    a = model.architecture
    hints = replace(hints, heads=a.heads, norm_epsilon=a.norm_epsilon, activation=a.activation)
    return vit_from_state(model.state_dict(), replace(hints, image_size=a.image_size, pool=a.pool)), hints


TIMM_POOLS = {("avg", True): "normed mean", ("avg", False): "mean", ("token", True): "cls"}
"""What the head reads by ``global_pool`` and whether there is a norm after it, where the weights do not tell. Of one
token it is all the same whether a norm comes before or after."""


def _from_timm(model: nn.Module, hints: Hints) -> tuple[ViT, Hints]:
    blocks: list[Any] = list(model.get_submodule("blocks").children())
    kinds = {type(block).__name__ for block in blocks}
    if kinds != {"Block"}:
        raise FozoError(
            f"{hints.name} is built of {', '.join(sorted(kinds))}, not of plain pre-norm blocks; {BLACK_BOX}"
        )
    pool = getattr(model, "global_pool", "token")
    if pool not in ("token", "avg", "map"):
        raise FozoError(f"{hints.name} uses global_pool={pool!r}; {BLACK_BOX}")
    activation = blocks[0].mlp.act
    kind = type(activation).__name__
    if kind not in ACTIVATIONS:
        raise FozoError(f"{hints.name} uses the activation {kind}, which fozo's ViT does not; {BLACK_BOX}")
    tanh = getattr(activation, "approximate", "none") == "tanh"
    state = model.state_dict()
    config: dict[str, Any] = dict(getattr(model, "pretrained_cfg", None) or {})
    names = config.get("label_names") or ()
    named = names and len(names) == getattr(model.get_submodule("head"), "out_features", 0)
    height, width = model.get_submodule("patch_embed").img_size  # type: ignore[misc]
    words = filter(None, (config.get("architecture"), config.get("tag")))
    hints = replace(
        hints,
        name=_name(hints, ".".join(map(str, words))),
        heads=blocks[0].attn.num_heads,
        image_size=(height, width),
        norm_epsilon=blocks[0].norm1.eps,
        activation="gelu_tanh" if tanh else ACTIVATIONS[kind],
        pool=TIMM_POOLS.get((pool, "fc_norm.weight" in state)),
        mean=hints.mean or config.get("mean"),
        std=hints.std or config.get("std"),
        labels=tuple(map(str, names)) if named else None,  # else its tag may tell: names_by_tag
    )
    return _checked(model, state, hints), hints


def _name(hints: Hints, models_own: str) -> str:
    return hints.name if hints.name != "vit" else models_own or "vit"


def _config_labels(config: Any) -> tuple[str, ...] | None:  # noqa: ANN401 - of transformers, which is not imported
    """Give a config's ``id2label``, unless it is made up: LABEL_0, LABEL_1, ..."""
    table: Mapping[Any, Any] = getattr(config, "id2label", None) or {}
    names = {int(number): str(name) for number, name in table.items()}
    if sorted(names) != list(range(len(names))) or all(name == f"LABEL_{number}" for number, name in names.items()):
        return None
    return tuple(names[number] for number in range(len(names)))


# Names of transformers' tensors, new (5.x) and old (4.x), as patterns onto timm's.
TRANSFORMERS_NAMES = [
    (r"(vit|deit|dinov2|dinov2_with_registers|vision_model)\.", ""),
    (r"embeddings\.cls_token", "cls_token"),
    (r"embeddings\.(distillation_token|register_tokens)", "reg_token"),
    (r"embeddings\.position_embeddings", "pos_embed"),
    (r"embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
    (r"embeddings\.position_embedding\.weight", "pos_embed"),
    (r"embeddings\.patch_embedding\.", "patch_embed.proj."),
    (r"(encoder\.layer|encoder\.layers|layers)\.(\d+)", r"blocks.\2"),
    (r"attention\.attention\.(q|k|v)(uery|ey|alue)", r"attn.\1"),
    (r"(attention|self_attn)\.(q|k|v)_proj", r"attn.\2"),
    (r"(attention\.(o_proj|output\.dense)|self_attn\.out_proj)", "attn.proj"),
    (r"layer_norm(1|2)", r"norm\1"),
    (r"layernorm_before", "norm1"),
    (r"layernorm_after", "norm2"),
    (r"intermediate\.dense", "mlp.fc1"),
    (r"(blocks\.\d+)\.output\.dense", r"\1.mlp.fc2"),
    (r"layer_scale(\d)\.lambda1", r"ls\1.gamma"),
    (r"^(layernorm|post_layernorm)", "norm"),
    (r"^(classifier|cls_classifier)", "head"),
    (r"^distillation_classifier", "head_dist"),
]
PREPROCESSOR = "preprocessor_config.json"  # tells what a transformers model's weights do not: the normalisation
TRANSFORMERS = ("vit", "deit", "dinov2", "dinov2_with_registers", "siglip")  # its types of models that are converted


def _from_transformers(model: nn.Module, hints: Hints) -> tuple[ViT, Hints]:
    config: Any = model.config
    classifies = hasattr(model, "classifier") or hasattr(model, "cls_classifier")
    if config.model_type not in TRANSFORMERS or not classifies:
        raise FozoError(
            f"the tokens of {type(model).__name__} are not known to fozo (those of classifiers of the types "
            f"{', '.join(TRANSFORMERS)} are); {BLACK_BOX}"
        )
    pool = "mean" if config.model_type == "siglip" else None  # the others' weights tell
    mean, std = _normalisation_of(model) or (hints.mean, hints.std)
    config = getattr(config, "vision_config", config)
    state: Weights = {}
    for name, tensor in _renamed(model, TRANSFORMERS_NAMES).items():
        unread = name == "embeddings.mask_token" or re.match(r"head\.\w+\.", name) or name == "head.probe"
        if not unread:  # a mask is for training, and SigLIP's classifier does not use the pool of its tower
            state[name] = tensor[None] if name == "pos_embed" and tensor.dim() == 2 else tensor
    for name in [name for name in state if ".attn.q." in name]:
        qkv = [state.pop(name.replace("attn.q.", f"attn.{letter}.")) for letter in "qkv"]
        state[name.replace("attn.q.", "attn.qkv.")] = torch.cat(qkv)
    size = config.image_size
    hints = replace(
        hints,
        name=_name(hints, str(getattr(config, "name_or_path", "")) or config.model_type),
        heads=config.num_attention_heads,
        image_size=(size, size) if isinstance(size, int) else (size[0], size[1]),
        norm_epsilon=config.layer_norm_eps,
        activation=ACTIVATIONS.get(config.hidden_act, config.hidden_act),
        mean=mean,
        std=std,
        labels=_config_labels(config),
        pool=pool,
        antialias=False,
    )
    return _checked(model, state, hints), hints


TORCHVISION_NAMES = [
    (r"class_token", "cls_token"),
    (r"conv_proj", "patch_embed.proj"),
    (r"encoder\.pos_embedding", "pos_embed"),
    (r"encoder\.layers\.encoder_layer_(\d+)\.", r"blocks.\1."),
    (r"\.ln_([12])\.", r".norm\1."),
    (r"self_attention\.in_proj_(weight|bias)", r"attn.qkv.\1"),
    (r"self_attention\.out_proj", "attn.proj"),
    (r"mlp\.(0|linear_1)\.", "mlp.fc1."),
    (r"mlp\.(3|linear_2)\.", "mlp.fc2."),
    (r"^encoder\.ln\.", "norm."),
    (r"^heads\.(head\.|0\.)?", "head."),
]  # Names of torchvision's tensors; the head may have been replaced by the user's layer


def _from_torchvision(model: nn.Module, hints: Hints) -> tuple[ViT, Hints]:
    """Convert a torchvision VisionTransformer. Its normalisation is its weights', of which the module knows nothing."""
    block: Any = next(iter(model.get_submodule("encoder.layers").children()))
    size: Any = model.image_size
    hints = replace(hints, heads=block.num_heads, image_size=(size, size), norm_epsilon=block.ln_1.eps)
    return _checked(model, _renamed(model, TORCHVISION_NAMES), hints), hints


def _normalisation_of(model: Any) -> Normalisation | None:  # noqa: ANN401 - of transformers, which is not imported
    """Find how the images of a transformers model are normalised: in the folder it came from, or in the hub's cache.

    Nothing is fetched. ``None`` where there is no such file.
    """
    origin = str(getattr(model.config, "name_or_path", "") or "")
    path = Path(origin) / PREPROCESSOR
    if origin and path.is_file():
        return _read_normalisation(path)
    hub = sys.modules.get("huggingface_hub")
    if not origin or Path(origin).is_dir() or hub is None:
        return None
    try:
        cached = hub.try_to_load_from_cache(origin, PREPROCESSOR)
    except Exception as error:  # it refuses names that cannot be of the hub, each version in its own way
        LOG.info("the hub's cache was not searched for %s of %s: %s", PREPROCESSOR, origin, error)
        return None
    return _read_normalisation(Path(cached)) if isinstance(cached, str) else None


def _read_normalisation(path: Path) -> Normalisation | None:
    """Read mean and std for pixels in [0, 1], whatever the file scales them by; ``None`` if it does not tell."""
    payload = read_json(path)
    try:
        # What is read is (scale x - mean) / std for a pixel x in [0, 1].
        scale = 255 * (float(payload.get("rescale_factor", 1 / 255)) if payload.get("do_rescale", True) else 1.0)
        mean = payload.get("image_mean")
        std = payload.get("image_std")
        if not payload.get("do_normalize", True):
            mean = [0.0] * 3
            std = [1.0] * 3
        if mean is None or std is None:
            return None
        return tuple(float(value) / scale for value in mean), tuple(float(value) / scale for value in std)
    except (AttributeError, TypeError, ValueError, ZeroDivisionError) as error:
        raise FozoError(
            f"{path} has an odd image_mean, image_std or rescale_factor ({error}); pass mean= and std="
        ) from error


def _renamed(model: nn.Module, patterns: Sequence[tuple[str, str]]) -> Weights:
    state: Weights = {}
    for name, tensor in model.state_dict().items():
        for pattern, new in patterns:
            name = re.sub(pattern, new, name)
        state[name] = tensor
    return state


def _checked(model: nn.Module, state: Mapping[str, Tensor], hints: Hints) -> ViT:
    """Convert at the original's own size, compare with it on an image, then resize if the user wants another size."""
    vit = vit_from_state(state, replace(hints, resize_to=None))
    a = vit.architecture
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(1, a.channels, *a.image_size, generator=generator).to(vit.patch_embed.proj.weight)
    training = [module for module in model.modules() if module.training]
    with torch.inference_mode():
        try:
            output = model.eval()(image)
        finally:
            for module in training:
                module.training = True
        expected: Tensor = getattr(output, "logits", output)
        difference = (vit(image) - expected).abs().max() / expected.abs().max().clamp_min(1e-12)
    if not difference <= PROBE_TOLERANCE:
        raise FozoError(
            f"{hints.name} computes other logits than a plain ViT with its weights (relative difference "
            f"{float(difference):.1e}); it has a part that fozo does not know: {BLACK_BOX}"
        )
    return vit if hints.resize_to is None else vit_from_state(state, hints)
