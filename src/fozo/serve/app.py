"""The server as an ASGI application: the Open Inference Protocol v2 with sequences, binary tensors, and metrics.

    app = create_app(ServeConfig(models=(ModelConfig("fashion", "fashion.onnx", "fashion.npz"),)))

Any ASGI server runs it; ``fozo serve`` uses uvicorn. One process has all cameras of its state folder, so it is not to
be run with several worker processes. What goes wrong is told as the protocol says, ``{"error": SENTENCE}``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager, contextmanager
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
from fozo.io.system import installed_version
from fozo.serve.metrics import Metrics
from fozo.serve.model import ServedModel
from fozo.serve.pool import Body, Pool, TooBusy
from fozo.serve.protocol import (
    ACCURACY,
    DRIFT,
    HEADER_LENGTH,
    PICTURES,
    Limits,
    Request,
    check_watched,
    model_metadata,
    picture_request,
    read_request,
)
from fozo.serve.security import CLOSE, Guard
from fozo.serve.store import Elsewhere, claim

if TYPE_CHECKING:
    from fozo.serve.cameras import Camera
    from fozo.serve.config import ServeConfig
    from fozo.serve.types import Board

LOG = logging.getLogger("fozo.serve")
EXTENSIONS = ["sequence", "sequence(string_id)", "binary_tensor_data"]
VERSION = "1"
"""Of every model."""
QUICK = 64 << 10
"""Bytes of JSON that are parsed at once; more would keep other requests waiting, and go to a thread."""
WATCHED_AFTER = 0.02
"""Seconds after which it is watched whether the client is still there; most answers are given by then."""
BODIES = 8
"""How many of the longest bodies there may be in memory at a time."""
RETRY = {"Retry-After": "1"}
ELSEWHERE = "Fozo-Camera"
"""Header of the refusal of a camera that another server has: a router then asks the next one."""
UNKNOWN = "unknown"
"""What metrics call the model of requests for one that there is not."""


class Server:
    """What the routes share: models, metrics, and from start to stop the pool."""

    def __init__(self, config: ServeConfig, board: Board | None = None) -> None:
        self.config, self.board = config, board
        self._held = ExitStack()
        if config.state is not None and not config.shared:
            self._held.enter_context(claim(Path(config.state)))
        try:
            self.models = {model.name: ServedModel(model, config) for model in config.models}
        except BaseException:
            self._held.close()
            raise
        self.metrics = Metrics(config.max_labels)
        self.pool: Pool | None = None
        self._bytes = 0
        """Of bodies that are being read, or wait."""

    def start(self) -> None:
        """Be ready for requests."""
        self.pool = Pool(self.config, after=self._after, gone=self._gone)

    def stop(self) -> None:
        """Finish what is queued, and save all cameras."""
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.close()
        self._held.close()

    def _after(self, model: ServedModel, camera: Camera, images: int) -> None:
        self.metrics.record(model.name, camera, images)
        if self.board is not None and images and not camera.passing:
            self.board.record(camera.reading(model.name))

    def _gone(self, model: ServedModel, name: str) -> None:
        self.metrics.forget(model.name, name)
        if self.board is not None:
            self.board.forget(model.name, name)

    def model(self, http: HTTPRequest) -> ServedModel:
        """Find the model that a path names."""
        name, version = http.path_params["model"], http.path_params.get("version", VERSION)
        model = self.models.get(name)
        if model is None:
            raise HTTPException(404, f"there is no model {name[:100]!r}; the models are {', '.join(self.models)}")
        if version != VERSION:
            raise HTTPException(404, f"the model {name} has no version {version[:20]!r}; its version is {VERSION}")
        return model

    async def infer(self, http: HTTPRequest) -> Response:
        """Answer a request for predictions."""
        started, name, code = time.perf_counter(), UNKNOWN, 500
        try:
            model = self.model(http)
            name = model.name
            response = await self._infer(http, model)
            code = response.status_code
            return response
        except HTTPException as error:
            code = error.status_code
            raise
        except ClientDisconnect:
            code = 499
            raise
        finally:
            self.metrics.requests.labels(name, str(code)).inc()
            self.metrics.seconds.labels(name).observe(time.perf_counter() - started)

    async def _infer(self, http: HTTPRequest, model: ServedModel) -> Response:
        if self.pool is None:
            raise HTTPException(503, "the server is not ready yet", RETRY)
        with self._room(http):
            return await self._answer(http, model, self.pool)

    @contextmanager
    def _room(self, http: HTTPRequest) -> Iterator[None]:
        """Keep memory for a request's body, as long as it says, while it is read and waits."""
        told = http.headers.get("content-length", "")
        length = min(int(told), self.config.max_body) if told.isdecimal() and len(told) < 20 else self.config.max_body
        if self._bytes + length > BODIES * self.config.max_body:
            raise HTTPException(503, "too many large requests are being read; try again in a while", {**RETRY, **CLOSE})
        self._bytes += length
        try:
            yield
        finally:
            self._bytes -= length

    async def _answer(self, http: HTTPRequest, model: ServedModel, pool: Pool) -> Response:
        try:
            body = await asyncio.wait_for(self.read_body(http, self.config.max_body), self.config.timeout)
        except asyncio.TimeoutError as error:
            sentence = f"the body did not come within {self.config.timeout:g} s; send it again"
            raise HTTPException(408, sentence, CLOSE) from error
        try:
            request = await self._read(http, body, pool.limits)
            check_watched(request, DRIFT in model.watched, ACCURACY in model.watched, model.name)
            future = pool.submit(model, request)
        except TooBusy as error:
            raise HTTPException(error.code, str(error), RETRY) from error
        except FozoError as error:
            raise HTTPException(400, str(error)) from error
        data, length = await self._wait(http, future)
        if length is None:
            return Response(data, media_type="application/json")
        headers = {"Inference-Header-Content-Length": str(length)}
        return Response(data, media_type="application/octet-stream", headers=headers)

    @staticmethod
    async def read_body(http: HTTPRequest, most: int) -> bytes:
        """Read a body, and no more than is taken."""
        if http.headers.get("content-encoding", "identity") != "identity":
            raise HTTPException(415, "the body is compressed, which is not taken; send it as it is", CLOSE)
        told = http.headers.get("content-length", "0")
        parts, length = list[bytes](), int(told) if told.isdecimal() and len(told) < 20 else 0
        if length <= most:
            length = 0
            async for part in http.stream():
                length += len(part)
                if length > most:
                    break
                parts.append(part)
        if length > most:
            raise HTTPException(413, f"the body is longer than {most} bytes; send fewer images at a time", CLOSE)
        return b"".join(parts)

    async def _read(self, http: HTTPRequest, body: bytes, limits: Limits) -> Request:
        kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in PICTURES:
            return picture_request(body, http.query_params)
        length = http.headers.get(HEADER_LENGTH)
        if len(body) <= QUICK or (length is not None and len(length) < 6):
            return read_request(body, length, limits)
        return await asyncio.to_thread(read_request, body, length, limits)

    async def _wait(self, http: HTTPRequest, future: Future[Body]) -> Body:
        """Wait for an answer; if the client goes or time is up, a request that was not begun is dropped."""
        answer = asyncio.wrap_future(future)
        gone: asyncio.Future[None] | None = None
        either: set[asyncio.Future[Any]] = {answer}
        left = self.config.timeout
        try:
            await asyncio.wait(either, timeout=min(WATCHED_AFTER, left))
            if not answer.done():
                gone = asyncio.ensure_future(_gone(http))
                left = max(left - WATCHED_AFTER, 0)
                await asyncio.wait({*either, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                answer.cancel()
                if gone is not None and gone.done():
                    raise HTTPException(499, "the client has gone")
                raise HTTPException(504, f"there was no answer within {self.config.timeout:g} s; send it again", RETRY)
            return answer.result()
        except TooBusy as error:
            raise HTTPException(error.code, str(error), RETRY) from error
        except Elsewhere as error:
            raise HTTPException(503, str(error), {**RETRY, ELSEWHERE: "elsewhere"}) from error
        except FozoError as error:
            raise HTTPException(400, str(error)) from error
        finally:
            if gone is not None:
                gone.cancel()

    async def live(self, http: HTTPRequest) -> Response:
        """Say that the process lives."""
        return Response()

    async def ready(self, http: HTTPRequest) -> Response:
        """Say whether requests are taken."""
        return Response(status_code=200 if self.pool is not None else 503)

    async def model_ready(self, http: HTTPRequest) -> Response:
        """Say whether a model takes requests."""
        self.model(http)
        return await self.ready(http)

    async def server_metadata(self, http: HTTPRequest) -> Response:
        """Say what the server is."""
        return JSONResponse({"name": "fozo", "version": installed_version(), "extensions": EXTENSIONS})

    async def model_metadata(self, http: HTTPRequest) -> Response:
        """Say what a model takes and gives."""
        model = self.model(http)
        return JSONResponse(model_metadata(model.name, model.spec, f"fozo_{model.method}", model.watched))

    async def index(self, http: HTTPRequest) -> Response:
        """List the models."""
        return JSONResponse(
            [{"name": name, "version": VERSION, "state": "READY", "reason": ""} for name in self.models]
        )

    async def load(self, http: HTTPRequest) -> Response:
        """Refuse to load or unload a model."""
        raise HTTPException(400, "models are chosen when the server is started; start it again with others")

    async def prometheus(self, http: HTTPRequest) -> Response:
        """Give the metrics."""
        if self.pool is not None:
            self.metrics.streams.set(self.pool.cameras)
            self.metrics.queued.set(self.pool.queued)
        return Response(self.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def routes(self) -> list[Route]:
        """All that is answered, but the page."""
        found = [
            Route("/v2", self.server_metadata),
            Route("/v2/health/live", self.live),
            Route("/v2/health/ready", self.ready),
            Route("/v2/repository/index", self.index, methods=["POST"]),
            Route("/v2/repository/models/{model}/load", self.load, methods=["POST"]),
            Route("/v2/repository/models/{model}/unload", self.load, methods=["POST"]),
            Route("/metrics", self.prometheus),
        ]
        for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            found += [
                Route(path, self.model_metadata),
                Route(f"{path}/ready", self.model_ready),
                Route(f"{path}/infer", self.infer, methods=["POST"]),
            ]
        return found


async def _gone(http: HTTPRequest) -> None:
    """Wait until the client has closed the connection."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def _tell(http: HTTPRequest, error: Exception) -> Response:
    """Tell what went wrong as the protocol does."""
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, status_code=error.status_code, headers=error.headers)
    if isinstance(error, ClientDisconnect):  # there is nobody to be told
        return Response(status_code=499)
    return JSONResponse(
        {"error": f"a fault of fozo itself ({type(error).__name__}); its log tells where"}, status_code=500
    )


def create_app(config: ServeConfig, board: Board | None = None) -> Starlette:
    """Make the application: models are loaded now, cameras are saved when it is shut down.

    Args:
        config: models and limits.
        board: shows readings to people, and brings its routes.
    """
    server = Server(config, board)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        server.start()
        try:
            yield
        finally:
            await asyncio.to_thread(server.stop)

    app = Starlette(
        routes=[*server.routes(), *([] if board is None else board.routes)],
        lifespan=lifespan,
        middleware=[Middleware(Guard, token=config.token)],
        exception_handlers={HTTPException: _tell, ClientDisconnect: _tell, Exception: _tell},
    )
    app.state.server = server
    return app
