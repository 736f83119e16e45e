"""Several servers as one: every camera where it belongs, elsewhere if need be, and never in two places."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fozo
from fozo.serve.config import ServeConfig
from fozo.serve.router import Died, LocalPart, Message, Reply, Router, ranked, refusal
from tests.serve.conftest import NAME, config, foggy, frames
from tests.serve.test_server import own

Array = np.ndarray[Any, np.dtype[Any]]


def message(images: Array, camera: str = "cam", id: str = "", model: str = NAME) -> Message:
    """A request as any client of the protocol sends it."""
    tensor = {"name": "images", "datatype": "UINT8", "shape": list(images.shape)}
    facts = {
        "id": id, "parameters": {"sequence_id": camera},
        "inputs": [{**tensor, "parameters": {"binary_data_size": images.nbytes}}],
        "outputs": [{"name": "logits", "parameters": {"binary_data": True}}],
    }  # fmt: skip
    text = json.dumps(facts).encode()
    headers = (("inference-header-content-length", str(len(text))),)
    return Message("POST", f"/v2/models/{model}/infer", "", headers, text + images.tobytes())


def logits(reply: Reply) -> Array:
    assert reply.status == 200, reply.body
    length = int(dict(reply.headers)["inference-header-content-length"])
    return np.frombuffer(reply.body[length:], "<f4").reshape(-1, 10)


class Mortal(LocalPart):
    """A server that can be dead for a while, and notes whom it answered."""

    dead = False

    def __init__(self, settings: ServeConfig) -> None:
        super().__init__(settings)
        self.answered = list[str]()

    async def call(self, message: Message, leave: bool) -> Reply:
        if self.dead:
            raise Died
        reply = await super().call(message, leave)
        if reply.status == 200 and message.path.endswith("infer"):
            header = message.header("inference-header-content-length")
            self.answered.append(json.loads(message.body[: int(header or 0)])["parameters"]["sequence_id"])
        return reply

    async def ready(self) -> int:
        if self.dead:
            raise Died
        return await super().ready()

    def die(self) -> None:
        """Lose what is in memory, as a killed process does: nothing is saved, and the locks are free."""
        self.dead = True
        for slot in self.server.pool._slots.values():
            if slot.camera is not None:
                slot.camera.folder.close()
                slot.camera.folder = None

    def rise(self, settings: ServeConfig) -> None:
        """Be started again."""
        self.stop()
        LocalPart.__init__(self, settings)
        self.dead = False


@pytest.fixture
def settings(tmp_path: Path) -> ServeConfig:
    return config(tmp_path, save_every=1, workers=2, timeout=20.0)


@pytest.fixture
def parts(settings: ServeConfig) -> Iterator[list[Mortal]]:
    made = [Mortal(settings) for _ in range(3)]
    yield made
    for part in made:
        part.stop()


def play(router: Router, work: Callable[[Router], Awaitable[None]]) -> None:
    """Do something with a router in a loop of its own."""

    async def run() -> None:
        try:
            await work(router)
        finally:
            router.stop()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come about")


def test_each_camera_has_its_place_and_few_move() -> None:
    keys = [f"m camera-{i}" for i in range(3000)]
    places = [ranked(key, 3)[0] for key in keys]
    assert min(places.count(i) for i in range(3)) > 800
    moved = [(old, new) for key, old in zip(keys, places, strict=True) if (new := ranked(key, 4)[0]) != old]
    assert 500 < len(moved) < 1000 and {new for _, new in moved} == {3}  # only to the new one, its fair share


def test_a_camera_goes_on_elsewhere_and_returns(settings: ServeConfig, parts: list[Mortal]) -> None:
    """As in one process, exactly: nothing is merged, and everything was saved."""
    cameras = [f"c{i}" for i in range(6)]
    streams = {c: foggy(frames(8, 20 * i), 0.1 * i) for i, c in enumerate(cameras)}
    home = {c: ranked(f"{NAME} {c}", 3) for c in cameras}
    adapters = {c: own() for c in cameras}

    async def work(router: Router) -> None:
        async def turn(i: int) -> None:
            for camera in cameras:
                part = streams[camera][i : i + 1]
                found = logits(await router.route(message(part, camera, f"{camera}-{i}")))
                np.testing.assert_array_equal(found, np.asarray(adapters[camera](part), dtype=np.float32))

        def saved() -> bool:
            held = [slot.camera for part in parts for slot in part.server.pool._slots.values()]
            return all(camera is None or camera.folder is None or not camera.unsaved for camera in held)

        await turn(0)
        for number, part in enumerate(parts):
            assert part.answered == [c for c in cameras if home[c][0] == number]
        await until(saved)
        fallen = parts[home["c0"][0]]
        fallen.die()
        await turn(1)
        await turn(2)
        assert parts[home["c0"][1]].answered.count("c0") == 2
        await until(saved)
        fallen.rise(settings)
        fallen.answered.clear()
        await until(lambda: not router._down[home["c0"][0]].is_set())
        await turn(3)  # whoever has it answers, and lets it go
        assert parts[home["c0"][1]].answered.count("c0") == 3 and not fallen.answered
        await turn(4)
        assert fallen.answered == [c for c in cameras if home[c][0] == home["c0"][0]]

    play(Router(parts, settings, beat=0.02), work)


def test_two_routers_need_not_agree(settings: ServeConfig, parts: list[Mortal]) -> None:
    """One believes that the camera's server is down: its requests are answered all the same, by whoever has it."""
    one, other = Router(parts, settings), Router(parts, settings)
    home = ranked(f"{NAME} cam", 3)[0]
    stream, adapter = frames(9), own()

    async def work(router: Router) -> None:
        other._down[home].set()
        other._watches = [asyncio.ensure_future(asyncio.sleep(0))]  # it does not look
        for i in range(9):
            part = stream[i : i + 1]
            if i == 4:
                await asyncio.to_thread(parts[home].server.pool.let_go, NAME, "cam")  # it was idle, say
                other._down[home].set()
            who = other if i in (4, 6) else one
            if i == 6:
                other._down[home].clear()
            found = logits(await who.route(message(part)))
            np.testing.assert_array_equal(found, np.asarray(adapter(part), dtype=np.float32))

    play(one, work)
    assert sum(len(part.answered) for part in parts) == 9 and len(parts[home].answered) == 7


class Fake:
    """A server that answers as it is told to."""

    def __init__(self, *replies: Reply | Exception) -> None:
        self.replies, self.asked, self.left = list(replies), 0, list[bool]()

    async def call(self, message: Message, leave: bool) -> Reply:
        self.asked += 1
        self.left.append(leave)
        await asyncio.sleep(0.005)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def ready(self) -> int:
        return 1


GOOD = Reply(200, (), b"{}")
AWAY = Reply(503, (("fozo-camera", "elsewhere"),), b"{}")
PLAIN = ServeConfig(config().models, state="x", timeout=2.0)


def fakes(first: Fake, second: Fake, key: str = f"{NAME} cam") -> list[Fake]:
    """Put two servers into the order in which a camera asks them."""
    return [first, second] if ranked(key, 2)[0] == 0 else [second, first]


def test_a_request_with_an_id_is_repeated_where_a_server_died() -> None:
    async def work(router: Router) -> None:
        assert (await router.route(message(frames(1), id="a"))).status == 200
        assert second.asked == 1 and second.left == [False]

    first, second = Fake(Died()), Fake(GOOD)
    play(Router(fakes(first, second), PLAIN, beat=9), work)

    async def without(router: Router) -> None:
        """Nobody knows whether it was learnt from, so the client has to decide."""
        reply = await router.route(message(frames(1)))
        assert reply.status == 503 and b"send it again" in reply.body and ("Retry-After", "1") in reply.headers
        assert second.asked == 0

    first, second = Fake(Died()), Fake(GOOD)
    play(Router(fakes(first, second), PLAIN, beat=9), without)


def test_a_server_that_is_silent_is_passed_over() -> None:
    """It neither answers nor breaks off, as when its machine has lost power."""

    class Silent(Fake):
        async def call(self, message: Message, leave: bool) -> Reply:
            await asyncio.Event().wait()
            raise AssertionError

        async def ready(self) -> int:
            return int(bool(await asyncio.Event().wait()))

    async def work(router: Router) -> None:
        assert (await router.route(message(frames(1), id="a"))).status == 200 and second.asked == 1
        assert (await router.route(message(frames(1)))).status == 200 and second.asked == 2

    second = Fake(GOOD)
    play(Router(fakes(Silent(GOOD), second), replace(PLAIN, timeout=20.0), beat=0.01, patience=0.05), work)


def test_who_has_it_is_told_to_let_it_go() -> None:
    async def work(router: Router) -> None:
        assert (await router.route(message(frames(1)))).status == 200
        assert second.left == [True]
        assert (await router.route(message(frames(1)))).status == 200 and second.asked == 1

    first, second = Fake(AWAY, GOOD), Fake(GOOD)
    play(Router(fakes(first, second), PLAIN, beat=9), work)


def test_a_camera_that_nobody_has_is_given_up_in_time() -> None:
    async def work(router: Router) -> None:
        reply = await router.route(message(frames(1)))
        assert reply.status == 504 and first.asked > 1 and second.asked > 1

    first, second = Fake(AWAY), Fake(AWAY)
    play(Router(fakes(first, second), replace(PLAIN, timeout=0.5), beat=9), work)


def test_requests_of_a_camera_keep_their_order_and_are_not_too_many() -> None:
    class Slow(Fake):
        async def call(self, message: Message, leave: bool) -> Reply:
            self.asked += 1
            own = self.asked
            await asyncio.sleep(0.01 / own)  # later ones would overtake
            return Reply(200, (), str(own).encode())

    async def work(router: Router) -> None:
        replies = await asyncio.gather(*(router.route(message(frames(1))) for _ in range(20)))
        taken = [reply.body for reply in replies if reply.status == 200]
        assert taken == [str(i + 1).encode() for i in range(17)] and [r.status for r in replies[17:]] == [429] * 3
        assert not router._turns

    play(Router([Slow(GOOD)], PLAIN, beat=9), work)


def test_what_is_no_request_is_refused_as_ever(settings: ServeConfig, parts: list[Mortal]) -> None:
    async def work(router: Router) -> None:
        assert (await router.route(Message("POST", f"/v2/models/{NAME}/infer", body=b"{"))).status == 400
        assert (await router.route(message(frames(1), model="other"))).status == 404
        assert (await router.route(Message("GET", "/v2/health/ready"))).status == 200
        assert json.loads((await router.route(Message("GET", f"/v2/models/{NAME}"))).body)["name"] == NAME
        for camera in "abc":
            assert (await router.route(message(frames(2), camera))).status == 200
        text = (await router.route(Message("GET", "/metrics"))).body.decode()
        counted = [line for line in text.splitlines() if line.startswith("fozo_images_total{")]
        assert len(counted) == 3 and all('server="' in line and line.endswith(" 2.0") for line in counted)
        assert text.count("# TYPE fozo_images_total counter") == 1

    play(Router(parts, settings), work)


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    secret = config(tmp_path, token="abc")
    part = LocalPart(secret)

    async def work(router: Router) -> None:
        assert (await router.route(Message("GET", "/metrics"))).status == 401
        assert (await router.route(message(frames(1)))).status == 401
        sent = message(frames(1))
        shown = replace(sent, headers=(*sent.headers, ("authorization", "Bearer abc")))
        assert (await router.route(shown)).status == 200

    try:
        play(Router([part], secret), work)
    finally:
        part.stop()


def test_several_servers_need_a_folder() -> None:
    with pytest.raises(fozo.FozoError, match="give state"):
        LocalPart(config())
    assert refusal(400, "no").headers == (("Content-Type", "application/json"),)
