"""FOZO's own preset: images given back what they lack, patch tokens moved towards their clean statistics.

One forward pass an image, no gradient, no prompt, no random number. The stream is worked through a few images at a
time. For each of them, :mod:`fozo.core.recall` finds the earlier images that look alike. Where bands of spatial
frequency are weaker in that domain than on clean images, :mod:`fozo.core.equaliser` amplifies them. What the blocks did
to the images alike is what they are expected to do to this one, and :mod:`fozo.core.alignment` turns that into moves
before every block, the weaker the fewer images they rest on. docs/method.md has the mathematics, what every ingredient
is worth, and what failed.

With more passes, images are looked at again once they are in the memory themselves: the moves then rest on what the
blocks really did to them, which matters most where little else is remembered. ``passes="auto"`` looks twice just
there, within a budget, and once everywhere else.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import numpy as np
import numpy.typing as npt

from fozo.core.alignment import Plan, Responses, Target, observe, plan
from fozo.core.equaliser import equalise, missing
from fozo.core.look import Single, spectra
from fozo.core.recall import Keys, Memory, Recalled, Rule
from fozo.core.statistics import SourceStatistics
from fozo.engines.base import (
    Engine,
    Floats,
    Images,
    ImagesT,
    Knobs,
    Tokens,
    as_numpy,
    check_images,
    like,
    refuse_broken,
)
from fozo.errors import FozoError
from fozo.methods.base import Method, State
from fozo.methods.presets import pick

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Options:
    """Everything about the alignment that can be chosen. One setting serves all models: nothing has a unit."""

    mean: float = 0.15
    """Part of the way that the mean of the patch tokens is moved before each block."""
    spread: float = 0.2
    """Part of the way that their spread is."""
    detail: float = 0.7
    """Part of the way that weak bands of the image's spatial frequencies are amplified to their clean energy."""
    doubt: float = 4.0
    """How many images' worth of evidence halves the moves: n images count n / (n + doubt)."""
    together: int = 8
    """Images that go through the model together, and see the same memories."""
    budget: float = 1.1
    """For ``passes="auto"``: passes an image, on average over the stream."""
    recall: Rule = field(default_factory=Rule)

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name in ("mean", "spread", "detail"):
            if not 0 <= getattr(self, name) <= 1:
                raise FozoError(f"{name} is {getattr(self, name)}; give a part from 0 (no move) to 1 (all the way)")
        if not self.doubt >= 0:
            raise FozoError(f"doubt is {self.doubt}; give a number of images from 0 up")
        if not self.budget >= 1:
            raise FozoError(f"budget is {self.budget}; give an average number of passes from 1 up")
        if self.together < 1:
            raise FozoError(f"together is {self.together}; give a whole number from 1 up")


AUTO = "auto"
NEW = 8.0
"""``auto`` looks twice at images that fewer earlier ones speak for than this."""
ADVANCE = 16.0
"""Second looks that ``auto`` may take before it has saved up for them: two parts of a batch, where a stream begins."""
MOST_SAVED = 64.0
"""Second looks that it saves up at most, so that a long quiet time does not end in a spree."""


class AlignedFOZO(Method):
    """Aligns the patch tokens of every layer with their clean statistics; ``passes`` forward passes an image."""

    def __init__(
        self, engine: Engine, source: SourceStatistics | None = None, *, passes: int | str = 1, **switches: object
    ) -> None:
        """Prepare to adapt.

        Args:
            engine: the frozen model.
            source: its statistics on clean data.
            passes: forward passes for each image, or ``"auto"``: two after a change of domain, else one.
            switches: any field of :class:`Options` that should differ.
        """
        super().__init__(engine, source)
        assert source is not None
        if passes != AUTO and not (isinstance(passes, int) and passes >= 1):
            raise FozoError(f"FOZO takes a whole number of passes from 1 up, or 'auto', not {passes!r}")
        self.choices = pick("fozo", {"aligned": Options()}, "aligned", switches)
        self.passes = passes
        self.target = Target(source.patch_mean.mean, source.patch_spread.mean)
        self.source_look = source.look
        self.looks_vary = np.maximum(source.look.std, 1e-6)
        self.spectra = spectra(*engine.spec.image_shape)
        self._begin()

    def _begin(self) -> None:
        self.memory = Memory(self.source_look.mean.size, 2 * self.target.mean.size, self.choices.recall)
        self.worth = self.shift = 0.0
        self.saved = ADVANCE
        self.spent = 1.0

    def __call__(self, images: ImagesT) -> ImagesT:
        """Adapt to normalised images ``[B, channels, height, width]`` and return their logits ``[B, classes]``.

        If it raises, the method is as it was before the call.
        """
        step = self.choices.together
        # Everything that can be refused is refused here, before anything is remembered.
        array = self._checked(images)
        coefficients = self.spectra.transform(array)
        keys = self.keys(coefficients)
        before = self.memory.keys, self.memory.values, self.saved
        logits, looks = [], 0
        try:
            for start in range(0, len(array), step):
                some = slice(start, start + step)
                part, passes = self._part(array[some], coefficients[some], keys.part(some))
                logits.append(part)
                looks += passes * len(part)
        except BaseException:
            self.memory.keys, self.memory.values, self.saved = before
            raise
        self.spent = looks / len(images)
        return like(images, np.concatenate(logits))

    def adapt(self, tokens: Tokens) -> Floats:
        """Refuse: what an image looks like cannot be told from its tokens."""
        raise FozoError("the aligned preset of fozo looks at images, not at embedded tokens: call it with the images")

    def _checked(self, images: Images) -> Floats:
        """Refuse what no engine would take."""
        check_images(tuple(images.shape), images.dtype, self.engine.spec)
        array = as_numpy(images)
        with np.errstate(over="ignore"):  # what overflows float32 is refused in the next line, by image
            refuse_broken(np.all(np.isfinite(np.asarray(array, dtype=np.float32)), axis=(1, 2, 3)))
        return array

    def keys(self, coefficients: Single) -> Keys:
        """Estimate the looks of the domains that images of these cosine coefficients are from."""
        looks = (self.spectra.look(coefficients) - self.source_look.mean) / self.looks_vary
        self.shift = len(looks) * float(np.square(looks.mean(axis=0)).mean())
        return self.choices.recall.keys(looks, self.memory.keys.look)

    def _part(self, images: Floats, coefficients: Single, keys: Keys) -> tuple[Floats, int]:
        """Move, predict and remember a few images; look again where that is due. Return logits, and looks taken."""
        memory = self.memory.keys, self.memory.values
        recalled = self.memory.recall(keys)
        self.worth = float(recalled.worth.mean())
        tokens = self.engine.embed(self._equalised(images, coefficients, keys, recalled))
        looks = self._due(len(images))
        for again in range(looks):
            if again:
                recalled = self.memory.recall(keys)
            used = self._plan(recalled)
            taps = self.engine.run(tokens, Knobs(patches=used.move()), patch_moments=True)
            logits = self.engine.logits(taps.pooled[0])
            if not np.isfinite(logits).all():
                raise FozoError("the model's logits are not all finite; nothing was changed")
            seen = observe(taps, used)
            self.memory.keys, self.memory.values = memory  # what the look before saw of these images is out of date
            self.memory.add(keys, np.concatenate([seen.mean, seen.spread], axis=1).reshape(len(images), -1))
        return logits, looks

    def _equalised(self, images: Floats, coefficients: Single, keys: Keys, recalled: Recalled) -> Floats:
        """Give images back the detail that their domains lack."""
        informed = self.choices.recall.informed(keys.distinct(), recalled)
        lacking = missing(self.spectra, informed, self.looks_vary)
        if not self.choices.detail or not lacking.any():
            return images
        return equalise(self.spectra, coefficients, lacking, self.choices.detail)

    def _due(self, images: int) -> int:
        """How many looks the next images get."""
        if isinstance(self.passes, int):
            return self.passes
        self.saved = min(self.saved + (self.choices.budget - 1) * images, MOST_SAVED)
        if self.worth >= NEW or self.saved < images:
            return 1
        self.saved -= images
        return 2

    def _plan(self, recalled: Recalled) -> Plan:
        """Decide the moves from what is remembered of images that look alike."""
        depth, dim = self.target.mean.shape
        expected = recalled.values.reshape(-1, 2, depth, dim)
        trust = recalled.worth / np.maximum(recalled.worth + self.choices.doubt, 1e-300)
        strengths = np.array([self.choices.mean, self.choices.spread]) * trust[:, None]
        return plan(Responses(expected[:, 0], expected[:, 1]), self.target, strengths)

    @property
    def parameters(self) -> int:
        """How many numbers the moves of one image consist of."""
        return 2 * self.target.mean.size

    def telling(self) -> dict[str, float]:
        """Return how far the latest batch looks from clean ones (about 1 if it is clean), and the worth of memories.

        The worth is the number of earlier images that the latest moves rested on.
        """
        return {"shift": self.shift, "worth": self.worth}

    def reset(self) -> None:
        """Forget everything seen."""
        self._begin()

    def state(self) -> State:
        """Return the memory."""
        keys = self.memory.keys
        return {
            "centre": keys.centre,
            "variance": keys.variance,
            "look": keys.look,
            "responses": self.memory.values.astype(np.float64),
            "saved": np.array([self.saved]),
        }

    def restore_state(self, state: State) -> None:
        """Continue from a state."""
        self._begin()
        keys = Keys(state["centre"], state["variance"], state["look"])
        count = len(state["responses"])
        fits = all(
            part.shape == (count, self.source_look.mean.size) for part in (keys.centre, keys.variance, keys.look)
        )
        if not fits or state["responses"].shape[1:] != self.memory.values.shape[1:]:
            raise FozoError(
                f"the state's memory has shape {list(state['responses'].shape)} and does not fit this model"
            )
        self.memory.keys, self.memory.values = keys, state["responses"].astype(np.float32)
        self.saved = float(state["saved"][0])

    def options(self) -> dict[str, object]:
        """Everything that has to be the same for a state to be continued."""
        return {**asdict(self.choices), "passes": self.passes, "preset": "aligned"}
