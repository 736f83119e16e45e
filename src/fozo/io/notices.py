"""Events sent on to people: to a webhook, or to an MQTT broker that Home Assistant listens to.

    notices = Notices.open(["https://pager.example/fozo"], mqtt="mqtt://broker.local", secret=b"...")
    notices.send("gates", "gate-3", {"name": "drift", "image": 61, "text": "drift since image 58: ..."})

Nothing here waits: what cannot be delivered is kept within bounds, tried again, and in the end dropped and counted.
"""

import hashlib
import hmac
import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Protocol
from urllib.parse import SplitResult, urlsplit

from fozo.errors import FozoError
from fozo.io.system import installed_version

LOG = logging.getLogger("fozo.notices")
WAITING = 256  # notices that a receiver may be behind by; beyond, the oldest is dropped
TRIES = 6  # of a notice; the pauses between them are 1, 2, 4, 8 and 16 seconds
TIMEOUT = 10.0  # seconds for a webhook to answer
CLOSING = 5.0  # seconds at the end for what still waits
AGAIN = (408, 425, 429)  # codes below 500 after which a webhook is tried again
OVER = " over"  # how the name of an event ends that ends another
PASSING = ("drift changed", "guard")  # events that neither begin nor end a problem
MQTT_PORTS = {"mqtt": 1883, "mqtts": 8883}
DISCOVERY = "homeassistant"  # the prefix under which Home Assistant looks for devices

MAX_STATE = 255  # characters of a state in Home Assistant
STATUS = "fozo/status"

Notice = Mapping[str, Any]


class Receiver(Protocol):
    """Where notices go."""

    def send(self, notice: Notice) -> None: ...
    def close(self) -> None: ...


class Notices:
    """All receivers of a process."""

    def __init__(self, receivers: Sequence[Receiver] = ()) -> None:
        self._receivers = receivers

    @classmethod
    def open(cls, webhooks: Sequence[str] = (), mqtt: str | None = None, secret: bytes = b"") -> "Notices":
        """Check the addresses, and connect in the background."""
        with ExitStack() as stack:
            receivers = list[Receiver]()
            for url in webhooks:
                receivers.append(Webhook(url, secret))
                stack.callback(receivers[-1].close)
            if mqtt is not None:
                receivers.append(Mqtt(mqtt))
            stack.pop_all()
        return cls(receivers)

    def send(self, model: str, camera: str, event: Mapping[str, Any]) -> None:
        notice = {"model": model, "camera": camera, "event": event}
        for receiver in self._receivers:
            receiver.send(notice)

    def close(self) -> None:
        """Deliver what waits, for a few seconds at most."""
        for receiver in self._receivers:
            receiver.close()


class Webhook:
    """POSTs each notice as JSON, in order, from a thread of its own.

    With a secret, ``X-Fozo-Signature: sha256=HEX`` is the HMAC of the body. ``X-Fozo-Delivery`` is the same for each
    try of a notice. What is answered with 2xx is delivered; redirects are not followed.
    """

    def __init__(self, url: str, secret: bytes = b"", pause: float = 1.0) -> None:
        self._address = _address(url, ("http", "https"), "webhook")
        self._path = (self._address.path or "/") + (f"?{self._address.query}" if self._address.query else "")
        self._secret = secret
        self._pause = pause
        self._waiting = deque[Notice](maxlen=WAITING)
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self.dropped = 0
        self._thread = threading.Thread(target=self._work, name="fozo-webhook", daemon=True)
        self._thread.start()

    def send(self, notice: Notice) -> None:
        with self._changed:
            if len(self._waiting) == WAITING:
                self._drop(self._waiting[0], "too many wait")
            self._waiting.append(notice)
            self._changed.notify()

    def close(self) -> None:
        self._closing.set()
        with self._changed:
            self._changed.notify()
        self._thread.join(CLOSING)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing.is_set())
                if not self._waiting:
                    return
                notice = self._waiting.popleft()
            self._deliver(notice)

    def _deliver(self, notice: Notice) -> None:
        body = json.dumps(notice, allow_nan=False).encode()
        headers = {
            "Content-Type": "application/json", "User-Agent": f"fozo/{installed_version()}",
            "X-Fozo-Delivery": hashlib.sha256(body).hexdigest()[:32],
        }  # fmt: skip
        if self._secret:
            headers["X-Fozo-Signature"] = "sha256=" + hmac.new(self._secret, body, hashlib.sha256).hexdigest()
        reason = ""
        for number in range(TRIES):
            if number and self._closing.wait(self._pause * 2 ** (number - 1)):
                break
            try:
                code = self._post(body, headers)
            except (OSError, HTTPException) as error:
                reason = str(error) or type(error).__name__
                continue
            if code < 300:
                return
            reason = f"it answered {code}"
            if code < 500 and code not in AGAIN:
                break
        self._drop(notice, reason)

    def _post(self, body: bytes, headers: Mapping[str, str]) -> int:
        kind: Callable[..., HTTPConnection] = HTTPConnection if self._address.scheme == "http" else HTTPSConnection
        connection = kind(self._address.hostname, self._address.port, timeout=TIMEOUT)
        try:
            connection.request("POST", self._path, body, dict(headers))
            return connection.getresponse().status
        finally:
            connection.close()

    def _drop(self, notice: Notice, reason: str) -> None:
        self.dropped += 1
        name = notice["event"].get("name")
        LOG.warning("webhook %s: %r of %r was dropped: %s", self._address.hostname, name, notice["camera"], reason)


class Mqtt:
    """Publishes each camera as sensors *problem* and *health* of Home Assistant, and each event as JSON.

    ``fozo/MODEL/CAMERA/problem`` is ON while anything is wrong, ``.../event`` the latest event,
    ``.../sentence`` its text, and ``fozo/status``
    tells whether fozo is there. paho connects, connects again, and keeps what waits within bounds.
    """

    def __init__(self, url: str) -> None:
        try:
            from paho.mqtt.client import Client
            from paho.mqtt.enums import CallbackAPIVersion
        except ImportError as error:
            raise FozoError("MQTT needs paho-mqtt; install it with pip install 'fozo[mqtt]'") from error
        address = _address(url, tuple(MQTT_PORTS), "MQTT broker", users=True)
        self._problems = dict[str, set[str]]()
        self._lock = threading.Lock()
        self._client = Client(CallbackAPIVersion.VERSION2)
        if address.username is not None:
            self._client.username_pw_set(address.username, address.password)
        if address.scheme == "mqtts":
            self._client.tls_set()
        self._client.max_queued_messages_set(WAITING)
        self._client.will_set(STATUS, "offline", qos=1, retain=True)
        self._client.on_connect = lambda client, *_: client.publish(STATUS, "online", qos=1, retain=True)
        self._client.connect_async(str(address.hostname), address.port or MQTT_PORTS[address.scheme])
        self._client.loop_start()
        self._last: Any = None

    def send(self, notice: Notice) -> None:
        model, camera = notice["model"], notice["camera"]
        topic = f"fozo/{_topic(model)}/{_topic(camera)}"
        with self._lock:
            if topic not in self._problems:
                self._problems[topic] = set()
                self._announce(topic, model, camera)
            problems = self._problems[topic]
            follow(problems, notice["event"]["name"])
            self._publish(f"{topic}/event", json.dumps(notice["event"], allow_nan=False))
            self._publish(f"{topic}/problem", "ON" if problems else "OFF")
            self._publish(f"{topic}/sentence", notice["event"]["text"][:MAX_STATE])

    def close(self) -> None:
        if self._last is not None and self._client.is_connected():
            self._last.wait_for_publish(CLOSING)
        self._client.publish(STATUS, "offline", qos=1, retain=True)
        self._client.disconnect()
        self._client.loop_stop()

    def _publish(self, topic: str, text: str) -> None:
        self._last = self._client.publish(topic, text, qos=1, retain=True)

    def _announce(self, topic: str, model: str, camera: str) -> None:
        """Tell Home Assistant that there are two such sensors."""
        unique = "fozo_" + hashlib.sha256(topic.encode()).hexdigest()[:16]
        shared = {
            "json_attributes_topic": f"{topic}/event", "availability_topic": STATUS,
            "device": {"identifiers": [unique], "name": f"{model} {camera}", "manufacturer": "fozo"},
        }  # fmt: skip
        for kind, entity, name in (("binary_sensor", "problem", "Problem"), ("sensor", "sentence", "Health")):
            sensor: dict[str, object] = {"name": name, "unique_id": f"{unique}_{entity}", **shared}
            sensor["state_topic"] = f"{topic}/{entity}"
            if kind == "binary_sensor":
                sensor["device_class"] = "problem"
            self._publish(f"{DISCOVERY}/{kind}/{unique}/config", json.dumps(sensor))


def follow(problems: set[str], event: str) -> None:
    """Keep the names of what is wrong with a camera as its events come."""
    if event.endswith(OVER):
        problems.discard(event.removesuffix(OVER))
    elif event not in PASSING:
        problems.add(event)


def _topic(name: str) -> str:
    """A name as one level of a topic: ``/``, ``+`` and ``#`` have a meaning there."""
    return "".join("_" if letter in "/+#" or not letter.isprintable() else letter for letter in name) or "_"


def _address(url: str, schemes: Sequence[str], what: str, *, users: bool = False) -> SplitResult:
    try:
        address = urlsplit(url)
        address.port  # noqa: B018 - a wrong one raises here
    except ValueError as error:
        raise FozoError(f"the {what} {url[:200]!r} is no address: {error}") from error
    if address.scheme not in schemes or not address.hostname:
        beginnings = " or ".join(f"{scheme}://" for scheme in schemes)
        raise FozoError(f"the {what} {url[:200]!r} is no address; give one that begins with {beginnings}")
    if address.username is not None and not users:
        raise FozoError(f"the address of the {what} {address.hostname} has a user in it; leave it out")
    return address
