"""The demo and the files that it runs on."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fozo
from fozo.bench import demo
from fozo.bench.environment import environment
from fozo.bench.measures import Interval, measure, score
from fozo.bench.store import Conditions, Group, Run
from fozo.cli import app
from fozo.data import sample
from fozo.data.sets import open_images
from fozo.errors import FozoError


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """What a small demo prints, and the page that it writes."""
    page = tmp_path_factory.mktemp("demo") / "page.html"
    result = CliRunner().invoke(app, ["demo", "--images", "8", "-o", str(page)])
    assert result.exit_code == 0, result.output
    assert [file.name for file in page.parent.iterdir()] == ["page.html"]
    return result.output, page.read_text()


def test_every_row_is_printed_for_both_engines(printed: tuple[str, str]) -> None:
    lines = printed[0].splitlines()
    for engine in sample.MODELS:
        rows = [line for line in lines if line.strip().startswith(f"{engine} ") and ":" not in line]
        assert len(rows) == len(demo.METHODS)
        for label, row in zip(demo.METHODS, rows, strict=True):
            assert label in row
            # passes, the domains, their mean, images/s, MiB
            numbers = re.findall(r"[\d.]+", row.split(label)[1])
            assert len(numbers) == 1 + len(demo.STREAM.kinds) + 3
            accuracies = [float(number) for number in numbers[1:-3]]
            assert float(numbers[-3]) == pytest.approx(np.mean(accuracies), abs=0.06)
    assert len({len(line.rstrip()) for line in lines[1 : 2 + 2 * len(demo.METHODS)]}) == 1  # aligned


def test_the_page_stands_alone_and_repeats_the_verdict(printed: tuple[str, str]) -> None:
    out, page = printed
    assert "best on average is" in out and "best on average is" in page
    assert page.count("<svg") >= 6
    assert not re.search(r"(src|href)=\"(?!#)", page)
    assert "4096 images of the training set" in page


def invented(label: str, average: float, seconds: float) -> Run:
    measures = measure([score(np.eye(10), np.arange(10))])
    within = Interval(average - 2, average + 2)
    measures = replace(measures, average=average, average_interval=within, images=100)
    experiment = next(row for row in demo.recipe(8).rows if row.label == label)
    conditions = Conditions("", "", None, 0, environment(1, "cpu"), seconds, 0, "", "")
    return Run(experiment, measures, conditions, Path())


def test_the_verdict_follows_the_numbers() -> None:
    recipe = demo.recipe(8)

    def groups(**averages: float) -> dict[str, Group]:
        return {
            engine: Group(
                recipe,
                "",
                tuple(invented(label, value, 1.0 if engine == "float32" else 0.5) for label, value in averages.items()),
            )
            for engine in sample.MODELS
        }

    text = " ".join(demo.verdict(groups(NoAdapt=60, LAME=50, T3A=70)).values())
    assert "best on average is T3A with 70.0 %" in text
    assert "10.0 points ahead of NoAdapt." in text
    assert "LAME -10.0, T3A +10.0" in text
    assert "2.00x as fast" in text
    text = " ".join(demo.verdict(groups(NoAdapt=60, LAME=59.0)).values())
    assert "best on average is NoAdapt with 60.0 %" in text
    assert "1.0 points ahead of LAME, less than the margin of error." in text


def test_a_bad_size_is_refused(tmp_path: Path) -> None:
    for images in (0, 2001):
        with pytest.raises(FozoError, match=str(images)):
            demo.run_demo(tmp_path / "page.html", images=images)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", sample.MODELS)
def test_the_sample_is_what_it_says(kind: str) -> None:
    images = open_images(sample.IMAGES)
    engine = fozo.load_engine(sample.MODELS[kind])
    assert len(images) == 2000 and np.bincount(images.labels).tolist() == [200] * 10
    assert engine.spec.labels == images.classes and images.classes[9] == "Ankle boot"
    assert sample.source(sample.MODELS[kind]).fingerprint == engine.spec.fingerprint
    assert engine.spec.fingerprint.endswith("-int8d") == (kind == "INT8")
    pixels = np.stack([images.read(i)[..., :1] for i in range(0, 2000, 4)])
    right = fozo.NoAdapt(engine)(engine.spec.normalise(pixels)).argmax(axis=1) == images.labels[::4]
    assert right.mean() > 0.8  # 86 % of the whole test set; 500 images have a standard error of 1.6 points
