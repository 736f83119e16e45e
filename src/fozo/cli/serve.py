"""``fozo serve``: the model server."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fozo.cli.options import STATISTICS, Guard, Mqtt, SecretFile, Webhook, read_options
from fozo.engines.load import LoadOptions
from fozo.errors import FozoError


def serve(
    load: LoadOptions,
    model: Annotated[str | None, typer.Argument(help="As elsewhere; or give --config.", show_default=False)] = None,
    statistics: Annotated[Path | None, STATISTICS] = None,
    reference: Annotated[
        Path | None, "What fozo calibrate --reference wrote: reports drift, expected accuracy."
    ] = None,
    name: Annotated[str | None, "What clients call the model; by default its file's name."] = None,
    config: Annotated[Path | None, "TOML file with models and settings: docs/serving.md."] = None,
    state: Annotated[Path | None, "Folder to keep cameras in."] = None,
    adopt: Annotated[
        bool, "Start on states of which most cannot be continued: those begin again when they return."
    ] = False,
    set_aside: Annotated[bool, "The same, but all of those are moved aside now."] = False,
    forget_after: Annotated[float | None, "Days after which a camera that does not return is removed."] = None,
    host: Annotated[str | None, "Address to listen on; 127.0.0.1 by default: this machine only."] = None,
    port: Annotated[int | None, "8000 by default; 0 for any that is free."] = None,
    workers: Annotated[int | None, "Requests that are worked on at a time."] = None,
    anonymous: Annotated[str | None, "Requests without a sequence_id: one shared memory, or stateless."] = None,
    save_every: Annotated[int | None, "Images of a camera after which it is saved."] = None,
    idle: Annotated[float | None, "Seconds after which an idle camera leaves the memory."] = None,
    method: Annotated[str | None, "Of fozo methods; by default the recommended one."] = None,
    option: Annotated[list[str] | None, "Of the method: NAME=VALUE; may be given often."] = None,
    guard: Guard = False,
    thumbnails: Annotated[bool, "Show the latest frames on the page: they may show people."] = False,
    token_file: Annotated[Path | None, "File with the token that clients have to show."] = None,
    allowed_host: Annotated[list[str] | None, "Name that clients use for the server; may be given often."] = None,
    proxy: Annotated[list[str] | None, "Address of a proxy in front; may be given often."] = None,
    webhook: Webhook = None,
    mqtt: Mqtt = None,
    secret_file: SecretFile = None,
    ssl_certfile: Annotated[Path | None, "TLS certificate."] = None,
    ssl_keyfile: Annotated[Path | None, "Its key."] = None,
) -> None:
    """Serve a model to many cameras, with one memory for each: Open Inference Protocol v2; a page shows them."""
    try:
        from fozo.serve.board import CameraBoard
        from fozo.serve.config import ModelConfig, ServeConfig, read_config, read_secret
        from fozo.serve.run import serve as run
    except ImportError as error:
        raise FozoError(f"the server needs {error.name}; install it with pip install 'fozo[serve]'") from error
    if (model is None) == (config is None):
        raise FozoError("give a model, or a file of settings as --config, and not both")
    of_server: dict[str, object] = {
        "state": _text(state), "certificate": _text(ssl_certfile), "key": _text(ssl_keyfile), "host": host,
        "port": port, "workers": workers, "save_every": save_every, "idle": idle, "anonymous": anonymous,
        "thumbnails": thumbnails or None, "allowed_hosts": tuple(allowed_host or ()), "proxies": tuple(proxy or ()),
        "misfits": "set-aside" if set_aside else "adopt" if adopt else None, "forget_after": forget_after,
        "token": None if token_file is None else read_secret(str(token_file)), "webhooks": tuple(webhook or ()),
        "secret": None if secret_file is None else read_secret(str(secret_file)), "mqtt": mqtt,
    }  # fmt: skip
    given: dict[str, Any] = {key: value for key, value in of_server.items() if value not in (None, ())}
    if config is not None:
        of_model = {
            "statistics": statistics,
            "reference": reference,
            "name": name,
            "method": method,
            "option": option or None,
        }
        for key, value in {**of_model, "guard": guard or None, **vars(load)}.items():
            if value is not None:
                raise FozoError(f"--{key.replace('_', '-')} is a model's; write it into {config}")
        settings = replace(read_config(config), **given)
    else:
        assert model is not None
        name = name or Path(model.removeprefix("timm:")).stem
        options = read_options(option or [])
        made = ModelConfig(name, model, _text(statistics), _text(reference), method, options, guard=guard, load=load)
        settings = ServeConfig((made,), **given)
    run(settings, CameraBoard())


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
