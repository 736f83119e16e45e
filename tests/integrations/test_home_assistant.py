"""The Home Assistant example, against a stand-in for the MQTT client, on readings as ``fozo watch`` writes them."""

import json
import runpy
from typing import Any

import pytest

import fozo
from fozo.cli.watch import reading
from fozo.engines.blackbox import black_box
from tests.helpers import REPO
from tests.methods.test_frames import hazy, scenes


class Client:
    def __init__(self) -> None:
        self.messages: list[tuple[str, str]] = []

    def publish(self, topic: str, payload: str, qos: int, retain: bool) -> None:
        assert qos == 1 and retain
        self.messages.append((topic, payload))


@pytest.fixture
def module() -> dict[str, Any]:
    return runpy.run_path(str(REPO / "examples" / "home_assistant.py"))


def test_a_camera_announces_itself_and_turns_on_with_drift(module: dict[str, Any]) -> None:
    clean = scenes(48)[..., ::-1]
    engine = black_box(lambda images: "boxes", image_size=(48, 64), mean=0, std=1)
    adapter = fozo.adapter(engine, clean)
    reference = fozo.Reference.collect(adapter, clean, corruptions=False)
    monitor = fozo.Monitor(reference).watch(adapter)
    lines = []
    for frames in (scenes(8, seed=1), scenes(8, seed=2), hazy(scenes(16, seed=3))):
        adapter(frames[..., ::-1])
        lines += [json.dumps({"type": "event"}), json.dumps(reading(monitor.status, 0.0))]
    client = Client()
    module["publish"](client, "Front door", lines)
    announced = dict(client.messages[:2])
    assert sorted(announced) == [f"homeassistant/{kind}/fozo_front_door/config" for kind in ("binary_sensor", "sensor")]
    topics = {json.loads(text)["state_topic"] for text in announced.values()}
    assert topics == {"fozo/front_door/binary_sensor", "fozo/front_door/sensor"}
    problem = [text for topic, text in client.messages if topic == "fozo/front_door/binary_sensor"]
    assert problem == ["OFF", "ON"]  # what has not changed is not sent again
    health = [text for topic, text in client.messages if topic == "fozo/front_door/sensor"]
    assert health[0] == "no drift" and "contrast" in health[-1] and max(map(len, health)) <= 255


def test_long_sentences_are_cut_and_whole_in_the_attributes(module: dict[str, Any]) -> None:
    made = module["states"]("a", {"sentence": "x" * 300, "image": 3, "drift_ratio": 0.5, "drift": 0.0})
    assert len(made["fozo/a/sensor"]) == 255 and made["fozo/a/binary_sensor"] == "OFF"
    assert json.loads(made["fozo/a/attributes"])["sentence"] == "x" * 300
