"""Source statistics: as a file whole or refused, for one model only, and blended with those of one camera."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fozo
from fozo.core.moments import Moments
from fozo.core.statistics import Statistics
from fozo.state import leaves, rebuild, same
from fozo.types import Array
from tests.helpers import invented_source, random_images, random_vit
from tests.refusals import refuses


def test_they_survive_a_file_and_serve_only_their_model(
    engine: fozo.Engine, source: Statistics, tmp_path: Path
) -> None:
    source.save(tmp_path / "statistics.safetensors")
    loaded = Statistics.load(tmp_path / "statistics.safetensors")
    assert same(loaded, source)
    fozo.FOZO(engine, loaded)
    other = fozo.load_engine(random_vit(seed=1))
    refuses("collect them again", fozo.FOZO, other, loaded)
    refuses(
        "collect them again", fozo.calibrate(other, [np.zeros((2, *other.spec.image_shape), np.float32)]).merge, source
    )
    refuses("no file", Statistics.load, tmp_path / "none")
    refuses("cannot write", source.save, tmp_path / "missing" / "stats")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("fingerprint", 5), ("cls.count", 0), ("cls.count", 10**20), ("content.count", 1),
        ("cls.mean", np.zeros((4, 23))),
        ("cls.squares", -np.ones((4, 24))), ("pooled.mean", np.zeros(3)), ("content.mean", np.zeros(2)),
        ("content.products", -np.eye(6)), ("content.cross.cls", np.zeros((6, 4, 23))), ("inputs.low", np.full(3, 9.0)),
        ("patch_mean.mean", np.full((4, 24), np.nan)), ("content.cross.names", "cls descriptor"),
    ],
)  # fmt: skip
def test_values_that_no_clean_images_give_are_refused(source: Statistics, path: str, value: Any) -> None:
    values = dict(leaves(source))
    assert path in values
    refuses("damaged", rebuild, Statistics, {**values, path: value})


def test_statistics_of_another_form_are_refused_by_the_model(engine: fozo.Engine, source: Statistics) -> None:
    """Whole in themselves, but not this model's, whatever the fingerprint says."""
    narrower = replace(
        source,
        descriptor=Moments(source.images, source.descriptor.mean[1:], source.descriptor.squares[1:]),
        content=replace(
            source.content, cross={**source.content.cross, "descriptor": source.content.cross["descriptor"][:, 1:]}
        ),
    )
    refuses(r"image features.*collect them again", fozo.create, "align", engine, narrower)


LAYERS, DIM = 3, 200


def camera(
    images: int, seed: int, shift: float | Array = 0.0, content: float = 0.0, law: float = 0.0
) -> dict[str, Array]:
    """Values of images, each of variance 1 where nothing else is asked for, and off by ``shift``.

    Their content is ``content`` on average in the first of two directions; ``law`` of the values follows from it.
    """
    rng = np.random.default_rng(seed)
    shown = rng.standard_normal((images, 2)) + np.array([content, 0])
    values = {"shown": shown}
    for name in Statistics.PARTS:
        layers = (LAYERS,) if name in ("cls", "features", "patch_mean", "patch_log_variance") else ()
        noise = rng.standard_normal((images, *layers, DIM))
        follows = law * shown[:, 0].reshape(-1, *[1] * (noise.ndim - 1))
        values[name] = noise + follows + (shift if layers else np.mean(shift))
    return values


def statistics_of(values: dict[str, Array], model: str = "camera") -> Statistics:
    return invented_source(values["shown"], values, model)


MANY = statistics_of(camera(2000, seed=0))


def way(blended: Statistics, own: Statistics, name: str) -> Array:
    """Which part of the way to its own average each layer was moved."""
    first = getattr(MANY, name).mean
    step, whole = getattr(blended, name).mean - first, getattr(own, name).mean - first
    part: Array = (step * whole).sum(axis=-1) / (whole**2).sum(axis=-1)
    return part


def test_a_few_images_like_all_others_change_next_to_nothing() -> None:
    """Ten images differ from two thousand by chance, and chance is not learnt."""
    own = statistics_of(camera(10, seed=1))
    blended = MANY.blend(own)
    for name in Statistics.PARTS:
        assert way(blended, own, name).max() < 0.3
        moved, apart = (
            np.square(getattr(each, name).mean - getattr(MANY, name).mean).mean() for each in (blended, own)
        )
        assert moved < 0.05 * apart


def test_many_images_of_another_kind_are_followed_all_the_way() -> None:
    own = statistics_of(camera(500, seed=1, shift=3.0))
    blended = MANY.blend(own)
    for name in Statistics.PARTS:
        assert way(blended, own, name).min() > 0.999


def test_each_layer_goes_as_far_as_its_deviation_is_beyond_chance() -> None:
    """25 images are off by 0.04 (squared) by chance. A layer that is off by as much again is followed half the way."""
    own = statistics_of(camera(25, seed=1, shift=np.array([[0.0], [0.2], [2.0]])))
    blended = MANY.blend(own)
    for name in ("cls", "features", "patch_mean", "patch_log_variance"):
        none, half, all_of_it = way(blended, own, name)
        assert none < 0.3 and half == pytest.approx(0.5, abs=0.15) and all_of_it > 0.98


def test_what_follows_from_content_is_believed_of_the_few_images_too() -> None:
    """Of three images little can be learnt, but what they show says where their averages have to be."""
    many = statistics_of(camera(2000, seed=0, law=0.5))
    own = statistics_of(camera(3, seed=1, content=6.0, law=0.5))
    shown = own.content.mean[0] - many.content.mean[0]
    assert shown > 4
    blended = many.blend(own)
    for name in Statistics.CONDITIONED:
        expected = getattr(many, name).mean + 0.5 * shown
        np.testing.assert_allclose(getattr(blended, name).mean.mean(axis=-1), expected.mean(axis=-1), atol=0.15)
        # The images' own noise, of variance 1/3, is left out.
        assert np.square(getattr(blended, name).mean - expected).mean() < 0.05


def test_only_averages_are_blended() -> None:
    own = statistics_of(camera(50, seed=1, shift=1.0, content=2.0))
    blended = MANY.blend(own)
    for name in Statistics.PARTS:
        assert getattr(blended, name).count == 2000
        np.testing.assert_array_equal(getattr(blended, name).std, getattr(MANY, name).std)
    assert blended.fingerprint == MANY.fingerprint and blended.model == MANY.model and blended.images == 2000
    np.testing.assert_array_equal(blended.content.mean, own.content.mean)
    refuses(
        r"of other .*not of camera .*collect them again", MANY.blend, statistics_of(camera(20, seed=1), model="other")
    )
    rest = [field.name for field in fields(MANY.content) if field.name != "mean"]
    assert rest and all(getattr(blended.content, name) is getattr(MANY.content, name) for name in rest)  # W stays
    for name, weights in MANY.regression().weights.items():
        np.testing.assert_array_equal(blended.regression().weights[name], weights)


def test_blended_statistics_serve_their_model(engine: fozo.Engine, source: Statistics) -> None:
    blended = source.blend(fozo.calibrate(engine, [0.5 * random_images(20) + 0.5]))
    clean = 0.5 * random_images(20, seed=1) + 0.5
    shifts = []
    for each in (source, blended):
        method = fozo.Align(engine, each)
        method(clean)
        shifts.append(method.metrics()["shift"])
    assert shifts[0] > 20 and shifts[1] < 0.2 * shifts[0]  # for this camera, these images are the clean ones
