"""The server on a Ray cluster: several replicas, on several machines, behind one address.

    from ray import serve
    serve.run(application(config, servers=4))

or, with a TOML file that all nodes can read (as they have to read the model and the state folder):

    serve run fozo.serve.ray:from_file config=/shared/serve.toml servers=4

Ray Serve's consistent hashing, which Ray calls experimental, sends a camera to one replica. Clients name the camera in
the header ``X-Sequence-Id`` if Ray was started with ``RAY_SERVE_SESSION_ID_HEADER_KEY=x-sequence-id``, or else in Ray's
own, ``x-session-id``; a request without it is parsed by the replica that gets it, and handed on once. The locks of the
state folder guarantee that a camera is in one replica at a time, however requests are routed.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import Response

from fozo.errors import FozoError, check_counts
from fozo.serve.app import InferenceServer
from fozo.serve.config import read_config
from fozo.serve.limits import RETRY, Refused
from fozo.serve.pool import Body
from fozo.serve.store import CameraInUse

try:
    from ray import serve
    from ray.exceptions import RayError, RayTaskError
    from ray.serve.config import RequestRouterConfig
    from ray.serve.exceptions import RayServeException
    from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter
except ImportError as error:
    raise FozoError(f"this needs {error.name}; install it with pip install 'fozo[ray-serve]'") from error

if TYPE_CHECKING:
    from ray.serve import Application
    from ray.serve.handle import DeploymentHandle
    from starlette.applications import Starlette
    from starlette.requests import Request as HTTPRequest

    from fozo.serve.cameras import ServedModel
    from fozo.serve.config import ServeConfig
    from fozo.serve.protocol import InferRequest

SHUTDOWN_TIMEOUT = 60.0  # seconds that a replica may take to save its cameras when it is stopped
BROADCAST_TIMEOUT = 10.0
SESSION_HEADER = os.environ.get("RAY_SERVE_SESSION_ID_HEADER_KEY", "x-session-id")
"""By which Ray's proxies route; like them, a replica has the environment that Ray was started in."""
ANONYMOUS = " "  # key of requests without a sequence_id, which share a memory


class Replica(InferenceServer):
    """One server of several, in a process of Ray's."""

    def __init__(self, config: ServeConfig) -> None:
        super().__init__(replace(config, shared=True))
        context = serve.get_replica_context()
        self.handle: DeploymentHandle[Any] = serve.get_deployment_handle(context.deployment, context.app_name)
        self._forwarded = 0

    def __serve_build_asgi_app__(self) -> Starlette:
        return self.build_app()

    async def predict(self, http: HTTPRequest | None, model: ServedModel, request: InferRequest) -> Body:
        camera = request.camera or (ANONYMOUS if self.config.anonymous == "shared" else "")
        if http is None or not camera or http.headers.get(SESSION_HEADER):
            work = self._predict_here(http, model, request)
        else:
            work = self._forward(camera, model, request)
        try:
            return await asyncio.wait_for(work, self.config.timeout)
        except asyncio.TimeoutError as error:
            sentence = f"there was no response within {self.config.timeout:g} s; send it again"
            raise HTTPException(504, sentence, RETRY) from error

    async def _predict_here(self, http: HTTPRequest | None, model: ServedModel, request: InferRequest) -> Body:
        """Predict; a camera that another replica has in memory, because replicas changed, is released there first."""
        while True:
            try:
                return await super().predict(http, model, request)
            except CameraInUse:
                await self._broadcast("release", model.name, request.camera)
                await asyncio.sleep(0.05)

    async def _forward(self, camera: str, model: ServedModel, request: InferRequest) -> Body:
        """Hand a parsed request on to the camera's replica; if that dies, a request with an id is repeated."""
        if self._forwarded >= self.config.max_queue:
            raise Refused(f"{self._forwarded} requests are waiting already; try again in a while", 503)
        self._forwarded += 1
        try:
            while True:
                try:
                    method = self.handle.options(session_id=camera).answer
                    body, refused = await cast("Any", method.remote(model.name, request))
                    break
                except RayTaskError:  # a fault of the server itself
                    raise
                except (RayError, RayServeException) as error:
                    if not request.id:
                        sentence = "the server that had this request died; send it again, best with an id"
                        raise HTTPException(503, sentence, RETRY) from error
                    await asyncio.sleep(0.1)
        finally:
            self._forwarded -= 1
        if refused is not None:
            raise HTTPException(*refused)
        return cast("Body", body)

    async def answer(self, model: str, request: InferRequest) -> tuple[Body | None, tuple[Any, ...] | None]:
        """Answer a request that another replica has parsed: the body, or status, sentence and headers of a refusal."""
        try:
            return await self.predict(None, self.models[model], request), None
        except (FozoError, MemoryError, HTTPException) as error:
            known = error if isinstance(error, HTTPException) else self.refusal(error)
            return None, (known.status_code, known.detail, known.headers)

    async def release(self, model: str, camera: str) -> None:
        """Save a camera and drop it from memory, so that another replica can open it."""
        if self.pool is not None:
            await asyncio.to_thread(self.pool.release, model, camera)

    async def collect_metrics(self) -> tuple[int, list[Metric]]:
        return serve.get_replica_context().rank.rank, list(self.metrics.registry.collect())

    async def prometheus(self, http: HTTPRequest) -> Response:
        families = dict[str, Metric]()
        for rank, metrics in await self._broadcast("collect_metrics"):
            for metric in metrics:
                family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                family.samples += [
                    sample._replace(labels={**sample.labels, "server": str(rank)}) for sample in metric.samples
                ]
        registry = cast("CollectorRegistry", SimpleNamespace(collect=families.values))
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _broadcast(self, method: str, *arguments: str) -> list[Any]:
        """Call a method of all replicas; those that die meanwhile are left out."""
        response = self.handle.broadcast(method, *arguments)
        results = await response.results_async(timeout_s=BROADCAST_TIMEOUT, return_exceptions=True)
        return [result for result in results if not isinstance(result, BaseException)]


def application(config: ServeConfig, *, servers: int = 2, cpus: float = 1.0) -> Application:
    """Make the application that ``ray.serve.run`` runs.

    Args:
        config: as for one server; all nodes have to reach its ``state`` folder, with file locks that hold between them.
            Ray decides where to listen.
        servers: replicas, each with the models and a share of the cameras.
        cpus: processors of a replica.
    """
    check_counts(servers=servers)
    if config.state is None:
        raise FozoError("several servers need a folder that all nodes reach; give state")
    deployment = serve.deployment(
        name="server",
        num_replicas=servers,
        ray_actor_options={"num_cpus": cpus},
        max_ongoing_requests=2 * config.max_queue + 64,  # the pool and _forward() refuse more
        graceful_shutdown_timeout_s=SHUTDOWN_TIMEOUT,
        request_router_config=RequestRouterConfig(
            request_router_class=cast("Any", ConsistentHashRouter),
            request_router_kwargs={"num_fallback_replicas": 0},  # a busy replica is waited for
        ),
    )
    return deployment(serve.ingress()(Replica)).bind(config)


def from_file(settings: dict[str, str]) -> Application:
    """Make the application of a TOML file, for ``serve run``: ``config``, and options of :func:`application`."""
    known = {"config", "servers", "cpus"}
    if "config" not in settings or set(settings) - known:
        raise FozoError(f"the settings are {', '.join(settings) or 'none'}; give config=FILE, and others of {known}")
    try:
        servers = int(settings.get("servers", 2))
        cpus = float(settings.get("cpus", 1.0))
    except ValueError as error:
        raise FozoError(f"a setting is not a number ({error}); give numbers") from error
    return application(read_config(Path(settings["config"]).absolute()), servers=servers, cpus=cpus)
