"""All of it together: ``fozo serve`` with the bundled model, a camera that goes foggy, and a browser that looks on."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image

from fozo.data.images import Pixels
from tests.serve.browser import CHROMIUM, DRIVER, chromium
from tests.serve.conftest import MODEL, NAME, STATS, foggy, frames

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs a browser: apt-get install chromium chromium-driver"
)


@pytest.fixture
def server(reference: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, and the address that it says."""
    (tmp_path / "token").write_text("s3cret\n")
    command = [sys.executable, "-m", "fozo", "serve", str(MODEL), "--name", NAME, "--stats", str(STATS)]
    command += ["--reference", str(reference), "--port", "0", "--thumbnails", "--token-file", str(tmp_path / "token")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = re.search(r"http://\S+", process.stdout.readline())
            assert said is not None
            yield process, said[0]
        finally:
            process.kill()


def test_a_camera_goes_foggy(server: tuple[subprocess.Popen[str], str], tmp_path: Path) -> None:
    process, address = server

    def send(camera: str, images: Pixels) -> None:
        for image in images:
            stream = io.BytesIO()
            Image.fromarray(image[..., 0]).save(stream, "PNG")
            headers = {"Content-Type": "image/png", "Authorization": "Bearer s3cret"}
            query = {"sequence_id": camera}
            client.post(f"/v2/models/{NAME}/infer", content=stream.getvalue(), params=query, headers=headers)

    with httpx.Client(base_url=address, event_hooks={"response": [httpx.Response.raise_for_status]}) as client:
        send("gate", frames(16))
        send("yard", frames(16))
        with chromium(tmp_path / "profile") as browser:
            browser.open(address)
            browser.wait("return document.getElementById('ask').open")
            browser.press("s3cret\ue007")
            badges = "return [...document.querySelectorAll('.badge')].map((badge) => badge.textContent)"
            browser.wait(f"{badges}.join() === 'fine,fine'")
            send("yard", foggy(frames(24, 16)))
            names = "[...document.querySelectorAll('.name')].map((name) => name.textContent)"
            browser.wait(f"{badges}.join() === 'drift,fine' && {names}.join() === 'yard,gate'")
            row = "const row = document.querySelector('#rows tr');"
            said = browser.run(f"{row} return row.querySelector('.sentence').textContent")
            assert re.search(r"contrast -\d+ %.* since image \d+ .*expected accuracy", said)
            assert "drift at image" in browser.run(f"{row} return row.querySelector('.latest').textContent")
            drift, threshold = re.findall(r"[\d.]+", browser.run(f"{row} return row.cells[1].innerText"))[:2]
            assert float(drift) > float(threshold)
            time.sleep(1.1)  # pictures are made once a second
            send("yard", foggy(frames(1, 40)))
            browser.wait("return [...document.querySelectorAll('img[src]')].filter((i) => i.naturalWidth).length >= 3")
            own = ("data:", "chrome:", "chrome-untrusted:")  # what a new tab of the browser asks for, late at times
            asked = {url.partition("?")[0] for url in browser.requests() if not url.startswith(own)}
            assert asked == {f"{address}/", f"{address}/events", f"{address}/frames"}

            process.send_signal(signal.SIGTERM)  # the page is open: it must not keep the server
            assert process.wait(timeout=20) == 0
            browser.wait("return document.getElementById('link').textContent === 'connection lost, retrying'")
