"""A headless Chromium, driven over WebDriver (https://www.w3.org/TR/webdriver2) with the standard library alone."""

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--window-size=1400,900",
]  # fmt: skip


class Browser:
    """A session of chromedriver."""

    def __init__(self, driver: str, profile: Path) -> None:
        self._driver = driver
        options = {"binary": CHROMIUM, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"}}
        answer = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{answer['sessionId']}"

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._driver + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["value"]

    def post(self, path: str, body: object) -> Any:
        return self._ask("POST", self._session + path, body)

    def open(self, url: str) -> None:
        self.post("/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        """Run the body of a function in the page, and return what it returns."""
        return self.post("/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script: str, *arguments: object, seconds: float = 60.0) -> Any:
        """Wait until a script returns something that is true; give it back."""
        end = time.monotonic() + seconds
        while not (found := self.run(script, *arguments)):
            assert time.monotonic() < end, f"never true: {script}; the page says:\n{self.run(TEXT)}"
            time.sleep(0.05)
        return found

    def devtools(self, command: str, **parameters: object) -> Any:
        return self.post("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def log(self, name: str) -> list[dict[str, Any]]:
        """Entries of a log since it was last asked for."""
        entries: list[dict[str, Any]] = self.post("/se/log", {"type": name})
        return entries

    def requests(self) -> list[str]:
        """Addresses that the page has asked for since this was last called."""
        messages = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]

    # What docs/make_page_picture.py takes pictures with.

    def size(self, width: int, height: int, mobile: bool = False) -> None:
        """Be a screen of this size."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )

    def scheme(self, name: str) -> None:
        """Prefer ``light`` or ``dark``."""
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def pdf(self) -> bytes:
        return base64.b64decode(self.devtools("Page.printToPDF", printBackground=False)["data"])

    def quit(self) -> None:
        self._ask("DELETE", self._session)


TEXT = "return document.body.innerText"


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """Start a browser with a profile of its own in ``folder``; both go at the end."""
    assert DRIVER is not None
    with subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = ""
            while not (port := re.search(r"started successfully on port (\d+)", said)):
                line = process.stdout.readline()
                assert line, f"chromedriver did not start: {said}"
                said += line
            browser = Browser(f"http://127.0.0.1:{port[1]}", folder)
            try:
                yield browser
            finally:
                browser.quit()
        finally:
            process.terminate()
