"""Settings, by file and command: what is said is done, and what nobody knows is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fozo
from fozo.data import sample
from fozo.serve.app import Server
from fozo.serve.config import ModelConfig, ServeConfig, read_config
from fozo.serve.metrics import OTHER, Metrics
from fozo.testing import same
from tests.serve.conftest import MODEL, STATS, config, foggy, frames

TOML = """
port = 0
state = "cameras"
anonymous = "stateless"
max_delay = 0

[models.plain]
model = "MODEL"
stats = "STATS"
threads = 1
labels = "labels.txt"
options = { "retrieval.capacity" = 64 }

[models.other]
model = "MODEL"
method = "noadapt"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "serve.toml"
    path.write_text(text.replace("MODEL", str(MODEL)).replace("STATS", str(STATS)))
    (folder / "labels.txt").write_text("\n".join("abcdefghij"))
    return path


def test_a_file_says_it_all(tmp_path: Path) -> None:
    found = read_config(write(tmp_path, TOML))
    assert (found.port, found.state, found.anonymous) == (0, str(tmp_path / "cameras"), "stateless")
    plain, other = found.models
    assert plain.options == {"retrieval.capacity": 64} and plain.load.threads == 1
    assert plain.load.labels == tuple("abcdefghij") and other.method == "noadapt"
    server = Server(found)
    try:
        assert list(server.models) == ["plain", "other"] and server.models["plain"].spec.label(0) == "a"
        assert server.models["plain"].method == "align" and server.models["other"].method == "noadapt"
    finally:
        server.stop()


WRONG = {
    "an unknown setting": ("ports = 1\n" + TOML, "'ports', which is no setting"),
    "an unknown setting of a model": (TOML + "stat = 'x'\n", "'stat', which is no setting"),
    "a token in the file": ("token = 'x'\n" + TOML, "token_file"),
    "no models": ("port = 1\n", "models.NAME"),
    "a model that is no table": ("models = 1\n", "models.NAME"),
    "a text as a number": (TOML.replace("port = 0", "port = '0'"), "port"),
    "a port that is none": (TOML.replace("port = 0", "port = 70000"), "65535"),
    "no workers": ("workers = 0\n" + TOML, "workers is 0"),
    "another word": (TOML.replace("stateless", "none"), "shared or stateless"),
    "no TOML": ("[", "not readable TOML"),
    "a model without a file": ("[models.x]\nstats = 'y'\n", "name of a file"),
    "half of TLS": ("key = 'x'\n" + TOML, "TLS"),
    "a slash in a name": ('[models."a/b"]\nmodel = "MODEL"\n', "without a slash"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_a_file_is_told(tmp_path: Path, what: str) -> None:
    text, words = WRONG[what]
    with pytest.raises(fozo.FozoError) as told:
        read_config(write(tmp_path, text))
    assert words in str(told.value) and "\n" not in str(told.value)


def test_a_model_that_cannot_be_served(tmp_path: Path, reference: Path) -> None:
    load = fozo.LoadOptions(threads=1)
    other = sample.MODELS["INT8"]
    for given, words in (
        (ModelConfig("a", str(MODEL), load=load), "no stats"),
        (ModelConfig("a", str(MODEL), str(tmp_path / "none.npz"), load=load), "no file"),
        (ModelConfig("a", str(other), str(STATS), load=load), "fashion"),
        (ModelConfig("a", str(other), str(other.with_suffix(".statistics.npz")), str(reference), load=load), "fashion"),
        (ModelConfig("a", str(MODEL), str(STATS), options={"nothing": 1}, load=load), "nothing"),
    ):
        with pytest.raises(fozo.FozoError, match=words):
            Server(ServeConfig((given,), state=str(tmp_path / "state")))
    Server(config(tmp_path / "state")).stop()  # and nobody holds its lock


def test_siblings_share_what_is_derived_and_nothing_else() -> None:
    """They are as clones: each adapts by itself; what is large and constant is in memory once."""
    first = fozo.Align(fozo.load_engine(MODEL, threads=1), fozo.SourceStatistics.load(STATS))
    one, other, clone = first.sibling(), first.sibling(), first.clone()
    assert one.targets.weights is other.targets.weights and one.targets is not other.targets
    for part in np.split(foggy(frames(24)), 3):
        np.testing.assert_array_equal(one(part), clone(part))
        one.release()
        assert one.last_input is None
        other(frames(8))
    assert same(one.state(), clone.state()) and not same(other.state(), clone.state())
    assert same(first.state(), one.sibling().state())


def test_only_so_many_cameras_have_labels() -> None:
    class Adapter:
        def metrics(self) -> dict[str, float]:
            return {"fallbacks": 1.0}

    class Camera:
        monitor, events, memories, passing, adapter = None, (), 5, False, Adapter()
        passes_per_image = 2.0

        def __init__(self, name: str) -> None:
            self.name = name

    metrics = Metrics(most=2)
    for name in ("a", "b", "c", "d", "a", 'e"\n'):
        camera: Any = Camera(name)
        metrics.record("m", camera, 3)
    text = metrics.text().decode()
    assert 'fozo_images_total{model="m",stream="a"} 6.0' in text
    assert f'fozo_images_total{{model="m",stream="{OTHER}"}} 9.0' in text and 'stream="c"' not in text
    assert 'fozo_passes_total{model="m"} 36.0' in text and f'fozo_memories{{model="m",stream="{OTHER}"}}' not in text
    assert 'fozo_rollbacks_total{model="m",reason="fallback",stream="b"} 1.0' in text
    metrics.forget("m", "a")
    assert 'fozo_memories{model="m",stream="a"}' not in metrics.text().decode()
    assert 'fozo_images_total{model="m",stream="a"} 6.0' in metrics.text().decode()
