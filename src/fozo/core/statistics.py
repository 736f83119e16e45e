"""The source statistics: what the plain model's activations look like on clean images, and their file.

They are all that adaptation ever sees of the source domain: no image and no label of it is stored.
:func:`fozo.public.calibrate` collects them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from fozo.core.content import ContentBasis, ContentMoments, ContentRegression
from fozo.core.descriptor import half_octaves
from fozo.core.moments import Moments, shrinkage
from fozo.core.normalisation import InputRange, Normalisation, name_of
from fozo.core.tokens import PatchMoments
from fozo.errors import FozoError
from fozo.state import Measured
from fozo.types import Array, Spec, short


@dataclass(frozen=True)
class Statistics(Measured):
    """What the plain model's activations look like on clean data.

    All are over images. ``cls``, ``features`` ``[L, d]``, ``pooled`` ``[h]`` and ``patch_mean`` ``[L, d]`` are named
    as in :class:`fozo.types.Tap`; ``patch_log_variance`` ``[L, d]`` is the logarithm of ``patch_variance``, and
    ``descriptor`` ``[f]`` is of the images themselves, see :mod:`fozo.core.descriptor`. ``content`` has what the images
    show and how it goes together with the parts named in ``CONDITIONED``, see :mod:`fozo.core.content`.

    A black box shows no tokens: its statistics are those of :meth:`of_images`, all parts but ``descriptor`` are empty.

    Examples:
        >>> statistics.blend(fozo.calibrate(model, "camera/clean"))  # of many mixed images and a few of one camera
        <Statistics of vit-fashion (3e4973ae8e70): 4096 images>
    """

    fingerprint: str
    cls: Moments
    features: Moments
    pooled: Moments
    patch_mean: Moments
    patch_log_variance: Moments
    descriptor: Moments
    content: ContentMoments
    model: str = field(default="", compare=False)
    inputs: InputRange | None = None
    """The range of the images' values and how they were normalised; ``None`` for statistics that were not collected."""
    patch_moments: PatchMoments | None = None
    """Covariances of patch tokens; ``None`` where the model does not show them, or the images were too few."""
    noise: float | None = None
    """Average noise of the images, see :func:`fozo.core.descriptor.haar_noise`; ``None`` where it is not known."""

    KIND: ClassVar = "source statistics"
    PARTS: ClassVar = ("cls", "features", "pooled", "patch_mean", "patch_log_variance", "descriptor")
    TOKENS: ClassVar = ("cls", "features", "patch_mean", "patch_log_variance")
    CONDITIONED: ClassVar = ("cls", "patch_mean", "patch_log_variance", "descriptor")

    def __post_init__(self) -> None:
        """Refuse parts of different images or models."""
        parts = {name: getattr(self, name) for name in self.PARTS}
        if {moments.count for moments in parts.values()} != {self.content.count}:
            raise ValueError("their parts are of different numbers of images")
        if len({parts[name].mean.shape for name in self.TOKENS}) != 1:
            raise ValueError("their tokens are of different models")
        if self.content.basis.centre.shape != self.pooled.mean.shape:
            raise ValueError("their contents are of another head")
        contents = self.content.mean.shape
        wanted = {name: contents + parts[name].mean.shape for name in self.CONDITIONED}
        if {name: cross.shape for name, cross in self.content.cross.items()} != wanted:
            raise ValueError("their contents do not fit their parts")

    @classmethod
    def of_images(
        cls,
        fingerprint: str,
        model: str,
        descriptors: Array,
        inputs: InputRange | None = None,
        noise: float | None = None,
    ) -> Statistics:
        """Statistics of a model that shows nothing of its inside, from the images' descriptors ``[B, f]`` alone."""
        count = len(descriptors)
        layers = np.zeros((0, 0))
        none = np.zeros(0)
        parts: dict[str, Any] = {name: Moments(count, layers, layers) for name in cls.PARTS}
        parts |= {"pooled": Moments(count, none, none), "descriptor": Moments.of(descriptors)}
        cross = {name: np.zeros((0, *parts[name].mean.shape)) for name in cls.CONDITIONED}
        content = ContentMoments(ContentBasis(none, layers), count, none, layers, cross)
        return cls(fingerprint, content=content, model=model, inputs=inputs, noise=noise, **parts)

    @property
    def images(self) -> int:
        return self.descriptor.count

    def merge(self, other: Statistics) -> Statistics:
        """Statistics of both image collections together, for collecting in parallel or in instalments."""
        other.check(self.fingerprint, self.model)
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in self.PARTS}
        parts = {name: one.merge(two) for name, (one, two) in pairs.items()}
        differences = {name: pairs[name][1].mean - pairs[name][0].mean for name in self.CONDITIONED}
        content = self.content.merge(other.content, differences)
        inputs = None if self.inputs is None or other.inputs is None else self.inputs.merge(other.inputs)
        patch_moments = None
        if self.patch_moments is not None and other.patch_moments is not None:
            patch_moments = self.patch_moments.merge(other.patch_moments)
        noise = None
        if self.noise is not None and other.noise is not None:
            share = other.images / (self.images + other.images)
            noise = (1 - share) * self.noise + share * other.noise
        return Statistics(
            self.fingerprint, content=content, model=self.model, inputs=inputs, patch_moments=patch_moments,
            noise=noise, **parts,
        )  # fmt: skip

    def regression(self) -> ContentRegression:
        """Learn how the activations follow from what an image shows."""
        return ContentRegression(self.content, {name: getattr(self, name) for name in self.CONDITIONED})

    def blend(self, own: Statistics) -> Statistics:
        """Statistics for one camera, from these of many mixed images and ``own`` ones of a few of its clean images.

        The camera's averages start from what mixed images of the same content have, and are moved towards its own: by
        all of the way if its images differ clearly, by none if they differ no more than by chance
        (James and Stein's estimate, for each layer). How images vary, and how that follows from their content, stays
        as the many images tell it.
        """
        own.check(self.fingerprint, self.model)
        self.content.basis.check(own.content.basis)
        regression = self.regression()
        offset = (own.content.mean - self.content.mean)[None]
        parts = {}
        for name in self.PARTS:
            mixed = getattr(self, name)
            few = getattr(own, name)
            if not mixed.mean.size:  # of a black box
                continue
            expected = mixed.mean + (regression.shift(name, offset)[0] if name in self.CONDITIONED else 0)
            scale = np.maximum(mixed.std, 1e-9)
            deviation = np.square((few.mean - expected) / scale).mean(axis=-1, keepdims=True)
            chance = np.square(few.std / scale).mean(axis=-1, keepdims=True) / few.count
            parts[name] = replace(mixed, mean=expected + shrinkage(chance, deviation) * (few.mean - expected))
        inputs = None if self.inputs is None or own.inputs is None else self.inputs.merge(own.inputs)
        return replace(self, content=replace(self.content, mean=own.content.mean), inputs=inputs, **parts)

    def normalisation(self, spec: Spec) -> Normalisation | None:
        """What a model's images are normalised with: by its own word, or as seen on the clean ones."""
        return spec.normalisation or (None if self.inputs is None else self.inputs.inferred())

    def __repr__(self) -> str:
        normalisation = None if self.inputs is None else self.inputs.inferred()
        how = "" if normalisation is None else f", {name_of(normalisation)}"
        return f"<Statistics of {self.model or 'a model'} ({short(self.fingerprint)}): {self.images} images{how}>"

    def check(self, fingerprint: str, model: str, spec: Spec | None = None) -> None:
        """Refuse to serve a model other than the one these statistics were collected from.

        With its ``spec``, also one that has the fingerprint and yet another form.
        """
        again = "collect them again with this model"
        if fingerprint != self.fingerprint:
            raise FozoError(
                f"these statistics are of {self.model or 'another model'} ({short(self.fingerprint)}), not of "
                f"{model} ({short(fingerprint)}); {again}"
            )
        if spec is None:
            return
        if 0 in spec.image_size:
            raise FozoError(f"the size of the images of {spec.name} is not known yet; give image_size=(height, width)")
        features = spec.channels * (1 + half_octaves(*spec.image_size))
        if self.inputs is not None and self.inputs.low.size != spec.channels:
            raise FozoError(
                f"these statistics are of images of {self.inputs.low.size} channels, where {spec.name} reads "
                f"{spec.channels}; collect them again with this model"
            )
        shapes = (self.cls.mean.shape, self.pooled.mean.shape, self.descriptor.mean.shape)
        if shapes != ((spec.depth, spec.dim), (spec.head_width,), (features,)):
            raise FozoError(
                f"these statistics are of {list(shapes[0])} tokens, {shapes[1][0]} pooled and {shapes[2][0]} image "
                f"features, where {spec.name} has {[spec.depth, spec.dim]}, {spec.head_width} and {features}; collect "
                f"them again with this model"
            )
