"""Source statistics: as a file whole or refused, for one model only, and blended with those of one camera."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import fozo
from fozo.core.statistics import SourceStatistics
from fozo.errors import FozoError
from fozo.io import load_arrays, save_arrays
from fozo.types import Array
from tests.helpers import invented_source, random_images, random_vit

Stored = tuple[Path, dict[str, object], dict[str, np.ndarray]]


@pytest.fixture
def stored(tmp_path: Path, source: SourceStatistics) -> Stored:
    """A file of statistics, its header and its arrays."""
    path = tmp_path / "stats.npz"
    source.save(path)
    return path, *load_arrays(path, SourceStatistics.KIND)


def refused(stored: Stored, header: object, arrays: dict[str, np.ndarray], match: str) -> None:
    save_arrays(stored[0], header, arrays)  # type: ignore[arg-type]
    with pytest.raises(FozoError, match=match):
        SourceStatistics.load(stored[0])


def test_survive_a_file_and_serve_only_their_model(
    engine: fozo.Engine, source: SourceStatistics, stored: Stored, tmp_path: Path
) -> None:
    loaded = SourceStatistics.load(stored[0])
    loaded.save(tmp_path / "again.npz")
    for name, array in load_arrays(tmp_path / "again.npz", SourceStatistics.KIND)[1].items():
        np.testing.assert_array_equal(array, stored[2][name])
    for name in SourceStatistics.PARTS:
        np.testing.assert_array_equal(getattr(loaded, name).squares, getattr(source, name).squares)
        assert getattr(loaded, name).count == loaded.content.count == getattr(source, name).count
    fozo.FOZO(engine, loaded)
    other = fozo.load_engine(random_vit(seed=1))
    with pytest.raises(FozoError, match="collect them again"):
        fozo.FOZO(other, loaded)
    with pytest.raises(FozoError, match="collect them again"):
        fozo.calibrate(other, [np.zeros((2, *other.spec.image_shape), np.float32)]).merge(source)


def test_a_broken_file_is_one_clear_error(tmp_path: Path, source: SourceStatistics) -> None:
    path = tmp_path / "stats.npz"
    source.save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FozoError, match="truncated"):
        SourceStatistics.load(path)
    with pytest.raises(FozoError, match="no file"):
        SourceStatistics.load(tmp_path / "none.npz")
    np.savez(path, a=np.array([{}], dtype=object))
    with pytest.raises(FozoError, match="not a readable fozo file"):
        SourceStatistics.load(path)
    with pytest.raises(FozoError, match="cannot write"):
        source.save(tmp_path / "missing" / "stats.npz")


GOOD = {"kind": SourceStatistics.KIND, "version": SourceStatistics.VERSION, "fingerprint": "f", "model": "m"}
COUNTS = dict.fromkeys((*SourceStatistics.PARTS, "content"), 96)


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (GOOD, "damaged source statistics"),  # no counts
        (GOOD | {"counts": 5}, "damaged source statistics"),
        (GOOD | {"counts": dict.fromkeys(COUNTS, "many")}, "damaged source statistics"),
        (GOOD | {"counts": {"cls": 96}}, "damaged source statistics"),
        ({k: v for k, v in GOOD.items() if k != "fingerprint"} | {"counts": COUNTS}, "damaged source statistics"),
        ({k: v for k, v in GOOD.items() if k != "version"}, "version None"),
        (["source statistics"], "not a readable fozo file"),
        ({"kind": "state"}, "holds 'state' where 'source statistics' is needed"),
    ],
)
def test_a_damaged_header_is_one_clear_error(stored: Stored, header: object, sentence: str) -> None:
    refused(stored, header, stored[2], sentence)


def test_missing_and_foreign_arrays_are_one_clear_error(stored: Stored) -> None:
    _, header, arrays = stored
    lacking = {name: value for name, value in arrays.items() if name != "cls.mean"}
    for broken in (lacking, {**arrays, "cls.mean": np.array(["a"])}, {**arrays, "more": np.zeros(1)}):
        refused(stored, header, broken, "damaged source statistics|not a readable fozo file")


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e200, -1.0])
@pytest.mark.parametrize("name", ["cls.mean", "patch_mean.squares", "content.products", "content.directions"])
def test_numbers_that_no_images_give_are_refused(stored: Stored, name: str, number: float) -> None:
    path, header, arrays = stored
    arrays[name].flat[0] = number
    if number == -1 and name in ("cls.mean", "content.directions"):
        save_arrays(path, header, arrays)
        SourceStatistics.load(path)
    else:
        refused(stored, header, arrays, f"damaged source statistics.*{name}")


def test_widths_that_do_not_go_together_are_refused(engine: fozo.Engine, stored: Stored) -> None:
    path, header, arrays = stored
    for name in arrays:
        refused(stored, header, {**arrays, name: arrays[name][..., 1:]}, "damaged source statistics")
    # All of them narrower: whole in itself, but not this model's, whatever the fingerprint says.
    cut = {
        **arrays,
        "descriptor.mean": arrays["descriptor.mean"][1:],
        "descriptor.squares": arrays["descriptor.squares"][1:],
    }
    save_arrays(path, header, {**cut, "content.descriptor": arrays["content.descriptor"][:, 1:]})
    with pytest.raises(FozoError, match=r"image features.*collect them again"):
        fozo.create("align", engine, SourceStatistics.load(path))
    for count in (0, -5, 1.5, True, 10**20):
        refused(stored, header | {"counts": dict.fromkeys(COUNTS, count)}, arrays, "damaged source statistics")


def test_a_file_of_a_much_older_fozo_is_refused(
    tmp_path: Path, source: SourceStatistics, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version, inputs in ((4, None), (5, None), (6, source.inputs)):
        monkeypatch.setattr(SourceStatistics, "VERSION", version)
        replace(source, inputs=inputs).save(tmp_path / f"{version}.npz")
    monkeypatch.setattr(SourceStatistics, "VERSION", 6)
    with pytest.raises(FozoError, match=r"version 4, .*collect them again"):
        SourceStatistics.load(tmp_path / "4.npz")
    assert SourceStatistics.load(tmp_path / "5.npz").inputs is None  # the bundled ones are such
    assert SourceStatistics.load(tmp_path / "6.npz").inputs is not None


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
    for name in SourceStatistics.PARTS:
        layers = (LAYERS,) if name in ("cls", "features", "patch_mean", "patch_log_variance") else ()
        noise = rng.standard_normal((images, *layers, DIM))
        follows = law * shown[:, 0].reshape(-1, *[1] * (noise.ndim - 1))
        values[name] = noise + follows + (shift if layers else np.mean(shift))
    return values


def statistics_of(values: dict[str, Array], model: str = "camera") -> SourceStatistics:
    return invented_source(values["shown"], values, model)


MANY = statistics_of(camera(2000, seed=0))


def way(blended: SourceStatistics, own: SourceStatistics, name: str) -> Array:
    """Which part of the way to its own average each layer was moved."""
    first = getattr(MANY, name).mean
    step, whole = getattr(blended, name).mean - first, getattr(own, name).mean - first
    part: Array = (step * whole).sum(axis=-1) / (whole**2).sum(axis=-1)
    return part


def test_a_few_images_like_all_others_change_next_to_nothing() -> None:
    """Ten images differ from two thousand by chance, and chance is not learnt."""
    own = statistics_of(camera(10, seed=1))
    blended = MANY.blend(own)
    for name in SourceStatistics.PARTS:
        assert way(blended, own, name).max() < 0.3
        moved, apart = (
            np.square(getattr(each, name).mean - getattr(MANY, name).mean).mean() for each in (blended, own)
        )
        assert moved < 0.05 * apart


def test_many_images_of_another_kind_are_followed_all_the_way() -> None:
    own = statistics_of(camera(500, seed=1, shift=3.0))
    blended = MANY.blend(own)
    for name in SourceStatistics.PARTS:
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
    for name in SourceStatistics.CONDITIONED:
        expected = getattr(many, name).mean + 0.5 * shown
        np.testing.assert_allclose(getattr(blended, name).mean.mean(axis=-1), expected.mean(axis=-1), atol=0.15)
        # The images' own noise, of variance 1/3, is left out.
        assert np.square(getattr(blended, name).mean - expected).mean() < 0.05


def test_only_averages_are_blended() -> None:
    own = statistics_of(camera(50, seed=1, shift=1.0, content=2.0))
    blended = MANY.blend(own)
    for name in SourceStatistics.PARTS:
        assert getattr(blended, name).count == 2000
        np.testing.assert_array_equal(getattr(blended, name).std, getattr(MANY, name).std)
    assert blended.fingerprint == MANY.fingerprint and blended.model == MANY.model and blended.images == 2000
    np.testing.assert_array_equal(blended.content.mean, own.content.mean)
    with pytest.raises(FozoError, match=r"of other .*not of camera .*collect them again"):
        MANY.blend(statistics_of(camera(20, seed=1), model="other"))
    rest = [field.name for field in fields(MANY.content) if field.name != "mean"]
    assert rest and all(getattr(blended.content, name) is getattr(MANY.content, name) for name in rest)  # W stays
    for name, weights in MANY.regression().weights.items():
        np.testing.assert_array_equal(blended.regression().weights[name], weights)


def test_blended_statistics_serve_their_model(engine: fozo.Engine, source: SourceStatistics) -> None:
    blended = source.blend(fozo.calibrate(engine, [0.5 * random_images(20) + 0.5]))
    clean = 0.5 * random_images(20, seed=1) + 0.5
    shifts = []
    for each in (source, blended):
        method = fozo.Align(engine, each)
        method(clean)
        shifts.append(method.metrics()["shift"])
    assert shifts[0] > 20 and shifts[1] < 0.2 * shifts[0]  # for this camera, these images are the clean ones
