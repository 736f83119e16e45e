"""The page in a real browser: it is live, it is safe, it can be used by everybody."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fozo.monitor import Event
from fozo.monitor.events import thumbnail
from fozo.serve.board import CameraBoard
from tests.serve.browser import CHROMIUM, DRIVER, Browser, chromium
from tests.serve.conftest import reading, serving

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs a browser: apt-get install chromium chromium-driver"
)

ROWS = "return [...document.querySelectorAll('#rows tr')].filter((row) => !row.hidden)"
NAMES = f"{ROWS}.map((row) => row.querySelector('.name').textContent)"
ROW = """const named = (row) => row.querySelector('.name').textContent === arguments[0];
const row = [...document.querySelectorAll('#rows tr')].find(named);"""
LIVE = "return document.getElementById('link').textContent === 'live'"
FOG = "contrast -41 %, fine detail -68 % since image 97 (2026-11-17 14:02:31Z): like fog"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(session: Browser) -> Iterator[Browser]:
    """A browser as new, which had nothing to complain of in the end."""
    session.open("about:blank")
    session.requests()
    session.log("browser")
    yield session
    session.open("about:blank")


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> CameraBoard:
    monkeypatch.setattr("fozo.serve.board.SPACING", 0.0)
    return CameraBoard()


def show(board: CameraBoard, camera: str = "gate", ago: float = 0.0, **changes: Any) -> None:
    board.history.record(reading(camera, time.time() - ago, **changes))


def foggy(board: CameraBoard, camera: str, **changes: Any) -> None:
    event = Event("drift", 97, time.time(), FOG)
    show(board, camera, drift=1.234, drifted=True, warning=True, accuracy=(0.6, 0.5, 0.7), sentence=FOG,
         events=(event,), **changes)  # fmt: skip


def row(browser: Browser, camera: str, selector: str) -> str:
    found: str = browser.run(f"{ROW} return row.querySelector(arguments[1]).textContent", camera, selector)
    return found


def test_it_is_live_and_sends_requests_to_its_server_only(browser: Browser, board: CameraBoard) -> None:
    with serving(board) as port:
        own = f"http://127.0.0.1:{port}/"
        browser.open(own)
        browser.wait(LIVE)
        assert "No camera has sent an image yet." in browser.run("return document.body.innerText")
        for ago in range(9, 0, -1):
            show(board, "gate", ago=10.0 * ago, images=1600 - ago)
            show(board, "yard", ago=10.0 * ago)
        browser.wait(f"{ROWS}.length === 2 && document.querySelector('.badge').textContent === 'fine'")
        assert row(browser, "gate", ".seen").startswith("1,599 images, ")
        assert row(browser, "gate", "td.drift .figure").split() == ["Drift", "0.12", "of", "the", "threshold"]
        assert row(browser, "gate", "td.accuracy .figure").split("accuracy ")[1] == "90 % 85 to 94 %"
        assert row(browser, "gate", "td.drift .span") == "last 80 s"
        for name in ("line", "threshold", "band"):
            d = browser.run(f"{ROW} return row.querySelector('path.{name}').getAttribute('d')", "gate")
            assert d.count("L") == (17 if name == "band" else 8)

        foggy(board, "yard")  # a camera goes bad: it is said, it comes first, and its sentence is in local time
        browser.wait(f"{NAMES}[0] === 'yard'")
        browser.wait(f"{ROW} return row.querySelector('.badge').textContent === 'drift'", "yard")
        local = browser.run("return new Date('2026-11-17T14:02:31Z').toLocaleTimeString(undefined,"
                            "{hour: '2-digit', minute: '2-digit', second: '2-digit'})")  # fmt: skip
        said = row(browser, "yard", ".sentence").replace("\xa0", " ")
        assert said.startswith("contrast -41 %, fine detail -68 % since image 97 (")
        assert local.replace("\u202f", " ") in said.replace("\u202f", " ")
        assert "drift at image\xa097" in row(browser, "yard", ".latest")
        assert browser.run("return document.title") == "(1) Cameras - fozo"
        browser.wait("return document.getElementById('said').textContent.startsWith('yard: drift. contrast')")
        assert row(browser, "yard", "td.drift b") == "1.23"
        board.history.forget("model", "yard")
        browser.wait(f"{ROW} return row.querySelector('.seen').textContent.includes('silent since')", "yard")

        asked = [url for url in browser.requests() if not url.startswith("data:")]
        assert set(asked) == {own, f"{own}events"}
        assert browser.log("browser") == []


def test_a_hostile_name_is_text(browser: Browser, board: CameraBoard) -> None:
    names = ["<script>document.title = 'bad'</script>", "<img src=x onerror=alert(1)>", "\u202eevil\nname", "y" * 500]
    for name in names:
        foggy(board, name, before=picture(0.2))
        show(board, name, model=name, sentence=name)
    with serving(board) as port:
        browser.open(f"http://127.0.0.1:{port}/")
        browser.wait(f"{ROWS}.length === 8 && document.querySelectorAll('img[src]').length === 4")
        browser.wait("return document.querySelector('tr:last-child .badge').textContent === 'fine'")
        assert sorted(browser.run(NAMES)) == sorted(2 * names)
        assert browser.run("return document.scripts.length") == 1
        assert browser.run("return document.querySelectorAll('#rows script, #rows [onerror]').length") == 0
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        stops = "try { document.body.innerHTML = '<b>x</b>'; return 'let through' } catch (e) { return e.name }"
        assert browser.run(stops) == "TypeError"
        assert browser.run("return document.title") == "(4) Cameras - fozo"


def picture(contrast: float) -> str:
    """A small JPEG in base64."""
    across, down = np.meshgrid(np.arange(96), np.arange(72))
    return thumbnail(0.5 + 0.4 * contrast * (np.sin(across / 9) * np.cos(down / 7))[None])
