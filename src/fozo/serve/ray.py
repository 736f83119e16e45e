"""The server on a Ray cluster: as many servers as one asks for, on as many machines, behind one address.

    from ray import serve
    serve.run(application(config, servers=4))

or, with a TOML file that all nodes reach (as they have to reach the model and the state folder):

    serve run fozo.serve.ray:from_file config=/shared/serve.toml servers=4

Every server is a deployment of one replica, so that it can be addressed: a camera belongs to one of them. In front of
them stands a router (:mod:`fozo.serve.router`), which holds no state. Ray starts again what dies; until then the other
servers go on with the cameras that were saved.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from starlette.exceptions import HTTPException
from starlette.responses import Response

from fozo.errors import FozoError
from fozo.serve.app import Server as App
from fozo.serve.config import read_config
from fozo.serve.router import PASSED_ON, Died, LocalPart, Message, Reply, Router, refusal

try:
    from ray import serve
    from ray.exceptions import RayError, RayTaskError
    from ray.serve.exceptions import RayServeException
except ImportError as error:
    raise FozoError(f"this needs {error.name}; install it with pip install 'fozo[ray-serve]'") from error

if TYPE_CHECKING:
    from ray.serve import Application
    from ray.serve.handle import DeploymentHandle, DeploymentResponse
    from starlette.requests import Request as HTTPRequest

    from fozo.serve.config import ServeConfig

T = TypeVar("T")
PATIENCE = 60.0
"""Seconds that a server may take to save its cameras when it is stopped."""


class Server(LocalPart):
    """A server in a process of Ray's, which ends its life by ``__del__``."""

    def __del__(self) -> None:
        """Save all cameras."""
        if hasattr(self, "server"):  # else it was never made
            self.stop()


class _Remote:
    """A server as the router calls it."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self.handle = handle

    async def call(self, message: Message, leave: bool) -> Reply:
        """Let it answer."""
        return await _outcome(cast("DeploymentResponse[Reply]", self.handle.call.remote(message, leave)))

    async def ready(self) -> int:
        """Let it say that it lives."""
        return await _outcome(cast("DeploymentResponse[int]", self.handle.ready.remote()))


async def _outcome(response: DeploymentResponse[T]) -> T:
    try:
        return await response
    except asyncio.CancelledError:
        response.cancel()  # type: ignore[no-untyped-call]
        raise
    except RayTaskError:  # a fault of our own, not a death
        raise
    except (RayError, RayServeException) as error:
        raise Died(str(error)) from error


class Front:
    """Takes requests and hands them on."""

    def __init__(self, config: ServeConfig, *handles: DeploymentHandle[Any]) -> None:
        self.config, self.router = config, Router([_Remote(handle) for handle in handles], config)

    async def __call__(self, http: HTTPRequest) -> Response:
        """Answer a request."""
        headers = tuple((name, value) for name, value in http.headers.items() if name in PASSED_ON)
        path = http.scope["path"].removeprefix(http.scope.get("root_path", ""))
        try:
            body = await App.read_body(http, self.config.max_body)
            reply = await self.router.route(Message(http.method, path, http.url.query, headers, body))
        except HTTPException as error:
            reply = refusal(error.status_code, error.detail)
        return Response(reply.body, reply.status, dict(reply.headers))


def application(config: ServeConfig, *, servers: int = 2, routers: int = 1, cpus: float = 1.0) -> Application:
    """Make the application that ``ray.serve.run`` runs.

    Args:
        config: as for one server; its ``state`` is a folder that all nodes reach, with file locks that hold between
            them. Where to listen is Ray's to know.
        servers: processes that have the model and cameras. With another number some cameras move.
        routers: processes in front of them. Requests of one camera that are sent side by side keep their order if they
            come through the same one.
        cpus: processors that a server is given.
    """
    if servers < 1 or routers < 1:
        raise FozoError(f"servers is {servers} and routers {routers}; give whole numbers from 1 up")
    if config.state is None:
        raise FozoError("several servers need a folder that all nodes reach; give state")
    most = config.max_queue + 64
    handles = [
        serve.deployment(
            name=f"server-{number}",
            ray_actor_options={"num_cpus": cpus},
            max_ongoing_requests=most,
            graceful_shutdown_timeout_s=PATIENCE,
        )(Server).bind(config)
        for number in range(servers)
    ]
    front = serve.deployment(
        name="router", num_replicas=routers, ray_actor_options={"num_cpus": 0}, max_ongoing_requests=most * servers
    )
    return front(Front).bind(config, *handles)


def from_file(settings: dict[str, str]) -> Application:
    """Make the application of a TOML file, for ``serve run``: ``config``, and what :func:`application` takes."""
    known = {"config", "servers", "routers", "cpus"}
    if "config" not in settings or set(settings) - known:
        raise FozoError(f"the settings are {', '.join(settings) or 'none'}; give config=FILE, and others of {known}")
    try:
        numbers = {name: int(settings[name]) for name in ("servers", "routers") if name in settings}
        cpus = float(settings.get("cpus", 1.0))
    except ValueError as error:
        raise FozoError(f"a setting is no number ({error}); give whole ones") from error
    config = read_config(Path(settings["config"]).absolute())
    return application(config, cpus=cpus, **numbers)
