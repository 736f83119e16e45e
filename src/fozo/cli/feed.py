"""``fozo feed``: carry the frames of a camera into ``fozo serve``."""

from __future__ import annotations

import io
import json
import sys
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlencode, urlsplit

import typer

from fozo.errors import FozoError
from fozo.io import read_text

if TYPE_CHECKING:
    from fozo.data.images import Pixels

QUALITY = 95  # of the JPEGs that are sent, from 1 to 95
TIMEOUT = 35.0  # seconds for an answer: a little more than the server's own limit
FIRST_PAUSE = 1.0  # seconds before a server that is away is asked again; doubled each time
LONGEST_PAUSE = 60.0  # seconds
AGAIN = (408, 429, 502, 503, 504)  # codes after which a frame is sent again


def feed(
    source: Annotated[str, "Folder of images, video file, rtsp:// or http:// address, or number of a camera."],
    to: Annotated[str, typer.Option(help="Address of fozo serve, such as http://127.0.0.1:8000.")],
    camera: Annotated[str, typer.Option(help="What the server calls the camera.")],
    model: Annotated[str | None, "Of the server's models; by default its only one."] = None,
    follow: Annotated[bool, "Wait for more images in the folder."] = False,
    every: Annotated[float, "Seconds between two frames, at least."] = 0.0,
    token_file: Annotated[Path | None, "File with the server's token."] = None,
) -> None:
    """Carry a camera, a video or a folder into fozo serve; a camera's frames are dropped rather than late."""
    if not 0 <= every < float("inf"):
        raise FozoError(f"--every is {every:g}; give the seconds between two frames, 0 or more")
    from fozo.cli.folder import frames
    from fozo.data.videos import is_live

    live = is_live(source)
    pictures = frames(source, follow=follow)
    server = Server(to, camera, None if token_file is None else read_text(token_file).strip())
    server.find(model)
    sentence = ""
    due = 0.0
    try:
        for frame in pictures:
            if frame is None or (live and time.monotonic() < due):
                continue
            time.sleep(max(0.0, due - time.monotonic()))
            due = time.monotonic() + every
            said = server.send(jpeg(frame.pixels), again=not live)
            if said not in ("", sentence):
                sentence = said
                print(f"frame {server.sent:,}: {sentence}", flush=True)
    finally:
        server.close()
        print(f"fozo: {server.sent:,} frames of {camera} were sent", file=sys.stderr, flush=True)


def jpeg(pixels: Pixels) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=QUALITY, subsampling=0)
    return stream.getvalue()


class Server:
    """One model of a server, and one camera there."""

    def __init__(self, url: str, camera: str, token: str | None = None) -> None:
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname or address.username is not None:
            raise FozoError(f"--to is {url[:200]!r}; give the server's address, such as http://127.0.0.1:8000")
        if not camera:
            raise FozoError("--camera is empty; give the name that the server is to call the camera by")
        self.sent = 0
        self._root = address.path.rstrip("/")
        self._where = f"{address.hostname}:{address.port}" if address.port else address.hostname
        kind = HTTPConnection if address.scheme == "http" else HTTPSConnection
        self._connection = kind(address.hostname, address.port, timeout=TIMEOUT)
        self._headers = {"Content-Type": "image/jpeg"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._camera = camera
        self._model = ""
        self._wanted = dict[str, str]()
        self._begun = f"{time.time():.3f}"  # so that no frame has the id of an earlier command's

    def find(self, model: str | None) -> None:
        """Check that the model is there, waiting for the server; without a name, take its only one."""
        models = [entry["name"] for entry in self._ask("POST", "/v2/repository/index")]
        if model is None and len(models) != 1:
            raise FozoError(f"the server has {len(models)} models ({', '.join(models)}); name one with --model")
        model = models[0] if model is None else model
        if model not in models:
            raise FozoError(f"the server has no model {model!r}; give one of {', '.join(models)}")
        self._model = f"/v2/models/{quote(model, safe='')}"
        outputs = [output["name"] for output in self._ask("GET", self._model)["outputs"]]
        self._wanted = {"drift": "true"} if "drift" in outputs else {}

    def send(self, picture: bytes, *, again: bool) -> str:
        """Send a frame and return what the monitor says of it: nothing without one, or where the frame is given up.

        A frame is sent ``again`` until the server takes it, under the same id, so that it is not learnt from twice.
        """
        names = {"sequence_id": self._camera, "id": f"{self._begun}-{self.sent + 1}"}
        path = f"{self._model}/infer?{urlencode({**names, **self._wanted})}"
        answer = self._ask("POST", path, picture, again=again)
        self.sent += answer is not None
        return "" if answer is None else str(answer.get("parameters", {}).get("sentence", ""))

    def close(self) -> None:
        self._connection.close()

    def _ask(self, verb: str, path: str, body: bytes = b"", *, again: bool = True) -> Any:  # noqa: ANN401 - JSON
        pause = FIRST_PAUSE
        while True:
            try:
                self._connection.request(verb, self._root + path, body, self._headers)
                response = self._connection.getresponse()
                code = response.status
                text = response.read()
            except (OSError, HTTPException) as error:
                self._connection.close()
                code = 503
                text = json.dumps({"error": str(error) or type(error).__name__}).encode()
            if code == 200:
                return json.loads(text)
            try:
                reason = str(json.loads(text)["error"])
            except (ValueError, KeyError, TypeError):
                reason = f"it answered {code}"
            if code not in AGAIN:
                raise FozoError(f"the server {self._where} refuses: {reason}")
            print(f"fozo: {self._where}: {reason}; the next try is in {pause:g} s", file=sys.stderr, flush=True)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            if not again:
                return None
