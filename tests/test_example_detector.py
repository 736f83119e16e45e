"""The detector example: with a small stand-in everywhere, with YOLOX and real weather where these are."""

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.helpers import REPO
from tests.test_examples import write_frames

SIDE, CELLS = 64, 84  # of the stand-in: 8 x 8, 4 x 4 and 2 x 2 cells


def stand_in(path: Path) -> Path:
    """A graph with YOLOX's interface: one box of 16 px in the first cell, whose score is the blue of the square."""
    onnx = pytest.importorskip("onnx")
    helper, numpy_helper, kind = onnx.helper, onnx.numpy_helper, onnx.TensorProto.FLOAT
    fixed = np.zeros((1, CELLS, 7), dtype=np.float32)
    fixed[0, 0] = [1, 1, np.log(2), np.log(2), 1, 0, 0]
    blue = np.zeros((1, CELLS, 7), dtype=np.float32)
    blue[0, 0, 5] = 1 / 255
    weights = np.array([1, 0, 0], dtype=np.float32).reshape(1, 3, 1, 1)
    arrays = {"fixed": fixed, "blue": blue, "first": weights, "shape": np.array([1, 1, 1], dtype=np.int64)}
    nodes = [
        helper.make_node("Mul", ["images", "first"], ["b"]),
        helper.make_node("ReduceSum", ["b"], ["sum"], keepdims=1),
        helper.make_node("Reshape", ["sum", "shape"], ["total"]),
        helper.make_node("Mul", ["total", "blue"], ["scaled"]),
        helper.make_node("Mul", ["scaled", "pixels"], ["mean"]),
        helper.make_node("Add", ["mean", "fixed"], ["output"]),
    ]
    arrays["pixels"] = np.array([[[1 / SIDE**2]]], dtype=np.float32)
    given = helper.make_tensor_value_info("images", kind, [1, 3, SIDE, SIDE])
    output = helper.make_tensor_value_info("output", kind, [1, CELLS, 7])
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "stand-in", [given], [output], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: Path) -> list[tuple[int, int]]:
    """Numbers of boxes without and with fozo, of every frame."""
    monkeypatch.setattr(sys, "argv", ["detector.py", *map(str, arguments)])
    runpy.run_path(str(REPO / "examples" / "detector.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    found = [re.fullmatch(r"frame \d+: (\d+) boxes, (\d+) with fozo", line) for line in lines]
    return [(int(match[1]), int(match[2])) for match in found if match]


def test_it_runs_any_model_with_the_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clean = write_frames(tmp_path / "clean", 12, seed=0)
    live = write_frames(tmp_path / "live", 3, seed=1)
    model = stand_in(tmp_path / "stand-in.onnx")
    assert run(monkeypatch, capsys, model, clean, live, tmp_path / "out") == [(1, 1)] * 3
    pictures = sorted((tmp_path / "out").iterdir())
    assert len(pictures) == 3 and Image.open(pictures[0]).size == (2 * SIDE, SIDE)
    module = runpy.run_path(str(REPO / "examples" / "detector.py"))
    frame = next(iter(module["frames"](live, SIDE)))
    box = module["Detector"](model)(frame)[0]
    np.testing.assert_allclose(box[:4], [0, 0, 16, 16], atol=1e-5)
    assert box[4] == pytest.approx(frame[:, :, 0].mean() / 255, abs=1e-4)  # blue comes first, the border included
    assert box[5] == 0 and (frame[48:] == 114).all()
