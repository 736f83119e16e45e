"""The server as an ASGI application: the Open Inference Protocol v2 with sequences, binary tensors, and metrics.

    app = create_app(ServeConfig(models=(ModelConfig("fashion", "fashion.onnx", "fashion.safetensors"),)))

Any ASGI server can run it; ``fozo serve`` uses uvicorn. Do not run it with several worker processes: one process owns
all cameras of its state folder. Errors are reported as the protocol defines, ``{"error": SENTENCE}``.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fozo.errors import FozoError
from fozo.io.notices import Notices
from fozo.io.system import installed_version
from fozo.serve import protocol
from fozo.serve.board import History
from fozo.serve.cameras import Camera, ServedModel
from fozo.serve.limits import CLOSE, RETRY, AccessPolicy, Refused
from fozo.serve.metrics import Metrics
from fozo.serve.pool import Body, Pool
from fozo.serve.protocol import HEADER_LENGTH, InferRequest
from fozo.serve.store import CameraInUse, hold

if TYPE_CHECKING:
    from fozo.monitor import Event
    from fozo.serve.board import CameraBoard
    from fozo.serve.config import ServeConfig

LOG = logging.getLogger("fozo.serve")
EXTENSIONS = ["sequence", "sequence(string_id)", "binary_tensor_data"]
MODEL_VERSION = "1"
TINY_JSON = 2048  # bytes of JSON that the event loop parses, in 0.1 ms at most: waking a thread costs as much
DISCONNECT_AFTER = 0.02  # seconds after which the server watches for a client that hangs up: most are answered by then
BODIES = 3  # how many bodies of `max_body` bytes may be in memory at a time, of which one is a reserve for small ones
SMALL_BODY = 1 << 20  # bytes of a body that may come from the reserve
PATROL = 2.0  # seconds between two looks for cameras that have fallen silent
IN_USE = {"Fozo-Camera": "elsewhere"}  # for a camera that another server holds: a proxy may try the next one
UNKNOWN_MODEL = "unknown"  # label of the metrics of requests for a model that does not exist


class InferenceServer:
    """Models, metrics, and from start to stop the pool that the routes share."""

    def __init__(self, config: ServeConfig, board: CameraBoard | None = None) -> None:
        self.config = config
        self.board = board
        self.history = History() if board is None else board.history
        self.notices = Notices.open(config.webhooks, config.mqtt, (config.secret or "").encode())
        with ExitStack() as stack:
            if config.state is not None and not config.shared:
                sentence = f"another server keeps its cameras in {config.state}; stop it, or give another --state"
                stack.enter_context(hold(Path(config.state), FozoError(sentence)))
            self.models = {model.name: ServedModel(model, config) for model in config.models}
            self._claim = stack.pop_all()
        self.metrics = Metrics(config.max_labels)
        self.pool: Pool | None = None
        self.unsaved: list[str] = []  # cameras that could not be saved when it was stopped
        self._held = 0  # bytes of bodies that have arrived and are not answered
        self._parsing = asyncio.Lock()  # parsing holds the interpreter: two take more memory, not less time

    def start(self) -> None:
        folders = [model.folder for model in self.models.values() if model.folder is not None]
        self.pool = pool = Pool(self.config, folders, on_response=self._record, on_evict=self._forget)
        self.metrics.streams.set_function(lambda: pool.cameras)
        self.metrics.queued.set_function(lambda: pool.queued)
        for name, model in self.models.items():
            if model.folder is not None:
                self.metrics.aside.labels(name).set_function(partial(getattr, model.folder, "aside"))

    def stop(self) -> None:
        """Finish what is queued, and save all cameras; ``unsaved`` names those that could not be."""
        pool = self.pool
        self.pool = None
        if pool is not None:
            saved, unsaved = pool.close()
            if self.config.state is not None:
                self.unsaved = unsaved
                LOG.warning("saved %d camera%s in %s", saved, "s" * (saved != 1), self.config.state)
        self.notices.close()
        self._claim.close()

    def _record(self, model: ServedModel, camera: Camera, images: int) -> None:
        events: Iterable[Event] = camera.events
        if images and not camera.stateless:
            events = self.history.record(camera.reading(model.name))
        self._tell(model.name, camera.name, events)
        self.metrics.record(model.name, camera, images)

    def _tell(self, model: str, camera: str, events: Iterable[Event]) -> None:
        for event in events:
            LOG.info("%s, camera %r: %s at image %d: %s", model, camera, event.name, event.image, event.text)
            self.notices.send(model, camera, event.as_dict())

    async def _notice_silence(self) -> None:
        while True:
            await asyncio.sleep(PATROL)
            for (model, camera), event in self.history.notice_silence(time.time()):
                self._tell(model, camera, [event])

    def _forget(self, model: ServedModel, name: str, ended: bool) -> None:
        self.metrics.forget(model.name, name, ended)
        self.history.forget(model.name, name, ended)

    def model(self, http: HTTPRequest) -> ServedModel:
        name = http.path_params["model"]
        version = http.path_params.get("version", MODEL_VERSION)
        model = self.models.get(name)
        if model is None:
            raise HTTPException(404, f"there is no model {name[:100]!r}; the models are {', '.join(self.models)}")
        if version != MODEL_VERSION:
            raise HTTPException(404, f"the model {name} has no version {version[:20]!r}; give {MODEL_VERSION}")
        return model

    async def infer(self, http: HTTPRequest) -> Response:
        started = time.perf_counter()
        name = UNKNOWN_MODEL
        code = 500
        try:
            model = self.model(http)
            name = model.name
            data, length = await self._infer(http, model)
            code = 200
        except (HTTPException, ClientDisconnect) as error:
            code = error.status_code if isinstance(error, HTTPException) else 499
            raise
        finally:
            self.metrics.requests.labels(name, str(code)).inc()
            self.metrics.seconds.labels(name).observe(time.perf_counter() - started)
        if length is None:
            return Response(data, media_type="application/json")
        return Response(data, media_type="application/octet-stream", headers={HEADER_LENGTH: str(length)})

    async def _infer(self, http: HTTPRequest, model: ServedModel) -> Body:
        if self.pool is None:
            raise HTTPException(503, "the server is not ready yet; try again in a while", RETRY)
        body = bytearray()
        try:
            request = await self._read(http, self.pool, body, tuple(model.outputs))
            protocol.check_monitored(request, model.monitored, model.name)
            return await self.predict(http, model, request)
        except (FozoError, MemoryError) as error:
            raise self.refusal(error) from error
        finally:
            self._held -= len(body)

    async def _read(self, http: HTTPRequest, pool: Pool, body: bytearray, outputs: tuple[str, ...]) -> InferRequest:
        picture = http.headers.get("content-type", "").partition(";")[0].strip().lower() in protocol.PICTURES
        length = http.headers.get(HEADER_LENGTH)
        timeout = self.config.timeout
        try:
            most = self.config.max_body
            most = most if picture or length is not None else min(most, self.config.max_json)
            await asyncio.wait_for(self._receive(http, body, most), timeout)
        except asyncio.TimeoutError as error:
            raise HTTPException(408, f"the body did not come within {timeout:g} s; send it again", CLOSE) from error
        if picture:
            request = protocol.picture_request(bytes(body), http.scope["query_string"], outputs)
        else:
            read = partial(protocol.read_request, body, length, pool.limits, outputs)
            if min(len(body), _length(length)) <= TINY_JSON:
                request = read()
            else:
                async with self._parsing:
                    request = await asyncio.to_thread(read)
        client = "" if http.client is None else http.client.host
        camera = request.camera or protocol.read_sequence_header(http.headers.get(protocol.SEQUENCE_HEADER, ""))
        return replace(request, camera=camera, client=client)

    async def _receive(self, http: HTTPRequest, body: bytearray, most: int) -> None:
        """Add a body's parts to ``body`` as they arrive, within the limits of one body and of all of them."""
        if http.headers.get("content-encoding", "identity") != "identity":
            raise HTTPException(415, "the body is compressed; send it uncompressed", CLOSE)
        header = http.headers.get("content-length", "")
        total = BODIES * self.config.max_body
        too_long = HTTPException(413, f"the body is longer than {most} bytes; send fewer images, or binary data", CLOSE)
        if header.isdecimal() and (len(header) > 18 or int(header) > most):
            raise too_long
        async for chunk in http.stream():
            if len(body) + len(chunk) > most:
                raise too_long
            reserve = 0 if len(body) + len(chunk) <= SMALL_BODY else self.config.max_body
            if self._held + len(chunk) > total - reserve:
                sentence = "too many large requests are being read; try again in a while"
                raise HTTPException(503, sentence, {**CLOSE, **RETRY})
            body += chunk
            self._held += len(chunk)

    async def predict(self, http: HTTPRequest | None, model: ServedModel, request: InferRequest) -> Body:
        """Queue a request and wait; drop one that was not begun if the client hangs up or time is up."""
        if self.pool is None:
            raise Refused("the server is being stopped; try again in a while", 503)
        job = self.pool.submit(model, request)
        future: asyncio.Future[Body] = asyncio.wrap_future(job)
        tasks: list[asyncio.Future[Any]] = [future]
        timeout = self.config.timeout
        try:
            await asyncio.wait(tasks, timeout=min(DISCONNECT_AFTER, timeout))
            if not future.done():
                if http is not None:
                    tasks.append(asyncio.ensure_future(http.receive()))  # after the body comes `http.disconnect`
                await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if future.done():
                return future.result()
            if tasks[-1].done():
                if not job.cancel():
                    await asyncio.wait([future], timeout=timeout)  # until then its images are in memory
                raise HTTPException(499, "the client has disconnected")
            raise HTTPException(504, f"there was no response within {timeout:g} s; send it again", RETRY)
        finally:
            if job.cancel():
                request.drop()
            for task in tasks:
                task.cancel()

    def refusal(self, error: FozoError | MemoryError) -> HTTPException:
        if isinstance(error, MemoryError):
            error = Refused("the server is short of memory; try again in a while, or send fewer images", 503)
        if isinstance(error, Refused):
            return HTTPException(error.code, str(error), RETRY if error.retry else None)
        in_use = isinstance(error, CameraInUse)
        return HTTPException(503 if in_use else 400, str(error), {**IN_USE, **RETRY} if in_use else None)

    async def live(self, http: HTTPRequest) -> Response:
        return Response()

    async def ready(self, http: HTTPRequest) -> Response:
        if "model" in http.path_params:
            self.model(http)
        return Response(status_code=200 if self.pool is not None else 503)

    async def server_metadata(self, http: HTTPRequest) -> Response:
        return JSONResponse({"name": "fozo", "version": installed_version(), "extensions": EXTENSIONS})

    async def model_metadata(self, http: HTTPRequest) -> Response:
        model = self.model(http)
        platform = f"fozo_{model.method}"
        return JSONResponse(protocol.model_metadata(model.name, model.spec, platform, model.outputs, model.monitored))

    async def mark(self, http: HTTPRequest) -> Response:
        """Mark the events of a camera as ``seen`` or ``expected``; what is expected is clean from now on."""
        model = self.model(http)
        name = protocol.read_sequence_id(http.query_params.get("sequence_id", ""))
        camera = None if self.pool is None else self.pool.find(model.name, name)
        if camera is None:
            raise HTTPException(404, f"there is no camera {name[:100]!r} in memory; send an image of it first")
        try:
            await asyncio.to_thread(camera.mark, http.path_params["word"])
        except FozoError as error:
            raise self.refusal(error) from error
        return Response(status_code=204)

    async def index(self, http: HTTPRequest) -> Response:
        state = {"version": MODEL_VERSION, "state": "READY", "reason": ""}
        return JSONResponse([{"name": name, **state} for name in self.models])

    async def prometheus(self, http: HTTPRequest) -> Response:
        return Response(self.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def build_app(self) -> Starlette:
        """Build the ASGI application: it starts this server, and stops it at shutdown."""
        routes = list[Route]()
        for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):  # first: they are tried in order
            routes += [
                Route(f"{path}/infer", self.infer, methods=["POST"]),
                Route(f"{path}/mark/{{word}}", self.mark, methods=["POST"]),
                Route(path, self.model_metadata),
                Route(f"{path}/ready", self.ready),
            ]
        routes += [
            Route("/v2", self.server_metadata),
            Route("/v2/health/live", self.live),
            Route("/v2/health/ready", self.ready),
            Route("/v2/repository/index", self.index, methods=["POST"]),
            Route("/metrics", self.prometheus),
        ]

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            self.start()
            patrol = asyncio.create_task(self._notice_silence())
            try:
                yield
            finally:
                patrol.cancel()
                await asyncio.to_thread(self.stop)

        if self.board is not None:
            routes += self.board.routes
        hosts = (self.config.host, *self.config.allowed_hosts)
        access = Middleware(AccessPolicy, token=self.config.token, hosts=hosts)
        handlers: Any = dict.fromkeys((HTTPException, ClientDisconnect, Exception), _error)
        app = Starlette(routes=routes, lifespan=lifespan, middleware=[access], exception_handlers=handlers)
        app.state.server = self
        return app


def _length(header: str | None) -> float:
    """The length of the JSON that a header says, where it can be read: whoever parses the body refuses others."""
    return int(header) if header is not None and header.isdecimal() and len(header) < 10 else math.inf


async def _error(http: HTTPRequest, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        sentence = error.detail.encode(errors="backslashreplace").decode()  # it may have a client's lone surrogates
        return JSONResponse({"error": sentence}, error.status_code, error.headers)
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)
    return JSONResponse({"error": f"a fault of fozo itself ({type(error).__name__}); see the server's log"}, 500)


def create_app(config: ServeConfig, board: CameraBoard | None = None) -> Starlette:
    """Make the application: models are loaded now, cameras are saved at shutdown; ``board`` shows them on a page."""
    return InferenceServer(config, board).build_app()
