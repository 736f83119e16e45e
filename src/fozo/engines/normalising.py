"""Which mean and std a model was trained with, where neither its file nor its user says so.

Clean images are put through it under each of the usual ones; a model is surest of images that look as in its training.
"""

import warnings

import numpy as np

from fozo.core.normalisation import CLIP, HALF, IMAGENET, NONE, Normalisation
from fozo.errors import ImageWarning
from fozo.types import Engine, Tap

CANDIDATES = (NONE, HALF, IMAGENET, CLIP)  # what reads 0 to 255 has to be told: engines take it for a mistake
ERRORS = 2.0  # standard errors by which the surest has to lead


def probe_normalisation(engine: Engine, pixels: np.ndarray) -> Normalisation | None:
    """Find mean and std by the confidence of the predictions; ``None`` where two of them do about as well.

    Args:
        engine: a model that returns logits.
        pixels: a few dozen clean images, ``uint8 [B, height, width, channels]``, resized for the model.
    """
    channels = engine.spec.channels
    confidences = []
    for mean, std in CANDIDATES:
        scaled = (pixels / 255 - np.array(mean[:channels])) / np.array(std[:channels])
        images = np.ascontiguousarray(np.moveaxis(scaled, 3, 1), np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ImageWarning)  # most candidates are not the model's
            batch = engine.check(images)
        logits = engine.run(batch)[Tap.LOGITS][0].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        confidences.append(-np.log(np.exp(logits).sum(axis=1)))
    means = [float(values.mean()) for values in confidences]
    best = int(np.argmax(means))
    for index, values in enumerate(confidences):
        lead = confidences[best] - values
        if index != best and lead.mean() < ERRORS * lead.std(ddof=1) / np.sqrt(len(lead)):
            return None
    return CANDIDATES[best]
