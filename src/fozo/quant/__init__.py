"""Eight-bit models: PTQ4ViT simulated in PyTorch (here), and INT8 files for ONNX Runtime (``fozo export --int8``).

    engine = fozo.quant.ptq4vit(fozo.load_engine("vit.safetensors"), clean_images)
    engine.scales.save("scales.safetensors")
    engine = fozo.load_engine("vit.safetensors", scales="scales.safetensors")     # later, without searching again

torch is imported by the functions that need it, so that ``import fozo.quant`` works without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fozo.engines.ptq4vit import BITS, METRICS, Scales, with_scales
from fozo.types import Engine, Images

if TYPE_CHECKING:
    from fozo.engines.ptq4vit.engine import QuantisedEngine

__all__ = ["BITS", "METRICS", "Scales", "ptq4vit", "with_scales"]


def ptq4vit(
    engine: Engine,
    images: Images,
    bits: int = 8,
    *,
    metric: str = "hessian",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> QuantisedEngine:
    """Quantise weights and activations of a ViT to ``bits``, with steps searched on a few clean images.

    Args:
        engine: a torch engine.
        images: normalised clean images ``[B, channels, height, width]``; the paper uses 32.
        bits: 4, 6 or 8, for weights and activations alike.
        metric: which error of a layer's output the steps minimise: ``"hessian"`` (weighted by the loss's gradient),
            ``"l2"`` or ``"cosine"``.
        progress: called with the number of searches done and their total.
    """
    from fozo.engines.ptq4vit.engine import QuantisedEngine, full_precision
    from fozo.quant.search import search_scales

    plain = full_precision(engine)
    return QuantisedEngine(plain, search_scales(plain, images, bits, metric, progress))
