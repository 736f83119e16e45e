"""A camera's health in Home Assistant, by MQTT discovery: a sentence, and a problem sensor that turns on with drift.

    pip install paho-mqtt
    fozo watch model.onnx CAMERA --statistics clean.safetensors --events events.jsonl &
    tail -n +1 -F events.jsonl | python examples/home_assistant.py BROKER "Front door"

Both entities appear by themselves under a device of that name. Drift and camera faults (covered, frozen, black, turned)
are problems. Home Assistant takes states of at most 255 characters; the whole sentence is an attribute.
"""

import json
import re
import sys
from collections.abc import Iterable
from typing import Any

MOST = 255  # characters of a state


def discovery(name: str) -> dict[str, dict[str, object]]:
    """Discovery topics of a camera, and what is published there once."""
    key = re.sub(r"\W+", "_", name.lower())
    device = {"identifiers": [f"fozo_{key}"], "name": name, "manufacturer": "fozo"}
    parts: dict[str, dict[str, object]] = {
        "binary_sensor": {"name": "Problem", "device_class": "problem", "payload_on": "ON", "payload_off": "OFF"},
        "sensor": {"name": "Health", "icon": "mdi:camera-iris", "json_attributes_topic": f"fozo/{key}/attributes"},
    }
    return {
        f"homeassistant/{kind}/fozo_{key}/config": {
            **part, "unique_id": f"fozo_{key}_{kind}", "state_topic": f"fozo/{key}/{kind}", "device": device
        }
        for kind, part in parts.items()
    }  # fmt: skip


def states(name: str, reading: dict[str, Any]) -> dict[str, str]:
    """State topics of a camera, and what a reading of ``fozo watch`` means there."""
    sensor, health = (str(config["state_topic"]) for config in discovery(name).values())
    problem = bool(reading.get("drift")) or bool(reading.get("camera_faults"))
    attributes = {"sentence": reading["sentence"], "images": reading["image"], "drift_ratio": reading["drift_ratio"]}
    text = str(reading["sentence"])
    state = text if len(text) <= MOST else f"{text[: MOST - 1]}…"
    return {
        sensor: "ON" if problem else "OFF",
        health: state,
        f"{health.rpartition('/')[0]}/attributes": json.dumps(attributes),
    }


def publish(client: Any, name: str, lines: Iterable[str]) -> None:  # noqa: ANN401 - paho has no types
    """Announce the camera, then publish what changed with each reading."""
    for topic, config in discovery(name).items():
        client.publish(topic, json.dumps(config), qos=1, retain=True)
    last: dict[str, str] = {}
    for line in lines:
        if (reading := json.loads(line))["type"] == "reading":
            now = states(name, reading)
            for topic in now.keys() - {topic for topic in now if last.get(topic) == now[topic]}:
                client.publish(topic, now[topic], qos=1, retain=True)
            last = now


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: tail -F events.jsonl | python examples/home_assistant.py BROKER NAME")
    import paho.mqtt.client as mqtt

    made = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    made.connect(sys.argv[1])
    made.loop_start()
    publish(made, sys.argv[2], sys.stdin)
