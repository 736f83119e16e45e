"""``fozo serve``: the model server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fozo.cli.options import read_options
from fozo.engines.load import LoadOptions
from fozo.errors import FozoError


def serve(
    load: LoadOptions,
    model: Annotated[
        str | None, typer.Argument(help="As for other commands; or give --config.", show_default=False)
    ] = None,
    stats: Annotated[Path | None, typer.Option(help="What fozo calibrate wrote.")] = None,
    reference: Annotated[
        Path | None, typer.Option(help="What fozo calibrate --monitor wrote: reports drift and expected accuracy.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What clients call the model; by default its file's name.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with models and settings: docs/serving.md.")] = None,
    state: Annotated[Path | None, typer.Option(help="Folder to keep cameras in.")] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; 127.0.0.1 by default: this machine only.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="8000 by default; 0 for any that is free.")] = None,
    workers: Annotated[int | None, typer.Option(help="Requests that are worked on at a time.")] = None,
    anonymous: Annotated[
        str | None, typer.Option(help="Requests without a sequence_id: one shared memory, or stateless.")
    ] = None,
    save_every: Annotated[int | None, typer.Option(help="Images of a camera after which it is saved.")] = None,
    idle: Annotated[float | None, typer.Option(help="Seconds after which an idle camera leaves the memory.")] = None,
    method: Annotated[str | None, typer.Option(help="Of fozo methods; by default the recommended one.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="Of the method: NAME=VALUE; may be given often.")] = None,
    guard: Annotated[bool, typer.Option(help="Use the plain model while adaptation hurts.")] = False,
    thumbnails: Annotated[bool, typer.Option(help="Show the latest frames on the page: they may show people.")] = False,
    token_file: Annotated[Path | None, typer.Option(help="File with the token that clients have to show.")] = None,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="Name that clients use for the server; may be given often.")
    ] = None,
    ssl_certfile: Annotated[Path | None, typer.Option(help="TLS certificate.")] = None,
    ssl_keyfile: Annotated[Path | None, typer.Option(help="Its key.")] = None,
) -> None:
    """Serve a model to many cameras, with one memory for each: Open Inference Protocol v2; a page shows them."""
    try:
        from fozo.serve.board import CameraBoard
        from fozo.serve.config import ModelConfig, ServeConfig, read_config, read_token
        from fozo.serve.run import serve as run
    except ImportError as error:
        raise FozoError(f"the server needs {error.name}; install it with pip install 'fozo[serve]'") from error
    if (model is None) == (config is None):
        raise FozoError("give a model, or a file of settings as --config, and not both")
    paths = {"state": state, "certificate": ssl_certfile, "key": ssl_keyfile}
    given: dict[str, object] = {key: str(path) for key, path in paths.items() if path is not None}
    numbers = {"host": host, "port": port, "workers": workers, "save_every": save_every, "idle": idle}
    given |= {key: value for key, value in {**numbers, "anonymous": anonymous}.items() if value is not None}
    given |= {"thumbnails": True} if thumbnails else {}
    given |= {"allowed_hosts": tuple(allowed_host)} if allowed_host else {}
    given |= {} if token_file is None else {"token": read_token(str(token_file))}
    if config is not None:
        for key, value in (("stats", stats), ("reference", reference), ("name", name), ("method", method)):
            if value is not None:
                raise FozoError(f"--{key} is a model's; write it into {config}")
        if option or guard or load != LoadOptions():
            raise FozoError(f"options of a model are to be written into {config}")
        run(replace(read_config(config), **given), CameraBoard())  # type: ignore[arg-type]
        return
    assert model is not None
    made = ModelConfig(
        name or Path(model.removeprefix("timm:")).stem,
        model,
        None if stats is None else str(stats),
        None if reference is None else str(reference),
        method,
        read_options(option or []),
        guard=guard,
        load=load,
    )
    run(ServeConfig((made,), **given), CameraBoard())  # type: ignore[arg-type]
