"""Every claim about a published model, held against timm's own list; nothing is downloaded."""

from functools import cache
from typing import Any

import pytest
import torch

from fozo.models.convert import HEADS, NAME, WIDTHS, Hints, hints_from_name, widths_from_name
from fozo.models.libraries import ACTIVATIONS

timm = pytest.importorskip("timm")


@cache
def published() -> dict[str, Any]:
    """All names that timm has weights for, with its configuration of each."""
    return {name: timm.models.get_pretrained_cfg(name) for name in timm.list_models(pretrained=True)}


def known() -> list[str]:
    """Those whose architecture we claim to know."""
    return [name for name in published() if NAME.fullmatch(name.partition(".")[0])]


def test_no_claim_contradicts_timm() -> None:
    for name, config in published().items():
        hints = hints_from_name(name)
        assert hints.name == name
        assert (hints.mean, hints.std) in ((config.mean, config.std), (None, None)), name
        assert hints.image_size in (config.input_size[1:], None), name


def test_architecture_and_tag_give_the_normalisation() -> None:
    unknown = [name for name in known() if hints_from_name(name).mean is None]
    assert len(known()) > 130
    # Apple's other models have another mean, so its tag tells nothing: the user is asked.
    assert unknown == ["vit_large_patch14_clip_224.apple_mclip2_dfndr2b"]


def test_architectures_are_what_their_names_say() -> None:
    """Activation, epsilon and heads are told by nothing in a file of weights, and no probe would notice."""
    architectures = sorted({name.partition(".")[0] for name in known()})
    assert len(architectures) > 50 and len({width for each in WIDTHS.values() for width in each}) == 12
    for name in architectures:
        hints = hints_from_name(name)
        with torch.device("meta"):
            model = timm.create_model(name, depth=1)
        assert type(model) is timm.models.VisionTransformer and model.global_pool == "token", name
        assert model.embed_dim in (widths_from_name(name) or ()), name
        block = model.blocks[0]
        assert block.norm1.eps == model.norm.eps == hints.norm_epsilon, name
        assert block.attn.num_heads == HEADS.get(model.embed_dim, model.embed_dim // 64), name
        if isinstance(block.mlp, timm.layers.Mlp):  # giant DINOv2 has SwiGLU, and is refused
            assert ACTIVATIONS[type(block.mlp.act).__name__] == hints.activation, name


@pytest.mark.parametrize(
    "name",
    [
        "", "my_model", "vit_base_patch16_224.my_own_weights",
        "vit_base_patch16_224",  # the bare name does not say which weights
        "vit_small_patch16_dinov3.lvd1689m", "vit_base_patch16_siglip_224.webli",
        "vit_so400m_patch14_reg1_tipsv2.webli", "vit_base_patch16_224_miil.in21k_ft_in1k",
        "vit_giant_patch16_sapiens2.fb", "flexivit_base.1200ep_in1k",
    ],
)  # fmt: skip
def test_what_a_name_does_not_tell_is_left_unknown(name: str) -> None:
    told = name.startswith("vit_base_patch16_224") and "miil" not in name
    assert hints_from_name(name) == Hints(name=name, image_size=(224, 224) if told else None)
