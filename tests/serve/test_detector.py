"""A detector behind the server: its outputs by their own names, images equalised for each camera, drift in words."""

import io
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

import fozo
from fozo.engines.load import LoadOptions
from fozo.monitor import Reference
from fozo.serve.app import InferenceServer
from fozo.serve.config import ModelConfig, ServeConfig
from tests.refusals import refuses
from tests.serve.conftest import NAME, foggy, running
from tests.serve.test_cameras import header
from tests.serve.test_server import ask
from tests.serve.test_state import folder, forged

SIDE = 32
PATH = f"/v2/models/{NAME}/infer"


def stand_in(path: Path, batch: int | str = "N", other: str = "labels") -> Path:
    """Two outputs and no logits: a column of colours for each image, and which colour is strongest.

    Where the batch is fixed, the second is of all images together, and of numbers that are not finite.
    """
    onnx = pytest.importorskip("onnx")
    helper, kinds, fixed = onnx.helper, onnx.TensorProto, isinstance(batch, int)
    nodes = [
        helper.make_node("ReduceMean", ["pixels"], ["boxes"], axes=[3], keepdims=0),
        helper.make_node("ReduceMean", ["pixels"], ["colour"], axes=[2, 3], keepdims=0),
        helper.make_node("ArgMax", ["colour"], [other if not fixed else "strongest"], axis=1, keepdims=0),
    ]
    if fixed:
        nodes += [
            helper.make_node("ReduceSum", ["colour"], ["sum"], keepdims=0),
            helper.make_node("Sub", ["sum", "sum"], ["zero"]),
            helper.make_node("Div", ["sum", "zero"], [other]),
        ]
    given = helper.make_tensor_value_info("pixels", kinds.FLOAT, [batch, 3, SIDE, SIDE])
    outputs = [
        helper.make_tensor_value_info("boxes", kinds.FLOAT, [batch, 3, SIDE]),
        helper.make_tensor_value_info(other, *((kinds.FLOAT, []) if fixed else (kinds.INT64, [batch]))),
    ]
    graph = helper.make_graph(nodes, "stand-in", [given], outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def scenes(count: int, seed: int = 0) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 256, (count, SIDE // 4, SIDE // 4, 3), dtype=np.uint8)
    return coarse.repeat(4, axis=1).repeat(4, axis=2)


def settings(model: Path, load: LoadOptions, clean: np.ndarray, state: Path | None = None) -> ServeConfig:
    """Calibrate as a user would, and serve."""
    stats, reference = model.with_suffix(".safetensors"), model.with_suffix(".monitor.safetensors")
    if not stats.exists():
        adapter = fozo.adapter(fozo.load_engine(model, load), clean)
        adapter.statistics.save(stats)
        Reference.collect(adapter, clean, sample=3).save(reference)
    served = ModelConfig(NAME, str(model), str(stats), str(reference), load=load)
    return ServeConfig((served,), state=None if state is None else str(state), port=0)


@pytest.fixture
def small(tmp_path: Path) -> ServeConfig:
    return settings(stand_in(tmp_path / "m.onnx"), LoadOptions(mean=0.0, std=1.0), scenes(64), tmp_path / "state")


def loop(config: ServeConfig) -> fozo.Method[Any, Any]:
    """An adapter as the server's cameras have, to compare with."""
    model = config.models[0]
    return fozo.adapter(fozo.load_engine(model.model, model.load), model.statistics)


def png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def test_its_outputs_are_passed_through(small: ServeConfig) -> None:
    """As an adapter in a loop gives them, for cameras in turn; by name, as bytes and as JSON; repeated, restarted."""
    streams = {"clear": scenes(12, seed=1), "fog": foggy(scenes(12, seed=2))}
    adapters = {name: loop(small) for name in streams}
    for start in (0, 6):  # with a restart between
        with running(small) as (url, _):
            tables = httpx.get(f"http://{url}/v2/models/{NAME}").json()
            assert tables["outputs"] == [
                {"name": "boxes", "datatype": "FP32", "shape": [-1, 3, SIDE]},
                {"name": "labels", "datatype": "INT64", "shape": [-1]},
                {"name": "drift", "datatype": "FP32", "shape": [4]},
            ]
            for i in range(start, start + 6, 2):
                for name, images in streams.items():
                    wanted: Any = adapters[name](images[i : i + 2])
                    for binary in (True, False):  # the second is a repetition
                        found = ask(url, images[i : i + 2], sequence_id=name, request_id=str(i), binary=binary)
                        np.testing.assert_allclose(found.as_numpy("boxes"), wanted["boxes"], rtol=1e-6)
                        np.testing.assert_array_equal(found.as_numpy("labels"), wanted["labels"])
            again = ask(url, streams["fog"][start : start + 2], sequence_id="fog", request_id=str(start))
            assert again.as_numpy("boxes").dtype == np.float32 and again.as_numpy("labels").dtype == np.int64
    assert small.state is not None
    assert all(header(Path(small.state), name)["images"] == 12 for name in streams)
    assert not list(Path(small.state).rglob("*.refused"))
    plain: Any = fozo.NoAdapt(loop(small).engine)(streams["fog"][10:])
    assert np.abs(plain["boxes"] - wanted["boxes"]).max() > 0.05  # the fog was taken away before the detector


def test_drift_in_words_and_no_expected_accuracy(small: ServeConfig) -> None:
    with running(small) as (url, _):
        said = ask(url, foggy(scenes(16, 3)), sequence_id="a", parameters={"drift": True}).get_response()["parameters"]
        assert said["is_drift"] == 1 and "contrast" in said["sentence"] and "expected_accuracy" not in said
        query = {"sequence_id": "a", "expected_accuracy": "true"}
        kind = {"Content-Type": "image/png"}
        refused = httpx.post(f"http://{url}{PATH}", params=query, content=png(scenes(1)[0]), headers=kind)
        assert refused.status_code == 400 and "expected accuracy" in refused.json()["error"]
        metrics = httpx.get(f"http://{url}/metrics").text
        assert 'fozo_drift_detected{model="fashion",stream="a"} 1.0' in metrics and "expected_accuracy{" not in metrics


def test_another_size_is_refused(small: ServeConfig) -> None:
    """Boxes of a picture that was cropped would be of another picture; nothing is learnt from it."""
    other = np.zeros((1, SIDE, 2 * SIDE, 3), np.uint8)
    with running(small) as (url, server):
        for images in (
            other,
            other[0],
            np.array([png(other[0])], dtype=object),
            np.zeros((1, 3, SIDE, 64), np.float32),
        ):
            with pytest.raises(Exception, match=f"{2 * SIDE}x{SIDE}|{SIDE}, {2 * SIDE}") as caught:
                ask(url, images, sequence_id="a")
            assert caught.value.status() == "400"  # type: ignore[attr-defined]
        with pytest.raises(Exception, match="ask for boxes, labels, expected_accuracy, drift"):
            ask(url, scenes(1), outputs=[_output("logits")])
        assert server.pool is not None and server.pool.cameras == 0


def _output(name: str) -> Any:
    import tritonclient.http as triton

    return triton.InferRequestedOutput(name)


def test_what_json_cannot_say_is_sent_as_bytes(tmp_path: Path) -> None:
    """And a file for one image at a time whose outputs cannot be put together says so."""
    config = settings(stand_in(tmp_path / "m.onnx", 1, "scores"), LoadOptions(mean=0.0, std=1.0), scenes(16))
    with running(config) as (url, _):
        kind = {"Content-Type": "image/png"}
        refused = httpx.post(f"http://{url}{PATH}?id=1", content=png(scenes(1)[0]), headers=kind)
        assert refused.status_code == 400 and "not finite" in refused.json()["error"]
        found = ask(url, scenes(1), sequence_id="a")
        assert found.as_numpy("scores").shape == () and np.isinf(found.as_numpy("scores"))
        with pytest.raises(Exception, match="cannot be put together"):
            ask(url, scenes(2), sequence_id="a")


@pytest.mark.parametrize("name", ["drift", "expected_accuracy"])
def test_an_output_with_a_name_of_the_server_is_refused_at_the_start(tmp_path: Path, name: str) -> None:
    model = stand_in(tmp_path / "m.onnx", other=name)
    config = ServeConfig((ModelConfig(NAME, str(model), method="noadapt"),))
    refuses(f"an output is called {name}", InferenceServer, config)


def test_a_detector_without_a_front_end(tmp_path: Path) -> None:
    model = stand_in(tmp_path / "m.onnx")
    load = LoadOptions(mean=0.0, std=1.0)
    with running(ServeConfig((ModelConfig(NAME, str(model), method="noadapt", load=load),), port=0)) as (url, _):
        found = ask(url, foggy(scenes(2)), sequence_id="a").as_numpy("boxes")
    np.testing.assert_allclose(found, foggy(scenes(2)).mean(axis=2).transpose(0, 2, 1) / 255, rtol=1e-5)


def test_forged_outputs_are_set_aside(small: ServeConfig) -> None:
    def change(owner: dict[str, Any], values: dict[str, Any]) -> None:
        del values["past.responses.0.outputs.1.data"]

    state = Path(str(small.state))
    with running(small) as (url, _):
        ask(url, scenes(1), sequence_id="cam", request_id="1")
    forged(change)(folder(state))
    with running(small) as (url, _):
        ask(url, scenes(1), sequence_id="cam", request_id="1")
    assert header(state, "cam")["images"] == 1 and len(list(state.rglob("*.refused"))) == 1
