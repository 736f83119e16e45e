"""The Grafana dashboard asks for what ``/metrics`` prints: names, labels, and nothing else."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers import REPO
from tests.serve.conftest import config, foggy, frames, running
from tests.serve.test_server import ask

BOARD = json.loads((REPO / "deploy" / "grafana.json").read_text(encoding="utf-8"))
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]] + [
    variable["query"]["query"] for variable in BOARD["templating"]["list"] if variable["type"] == "query"
]


@pytest.fixture(scope="module")
def printed(reference: Path) -> Any:
    """The text of ``/metrics`` after a camera in fog has been seen."""
    with running(config(reference=reference)) as (url, _):
        ask(url, foggy(frames(16, 40)), sequence_id="fog")
        yield httpx.get(f"http://{url}/metrics").text


def test_every_metric_is_printed_and_every_one_that_is_printed_is_on_the_board(printed: str) -> None:
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", printed, flags=re.MULTILINE))
    known = {f"{name}_bucket" if kind == "histogram" else name for name, kind in kinds.items()}
    asked = {name for query in QUERIES for name in re.findall(r"fozo_\w+", query)}
    assert asked <= known, sorted(asked - known)
    created = {name for name in known if name.endswith("_created")}
    assert known - created == asked


def test_labels_are_those_of_the_metrics(printed: str) -> None:
    labels: dict[str, set[str]] = {}
    for name, text in re.findall(r"^(fozo_\w+)\{(.*)\} ", printed, flags=re.MULTILINE):
        labels[name] = set(re.findall(r'(\w+)="', text))
    assert {"fozo_drift_ratio", "fozo_image_quality", "fozo_request_seconds_bucket"} <= labels.keys()
    for query in QUERIES:
        for name, text in re.findall(r"(fozo_\w+)\{(.*?)\}", query):
            asked = set(re.findall(r"(\w+)[=!]~?\"", text))
            assert asked <= labels.get(name, asked), query


def test_the_board_is_complete() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24 and panel["title"] and panel["targets"]
        assert panel["datasource"]["uid"] == "${datasource}"
