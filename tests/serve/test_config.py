"""Settings, by file and command: settings take effect, and unknown ones are refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fozo
from fozo.data import sample
from fozo.serve.app import InferenceServer
from fozo.serve.config import ModelConfig, ServeConfig, read_config, read_secret
from fozo.serve.metrics import OTHER, Metrics
from tests.serve.conftest import MODEL, STATS, config

TOML = """
port = 0
state = "cameras"
anonymous = "stateless"
max_delay = 0

[models.plain]
model = "MODEL"
statistics = "STATS"
threads = 1
labels = "labels.txt"
merge = true
options = { slots = 2 }

[models.other]
model = "MODEL"
method = "noadapt"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "serve.toml"
    path.write_text(text.replace("MODEL", str(MODEL)).replace("STATS", str(STATS)))
    (folder / "secret").write_text("geheimnißvoll", encoding="utf-8")
    (folder / "labels.txt").write_text("\n".join("abcdefghij"))
    return path


def test_a_file_says_it_all(tmp_path: Path) -> None:
    found = read_config(write(tmp_path, TOML))
    assert (found.port, found.state, found.anonymous) == (0, str(tmp_path / "cameras"), "stateless")
    plain, other = found.models
    assert plain.options == {"slots": 2} and plain.load.threads == 1
    assert plain.load.labels == tuple("abcdefghij") and other.method == "noadapt"
    assert (plain.merge, other.merge) == (True, None)
    server = InferenceServer(found)
    try:
        assert list(server.models) == ["plain", "other"] and server.models["plain"].spec.label(0) == "a"
        assert server.models["plain"].method == "align" and server.models["other"].method == "noadapt"
    finally:
        server.stop()


WRONG = {
    "an unknown setting": ("ports = 1\n" + TOML, "no setting 'ports'"),
    "an unknown setting of a model": (TOML + "stat = 'x'\n", "no setting 'stat'"),
    "a token in the file": ("token = 'x'\n" + TOML, "token_file"),
    "no models": ("port = 1\n", "models.NAME"),
    "a model that is not a table": ("models = 1\n", "models.NAME"),
    "a text as a number": (TOML.replace("port = 0", "port = '0'"), "port"),
    "a port that is none": (TOML.replace("port = 0", "port = 70000"), "65535"),
    "no workers": ("workers = 0\n" + TOML, "workers is 0"),
    "workers without end": ("workers = 100000000\n" + TOML, "from 1 to 1024"),
    "labels below none": ("max_labels = -5\n" + TOML, "max_labels is -5"),
    "no time to be idle": ("idle = 1e-9\n" + TOML, "idle is 1e-09"),
    "a token that no header holds": ("token_file = 'secret'\n" + TOML, "printable ASCII"),
    "another word": (TOML.replace("stateless", "none"), "shared or stateless"),
    "no TOML": ("[", "not readable TOML"),
    "a model without a file": ("[models.x]\nstatistics = 'y'\n", "lacks 'model'"),
    "a number as a file": (TOML.replace('"cameras"', "3"), "name of a file"),
    "half of TLS": ("key = 'x'\n" + TOML, "TLS"),
    "a slash in a name": ('[models."a/b"]\nmodel = "MODEL"\n', "without a slash"),
}


@pytest.mark.parametrize("what", WRONG)
def test_errors_in_a_file_are_sentences(tmp_path: Path, what: str) -> None:
    text, words = WRONG[what]
    with pytest.raises(fozo.FozoError) as caught:
        read_config(write(tmp_path, text))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_model_that_cannot_be_served(tmp_path: Path, reference: Path) -> None:
    load = fozo.LoadOptions(threads=1)
    other = sample.MODELS["INT8"]
    for given, words in (
        (ModelConfig("a", str(MODEL), load=load), "no statistics"),
        (ModelConfig("a", str(MODEL), str(tmp_path / "none.safetensors"), load=load), "no file"),
        (ModelConfig("a", str(other), str(STATS), load=load), "fashion"),
        (
            ModelConfig("a", str(other), str(other.with_suffix(".statistics.safetensors")), str(reference), load=load),
            "fashion",
        ),
        (ModelConfig("a", str(MODEL), str(STATS), options={"nothing": 1}, load=load), "nothing"),
    ):
        with pytest.raises(fozo.FozoError, match=words):
            InferenceServer(ServeConfig((given,), state=str(tmp_path / "state")))
    InferenceServer(config(tmp_path / "state")).stop()  # and its lock is free


def test_the_number_of_labels_is_limited() -> None:
    """A camera that comes when the names are used up has gauges once one that has them leaves."""
    adapter = SimpleNamespace(metrics=lambda: {"fallbacks": 1.0, "effective_sample_size": 5.0})
    camera: Any = SimpleNamespace(monitor=None, events=(), stateless=False, adapter=adapter, passes_per_image=2.0)
    metrics = Metrics(max_labels=2)
    for camera.name in ("a", "b", "c", "d", "a", 'e"\n'):
        metrics.record("m", camera, 3)
    text = metrics.text().decode()
    assert 'fozo_images_total{model="m",stream="a"} 6.0' in text
    assert f'fozo_images_total{{model="m",stream="{OTHER}"}} 9.0' in text and 'stream="c"' not in text
    assert 'fozo_passes_total{model="m"} 36.0' in text and f'fozo_memories{{model="m",stream="{OTHER}"}}' not in text
    assert 'fozo_rollbacks_total{model="m",reason="fallback",stream="b"} 1.0' in text
    assert "fozo_streams_without_gauges 3.0" in text
    metrics.forget("m", "a")
    for camera.name in ("c", "d", 'e"\n'):
        metrics.record("m", camera, 1)
        metrics.forget("m", camera.name)
    camera.name = "gate"
    metrics.record("m", camera, 1)
    text = metrics.text().decode()
    assert 'fozo_memories{model="m",stream="a"}' not in text and 'fozo_images_total{model="m",stream="a"} 6.0' in text
    assert 'fozo_memories{model="m",stream="gate"} 5.0' in text and "fozo_streams_without_gauges 0.0" in text
    assert f'fozo_images_total{{model="m",stream="{OTHER}"}} 13.0' in text


def test_a_token_that_others_can_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "token"
    path.write_text("secret\n")
    for mode, warnings in ((0o600, 0), (0o644, 1)):
        path.chmod(mode)
        assert read_secret(str(path)) == "secret"
        assert len(caplog.records) == warnings
