"""Take a picture of the page of ``fozo serve``, with the bundled model and five cameras.

    python -m docs.make_page_picture

Needs ``fozo[serve,bench]``, httpx, and Chromium with its driver (``apt-get install chromium chromium-driver``). Writes
``docs/page.png``; with ``--all DIR`` also how it looks on a phone, in the dark, and printed.
"""

import argparse
import base64
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np
import numpy.typing as npt
from PIL import Image

import fozo
from fozo.data import sample
from fozo.data.corruptions import corrupt
from fozo.data.images import Pixels
from fozo.data.streams import prepare
from tests.serve.browser import Browser, chromium

MODEL = sample.MODELS["float32"]
CAMERAS = {"gate": "", "loading dock": "fog", "parking": "", "ramp 2": "defocus_blur", "yard": "black"}
"""What happens to each, half-way."""
CLEAN, SENT, BATCH, PAUSE = 300, 400, 8, 0.4


def pictures() -> tuple[Pixels, npt.NDArray[np.int64]]:
    """The bundled images in random order, with labels."""
    images = fozo.open_images(sample.IMAGES)
    order = np.random.default_rng(0).permutation(len(images))
    pixels = np.stack([prepare(images, images.read(int(i)), 28, 1) for i in order])
    return pixels, np.array([images.samples[i].label for i in order])


def harm(images: Pixels, what: str) -> Pixels:
    """What a camera sends once something has happened to it."""
    if what == "black":
        return np.zeros_like(images)
    return np.stack([corrupt(one, what, 3, 0, image_id=str(i)) for i, one in enumerate(images)]) if what else images


def send(address: str, pixels: Pixels) -> None:
    """Let all cameras send all of their images."""
    url = f"{address}/v2/models/fashion/infer"
    for start in range(0, SENT, BATCH):
        for number, (camera, what) in enumerate(CAMERAS.items()):
            images = np.roll(pixels[CLEAN:], 97 * number, axis=0)[start : start + BATCH]
            images = harm(images, what if start >= SENT // 2 else "")
            tensor = {"name": "images", "datatype": "UINT8", "shape": images.shape, "data": images.ravel().tolist()}
            body = {"parameters": {"sequence_id": camera}, "inputs": [tensor]}
            httpx.post(url, json=body, timeout=60).raise_for_status()
        time.sleep(PAUSE)


def take(browser: Browser, path: Path) -> None:
    path.write_bytes(base64.b64decode(browser.devtools("Page.captureScreenshot")["data"]))


def look(browser: Browser, folder: Path | None) -> None:
    """Take the pictures."""
    browser.size(1400, 1060)
    time.sleep(3)  # for frames, which come every two seconds
    path = Path(__file__).with_name("page.png")
    take(browser, path)
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "printed.pdf").write_bytes(browser.pdf())
    for width in (1400, 390):
        browser.size(width, 860, mobile=width < 500)
        for scheme in ("light", "dark"):
            browser.scheme(scheme)
            time.sleep(0.5)
            take(browser, folder / f"{scheme}-{width}.png")


def main() -> None:
    """Serve, send, look."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", type=Path)
    pixels, labels = pictures()
    with tempfile.TemporaryDirectory() as work:
        statistics, reference = MODEL.with_suffix(".statistics.safetensors"), Path(work) / "reference.safetensors"
        adapter = fozo.adapter(MODEL, statistics)
        fozo.Reference.collect(adapter, pixels[:CLEAN], labels[:CLEAN], sample=20).save(reference)
        command = [
            sys.executable,
            "-m",
            "fozo",
            "serve",
            str(MODEL),
            "--name",
            "fashion",
            "--statistics",
            str(statistics),
        ]
        command += ["--reference", str(reference), "--port", "0", "--thumbnails"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                found = re.search(r"http://\S+", process.stdout.readline())
                assert found is not None
                with chromium(Path(work) / "profile") as browser:
                    browser.open(found[0])
                    send(found[0], pixels)
                    look(browser, parser.parse_args().all)
            finally:
                process.terminate()


if __name__ == "__main__":
    main()
