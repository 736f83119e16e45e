"""The settings of a server: from the command line, a TOML file, or Python.

    port = 8000
    state = "cameras"

    [models.fashion]
    model = "fashion.onnx"
    statistics = "fashion.statistics.safetensors"
    reference = "fashion.reference.safetensors"
    options = { slots = 2 }

Paths in a file are relative to its folder.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fozo.engines.load import LoadOptions
from fozo.errors import FozoError
from fozo.io import as_dataclass, read_text, read_toml
from fozo.types import Value

LOG = logging.getLogger("fozo.serve")


@dataclass(frozen=True)
class ModelConfig:
    """One model."""

    name: str
    """What clients call it."""
    model: str
    """What :func:`fozo.load_engine` takes."""
    statistics: str | None = None
    """What ``fozo calibrate`` wrote."""
    reference: str | None = None
    """What ``fozo calibrate --reference`` wrote; without it there is no monitor."""
    method: str | None = None
    """One of :func:`fozo.list_methods`; by default the recommended one."""
    options: Mapping[str, Value] = field(default_factory=dict)
    """Options of the method."""
    shadow: float = 0.02
    """Fraction of the images that the plain model predicts too, where there is a monitor."""
    learn: float = 0.0
    """Seconds from a camera's first image that are known to be clean, in which it learns its scenes."""
    new_view: float = 3600.0
    """Seconds after which the scene of a camera that was moved counts as clean by itself."""
    guard: bool = False
    """Whether the plain model predicts while the monitor says that adaptation hurts."""
    merge: bool | None = None
    """Whether cameras share passes; by default where this changes no answer."""
    load: LoadOptions = field(default_factory=LoadOptions)
    """How the model is loaded."""

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > 100 or "/" in self.name:
            raise FozoError(f"a model cannot be called {self.name[:100]!r}; give a short name without a slash")


BOUNDS: dict[str, tuple[float, float]] = {
    "workers": (1, 1024), "idle": (0.01, 1e9), "timeout": (0.01, 1e9), "forget_after": (0.001, 1e6),
    "max_delay": (0, 1), "max_labels": (0, 100_000), "port": (0, 65_535), "max_connections": (1, 65_536),
    **dict.fromkeys(("save_every", "max_cameras", "max_known", "max_queue", "max_camera_queue"), (1, 10**9)),
    **dict.fromkeys(("max_images", "max_batch", "max_body", "max_json", "max_pixels"), (1, 1 << 40)),
}  # fmt: skip
"""The range of each setting that is a number."""


@dataclass(frozen=True)
class ServeConfig:
    """A server."""

    models: tuple[ModelConfig, ...]
    """The models, each with its own name."""
    state: str | None = None
    """Folder where cameras are kept; without one they are lost with the process."""
    shared: bool = False
    """Whether other servers keep cameras in the same folder: each camera is then locked by itself."""
    misfits: str = "refuse"
    """What to do where most saved states cannot be continued: ``refuse`` to start, ``adopt`` or ``set-aside``."""
    forget_after: float | None = None
    """Days after which a camera that was not saved is removed; by default none is."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port to listen on; 0 for any that is free."""
    workers: int = 8
    """Requests that are worked on at a time."""
    anonymous: str = "shared"
    """Requests without a ``sequence_id``: one ``shared`` memory, or none: ``stateless``."""
    save_every: int = 100
    """Images of a camera after which it is saved."""
    idle: float = 300.0
    """Seconds without a request after which a camera is saved and leaves the memory."""
    max_cameras: int = 256
    """Cameras in memory, of all models; beyond, the one that was idle for longest leaves it."""
    max_known: int = 10_000
    """Cameras of a model that are kept on disk; beyond, new ones are refused."""
    max_queue: int = 256
    """Requests that wait, of all cameras; one client may fill as much as it leaves free."""
    max_camera_queue: int = 16
    """Requests of one camera that wait."""
    timeout: float = 30.0
    """Seconds after which a request is given up."""
    max_connections: int = 512
    """Connections beyond which requests get 503."""
    max_images: int = 64
    """Images in a request."""
    max_body: int = 64 << 20
    """Bytes of a request; three times as many of all requests are in memory at most."""
    max_json: int = 4 << 20
    """Bytes of a request's JSON: in memory it takes up to 20 times as many."""
    max_pixels: int = 1 << 25
    """Pixels of an image, before or after it is resized; two large ones are worked on at a time."""
    max_delay: float = 0.002
    """Seconds that a pass waits for images of other cameras."""
    max_batch: int = 32
    """Images in a pass, beyond which none are added."""
    max_labels: int = 100
    """Cameras with their own metrics; the rest are called ``other``."""
    thumbnails: bool = False
    """Whether the page shows the latest frame of each camera, which may show people."""
    token: str | None = None
    """What clients have to send as a bearer token."""
    allowed_hosts: tuple[str, ...] = ()
    """Names to answer to beside ``host``, ``localhost`` and addresses; ``*`` for any."""
    proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies in front, which name the client; by default those of this machine."""
    certificate: str | None = None
    """File of the TLS certificate."""
    key: str | None = None
    """File of the certificate's key."""
    webhooks: tuple[str, ...] = ()
    """Addresses that every event is sent to, as JSON."""
    secret: str | None = None
    """What the webhooks' notices are signed with."""
    mqtt: str | None = None
    """Address of the MQTT broker that every event is published at."""

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        if not names or len(set(names)) < len(names):
            raise FozoError(f"the models are {', '.join(names) or 'none'}; give at least one, each with its own name")
        if self.anonymous not in ("shared", "stateless"):
            raise FozoError(f"anonymous is {self.anonymous!r}; give shared or stateless")
        if self.misfits not in ("refuse", "adopt", "set-aside"):
            raise FozoError(f"misfits is {self.misfits!r}; give refuse, adopt or set-aside")
        for name, (low, high) in BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise FozoError(f"{name} is {value}; give a number from {low} to {high}")
        if self.token is not None and not self.token.strip():
            raise FozoError("the token is empty; write one into its file")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise FozoError("the token has characters that a header cannot hold; use printable ASCII only")
        if (self.certificate is None) != (self.key is None):
            raise FozoError("TLS needs a certificate and its key; give both")


FILES = ("state", "certificate", "key", "statistics", "reference", "model")  # settings that name a file


def read_config(path: Path) -> ServeConfig:
    settings = read_toml(path)
    secrets = dict[str, str]()
    for name in ("token", "secret"):
        if name in settings:
            raise FozoError(f"{path} holds a {name}, which others may read there; name its own file as {name}_file")
        file = settings.pop(f"{name}_file", None)
        if file is not None:
            secrets[name] = read_secret(_relative(path, file))
    models = settings.pop("models", None)
    if not isinstance(models, dict) or not all(isinstance(table, dict) for table in models.values()):
        raise FozoError(f"{path} should have a table [models.NAME] for each model")
    read = tuple(_read_model(path, name, table) for name, table in models.items())
    settings = _with_paths(path, settings)
    return as_dataclass(ServeConfig, settings, str(path), advice="correct it", models=read, **secrets)


def read_secret(path: str) -> str:
    text = read_text(path)
    if Path(path).stat().st_mode & 0o077:
        LOG.warning("other users can read the secret in %s; chmod 600 it", path)
    return text.strip()


def _read_model(path: Path, name: str, table: Mapping[str, Any]) -> ModelConfig:
    what = f"the model {name} of {path}"
    loading = [option.name for option in fields(LoadOptions)]
    load = {key: value for key, value in table.items() if key in loading}
    labels = load.pop("labels", None)
    if labels is not None:
        labels = tuple(read_text(_relative(path, labels)).splitlines())
    options = as_dataclass(LoadOptions, load, what, advice="correct it", labels=labels)
    settings = _with_paths(path, {key: value for key, value in table.items() if key not in loading})
    return as_dataclass(ModelConfig, settings, what, advice="correct it", name=name, load=options)


def _with_paths(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _relative(path, value) if key in FILES else value for key, value in settings.items()}


def _relative(path: Path, name: object) -> str:
    if not isinstance(name, str):
        raise FozoError(f"{path} has {name!r} where the name of a file is needed")
    return name if name.startswith("timm:") else str(path.parent / name)
