"""What a transformers model's ``preprocessor_config.json`` tells and its weights do not: the normalisation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from fozo.core.normalisation import Normalisation
from fozo.errors import FozoError
from fozo.io import read_json
from fozo.types import LOG

FILE = "preprocessor_config.json"


def normalisation_of(model: Any) -> Normalisation | None:  # noqa: ANN401 - of transformers, which is not imported
    """Find how the images of a transformers model are normalised: in the folder it came from, or in the hub's cache.

    Nothing is fetched. ``None`` where there is no such file.
    """
    origin = str(getattr(model.config, "name_or_path", "") or "")
    path = Path(origin) / FILE
    if origin and path.is_file():
        return read_normalisation(path)
    hub = sys.modules.get("huggingface_hub")
    if not origin or Path(origin).is_dir() or hub is None:
        return None
    try:
        cached = hub.try_to_load_from_cache(origin, FILE)
    except Exception as error:  # it refuses names that cannot be of the hub, each version in its own way
        LOG.info("the hub's cache was not searched for %s of %s: %s", FILE, origin, error)
        return None
    return read_normalisation(Path(cached)) if isinstance(cached, str) else None


def read_normalisation(path: Path) -> Normalisation | None:
    """Read mean and std for pixels in [0, 1], whatever the file scales them by; ``None`` if it does not tell."""
    payload = read_json(path)
    try:
        # What is read is (255 x factor - mean) / std for a pixel x in [0, 1].
        factor = float(payload.get("rescale_factor", 1 / 255)) if payload.get("do_rescale", True) else 1.0
        mean, std = payload.get("image_mean"), payload.get("image_std")
        if not payload.get("do_normalize", True):
            mean, std = [0.0] * 3, [1.0] * 3
        if mean is None or std is None:
            return None
        scale = 255 * factor
        return tuple(float(value) / scale for value in mean), tuple(float(value) / scale for value in std)
    except (AttributeError, TypeError, ValueError, ZeroDivisionError) as error:
        raise FozoError(
            f"{path} has an odd image_mean, image_std or rescale_factor ({error}); pass mean= and std="
        ) from error
