"""The equaliser: restoring what the images of a domain lack, before the model sees them.

Blur, fog, noise and lost contrast change whole bands of spatial frequency. How strong each band is on clean images is
part of the source statistics (:mod:`fozo.core.descriptor`); how strong it is in the present domain follows from the
estimates of :mod:`~fozo.methods.align.memory`. That decides what is done to the domain's images:

1. **Levels**, where coarse bands lack as much energy as fine ones: the range of each channel is stretched, by image,
   towards that of a clean picture, but no further than the missing energy says.
2. **Brightening**, where brightness lacks: part of the way from x to its square root, at most about x^0.67.
3. **Local contrast** (:func:`fozo.core.contrast.clahe`), where they do: haze varies over a picture.
4. **Bands**: as an audio equaliser would, bands that are too weak are amplified, and the noise in those that are far
   too strong is attenuated as Wiener's filter would. With the deviation from the clean log energy,

       log gain = min(strength * deficit / 2, log 4) - strength * excess

A strength of 1 would restore the energy (which is amplitude squared), 0 leaves the image as it is. Only an excess of
``STRONG`` is noise: of less, snow or detail may be the cause.

There are two profiles, by measurement (docs/detectors.md, docs/ablation.md). For ``tokens``, inside Align, every band
that lacks energy is amplified, and local contrast is left alone. A ``detector`` has local contrast restored, and bands
amplified only where fine ones lack ``STRONG`` more than coarse ones: there the picture is blurred.

A domain estimate is uncertain, the more so the fewer images it rests on. Of a deviation of d standard errors, the part
1 - 1/d^2 is believed (James and Stein's estimate), and nothing of less than one. What is not believed at all is not
done at all: images of a clean domain stay as they are, bit for bit.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fozo.core.content import CONTENT_VARIANCE
from fozo.core.contrast import clahe, luminance
from fozo.core.descriptor import Single, spectra
from fozo.core.moments import shrinkage
from fozo.core.statistics import Statistics
from fozo.methods.align.memory import DomainEstimate, RetrievalConfig
from fozo.types import Array, Engine, Floats

MAX_LOG_GAIN = np.log(4.0)  # no band is amplified more than fourfold: beyond it, the rounding to 8 bits would show
STRONG = 2.0
"""Deviation in log energy from which on bands are those of noise, or of blur; all is done from 1 more. Noise of
severity 3 has an excess of 4, and snow of 1.5; defocus a tilt of 5, and real fog, rain, sand and snow of 1 to 2."""
LEVELS_VARIANCE = {"tokens": 16.0, "detector": 4.0}
"""Squared lack of coarse energy, in clean variances, up to which levels are left alone. A hazy landscape lacks as much,
and a ViT has more of fog's bands amplified than of its levels stretched."""
PROFILES = tuple(LEVELS_VARIANCE)
MOST_BRIGHTENING = 0.6
SMALLEST = 64  # side in pixels from which on a picture has local contrast
LOW = 0.05
HIGH = 0.92
CUT = 0.01
"""Where the darkest and the brightest hundredth of a clean picture's pixels are, on average."""


@dataclass(frozen=True)
class Restoration:
    """What is done to the images of n domains, or to all images of one."""

    log_stretch: Array  # most that ranges are stretched, [n]
    brightening: Array  # part of the way to the square root, [n]
    local: Array  # part of the way to the image with local contrast, [n]
    log_gains: Array  # of bands before ranges are stretched, [n, channels, bands]
    gains: Single | None  # of coefficients, where all images share them

    @property
    def on_pixels(self) -> npt.NDArray[np.bool_]:
        """Of which domains the pixels are changed before the bands, ``[n]``."""
        return self.log_stretch + self.brightening + self.local > 0

    def __bool__(self) -> bool:
        return bool(self.on_pixels.any() or self.log_gains.any())


class ImageRestorer:
    """Describes images, estimates how far their domains have drifted, and restores what these lack."""

    def __init__(
        self,
        source: Statistics,
        engine: Engine,
        strength: float,
        retrieval: RetrievalConfig,
        profile: str = "tokens",
    ) -> None:
        self.spectra = spectra(*engine.spec.image_shape)
        self.threads = engine.threads
        self.mean = source.descriptor.mean
        self.std = np.maximum(source.descriptor.std, 1e-6)
        self.strength = strength
        self.retrieval = retrieval
        known = source.normalisation(engine.spec)
        self.normalisation = None if known is None else np.array(known, dtype=np.float32)[..., None, None]
        self.levels_variance = LEVELS_VARIANCE[profile]
        self.detector = profile == "detector" and known is not None  # of unknown pixels only bands can be restored
        half = self.spectra.bands // 2
        self._fine = slice(0, half)
        self._coarse = slice(half, max(self.spectra.bands - 2, half + 1))

    def describe(self, images: Floats) -> tuple[Single, Array, npt.NDArray[np.bool_]]:
        """Return the coefficients of images, their descriptors, and which of them can be pictures."""
        coefficients, descriptors = self.spectra.transform(images, threads=self.threads)
        return coefficients, descriptors, np.all(np.abs(descriptors) <= self.spectra.limits, axis=1)  # False for NaN

    def domains(self, descriptors: Array, recent: Single) -> DomainEstimate:
        """Estimate the domains of images; few are judged together with those before them."""
        context = self.retrieval.context - len(descriptors)
        before = recent[-context:] if context > 0 else descriptors[:0]
        return DomainEstimate.of((descriptors - self.mean) / self.std, before)

    def shift(self, descriptors: Array) -> float:
        """How far images are from clean ones: about 1 for these, however many."""
        if not len(descriptors):
            return 0.0
        mean = np.add.reduce((descriptors - self.mean) / self.std) / len(descriptors)
        return len(descriptors) * float(np.square(mean).mean())

    def plan(self, posterior: DomainEstimate, noise_excess: float | None = None) -> Restoration:
        """Decide what is done to images of domains that are estimated like this.

        Where ``noise_excess`` is known (:func:`fozo.core.descriptor.haar_noise`, less that of clean images), it decides
        whether an excess of fine bands is noise; else the excess itself does.
        """
        drifted = self.retrieval.drifted(posterior, self.spectra.brightness) * (self.strength > 0)
        deviation = posterior.mean * shrinkage(posterior.variance, posterior.mean**2) * self.std
        energies = drifted[:, None, None] * self.spectra.log_energies(deviation)
        deficit = np.maximum(-energies, 0)
        excess = np.maximum(energies[:, :, self._fine], 0)
        bright = self.spectra.brightness
        common = deficit[:, :, self._coarse].mean(axis=2, keepdims=True)
        strength = excess[:, bright].max(axis=(1, 2), initial=0) if noise_excess is None else np.array([noise_excess])
        noisy = np.clip(strength - STRONG, 0, 1)
        nothing = np.zeros(len(drifted))
        stretch = brightening = local = nothing
        if self.normalisation is not None:
            means, variances = (
                self.spectra.log_energies(part)[:, bright, self._coarse].mean(axis=(1, 2))
                for part in (posterior.mean, posterior.variance)
            )
            lack = np.maximum(-means, 0) ** 2
            missing = common[:, bright, 0].mean(axis=1)
            stretch = drifted * shrinkage(variances + self.levels_variance, lack) * missing / 2
            brightening = drifted * self._brightening(posterior)
            if self.detector and min(self.spectra.height, self.spectra.width) >= SMALLEST:
                local = drifted * shrinkage(variances + CONTENT_VARIANCE, lack)
        tilt = np.maximum(deficit - common, 0)
        blurred = np.clip(tilt[:, bright].max(axis=(1, 2)) - STRONG, 0, 1)
        stretch = stretch * (1 - blurred)
        local = local * (1 - blurred)
        if self.detector:
            deficit = tilt * blurred[:, None, None]
        log_gains = np.minimum(self.strength * deficit / 2, MAX_LOG_GAIN)
        log_gains[:, :, self._fine] -= self.strength * noisy[:, None, None] * excess
        shared = len(log_gains) == 1 and log_gains.any() and not stretch.any()
        gains = self.spectra.gains(log_gains[0]) if shared else None
        return Restoration(stretch, brightening, local, log_gains, gains)

    def _brightening(self, posterior: DomainEstimate) -> Array:
        """How far images of domains that are darker than clean ones are moved towards their square root, ``[n]``."""
        bright = self.spectra.brightness
        (mean, std) = np.mean(np.asarray(self.normalisation), axis=(1, 2, 3))
        lack = np.maximum(-posterior.mean[:, bright], 0)
        lack = lack * shrinkage(posterior.variance[:, bright] + CONTENT_VARIANCE, lack**2)
        length = np.sqrt(self.spectra.channels / self.mean[bright].size)  # of the sum of colours that brightness is
        clean, dark = (
            np.clip(value.mean(axis=-1) / length * std + mean, 0.02, 0.9)
            for value in (self.mean[bright], self.mean[bright] - lack * self.std[bright])
        )
        exponent = np.log(clean) / np.log(dark)  # of the gamma that would restore the mean; the root's is 1/2
        part: Array = np.clip(2 * (1 - exponent), 0, MOST_BRIGHTENING)
        return part

    def restore(self, images: Floats, coefficients: Single, plan: Restoration) -> Single:
        """Restore images, each by its row of the plan, or by the one they share, in the place of their coefficients."""
        on_pixels = plan.on_pixels
        if plan.gains is not None and not on_pixels.any():
            return self.spectra.inverse(coefficients, plan.gains, self.threads)

        def work(image: int) -> None:
            row = min(image, len(on_pixels) - 1)
            place = coefficients[image : image + 1]
            better = images[image]
            log_gains = plan.log_gains[row]
            if on_pixels[row]:
                better, log_stretch = self._restore_pixels(better, plan, row)
                if log_stretch:  # what was stretched lacks that much less
                    log_gains = np.where(log_gains > 0, np.maximum(log_gains - log_stretch, 0), log_gains)
            if log_gains.any():
                if on_pixels[row]:
                    self.spectra.transform(better[None], place)
                self.spectra.inverse(place, self.spectra.gains(log_gains) if plan.gains is None else plan.gains)
            else:
                place[0] = better

        self.threads.each(work, range(len(images)))
        return coefficients

    def _restore_pixels(self, image: Floats, plan: Restoration, row: int) -> tuple[Single, float]:
        """Stretch levels, brighten, and restore local contrast: the image, and by how much it was stretched."""
        mean, std = np.asarray(self.normalisation)
        pixels: Single = image.astype(np.float32) * std + mean
        log_stretch = 0.0
        if plan.log_stretch[row] > 0:
            step = max(1, min(image.shape[1:]) // 56)
            few = np.sort(pixels[:, ::step, ::step].reshape(len(pixels), -1), axis=1)
            cut = int(CUT * few.shape[1])
            low = few[:, cut, None, None]
            high = few[:, -1 - cut, None, None]
            width = np.maximum(high - low, 0.01)
            log = np.clip(np.log((HIGH - LOW) / width), 0, plan.log_stretch[row])
            half = np.minimum(np.exp(log) * width, HIGH - LOW) / 2
            centre = (low + high) / 2
            pixels -= centre
            pixels *= np.exp(log).astype(np.float32)
            pixels += np.clip(centre, LOW + half, HIGH - half)  # moved just until it lies within the clean range
            log_stretch = float(log.mean())
        np.clip(pixels, 0, 1, out=pixels)
        if plan.brightening[row] > 0:
            pixels += np.float32(plan.brightening[row]) * (np.sqrt(pixels) - pixels)
        if plan.local[row] > 0:
            luma = luminance(pixels[None])
            pixels += np.float32(plan.local[row]) * (clahe(luma) - luma)
            np.clip(pixels, 0, 1, out=pixels)
        pixels -= mean
        pixels /= std
        return pixels, log_stretch
