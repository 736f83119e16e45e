"""The demo and the files that it runs on."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import fozo
from fozo.bench.environment import environment
from fozo.bench.measures import Interval, measure, score
from fozo.bench.plan import Setting
from fozo.bench.store import Conditions, Group, Run
from fozo.cli import app
from fozo.cli import demo_run as demo
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
    lines = printed[0][printed[0].index("Top-1 accuracy") :].splitlines()
    for engine in sample.MODELS:
        rows = [line for line in lines if line.strip().startswith(f"{engine} ") and ":" not in line]
        assert len(rows) == len(demo.METHODS)
        for label, row in zip(demo.METHODS, rows, strict=True):
            assert label in row
            # the domains, their mean, passes, images/s, MiB
            numbers = re.findall(r"[\d.]+", row.split(label)[1])
            assert len(numbers) == len(demo.STREAM.kinds) + 1 + 3
            accuracies = [float(number) for number in numbers[:-4]]
            assert float(numbers[-4]) == pytest.approx(np.mean(accuracies), abs=0.06)
    assert len({len(line.rstrip()) for line in lines[1 : 2 + 2 * len(demo.METHODS)]}) == 1  # aligned


def test_the_table_fits_a_terminal_of_80_characters(tmp_path: Path) -> None:
    experiments = demo.recipe(8).experiments(Setting("fashion-float32.onnx"))
    domains = {domain: 88.8 for segment in experiments[0].stream.order.segments() for domain in [segment.name]}
    within = Interval(80.0, 90.0)
    measures = measure([score(np.eye(10), np.arange(10), domain=domain) for domain in domains])
    measures = replace(measures, domains=domains, domain_intervals=dict.fromkeys(domains, within))
    conditions = Conditions("", "", None, 0, environment(1, "cpu"), 1.0, 0, "", "")
    runs = tuple(Run(each, measures, conditions, tmp_path) for each in experiments)
    groups = {engine: Group(demo.recipe(8), "", runs[:1]) for engine in sample.MODELS}
    stream = io.StringIO()
    demo.print_table(groups, Console(file=stream, force_terminal=True, width=80, height=24, no_color=True))
    row = next(line for line in stream.getvalue().splitlines() if "float32" in line)
    assert row.count("88.8") == len(domains) and "…" not in stream.getvalue()


def test_the_page_stands_alone_and_repeats_the_verdict(printed: tuple[str, str]) -> None:
    out, page = printed
    said = [line for line in out.splitlines() if "Points against NoAdapt" in line]
    assert len(said) == len(sample.MODELS)
    for line, engine in zip(said, sample.MODELS, strict=True):
        assert line.startswith(f"{engine}: ") and escape(line.removeprefix(f"{engine}: ")) in page
    assert page.count("<svg") >= 5 and "data:image/png;base64," in page
    assert "While the camera was bad" in out and "While the camera was bad" in page
    assert not re.search(r"(src|href)=\"(?!#|data:image/png)", page)
    assert "4096 images of the training set" in page and "x as fast on this processor" in out


def test_the_film_comes_before_the_table(printed: tuple[str, str]) -> None:
    out = printed[0]
    order = ("A camera goes bad", "the monitor: drift", "Scene by scene", "Top-1 accuracy", "Points against NoAdapt")
    places = [out.index(text) for text in order]
    assert places == sorted(places)


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
