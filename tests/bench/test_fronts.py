"""The studies of front ends: the rule that chooses, what it costs, squares around objects, and refusals."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.detection import ANCHORS, around_largest, drawn, read_ssd
from benchmarks.detectors import choice_table
from benchmarks.fronts import CLASSES, Judged, chosen, percent, summary
from fozo.data.groups import CLASSES as IMAGENET
from tests.helpers import REPO


@pytest.mark.parametrize(
    ("shift", "spread", "expected"),
    [(-1.0, 0.1, 0), (-0.01, 1.0, 1), (1.0, 0.1, 1)],
    ids=["clearly less", "less by chance", "more"],
)
def test_another_candidate_is_chosen_only_beyond_one_standard_error(shift: float, spread: float, expected: int) -> None:
    noise = spread * np.resize([1.0, -1.0], 32)
    witness = np.stack([np.full(32, 2.0) + shift + noise, np.full(32, 2.0), np.full(32, 5.0)])
    assert chosen(witness, default=1) == expected


def test_a_summary_compares_the_choice_with_the_best_fixed_candidate() -> None:
    plain, tokens = np.array([1.0, 1, 1, 0]), np.array([0.0, 0, 1, 0])
    values = {"fog": [plain, tokens, tokens, plain], "snow": [tokens, plain, tokens, tokens]}
    judged = {name: Judged(4, 0, 1.1, [percent(each) for each in some]) for name, some in values.items()}
    rows = {(row["domain"], row["arm"]): row for row in summary("ViT", judged)}
    assert [rows["fog", arm]["value"][:2] for arm in ("plain", "tokens", "chosen", "labels")] == [
        "75",
        "25",
        "75",
        "75",
    ]
    assert rows["mean", "labels"]["value"] == "75.00" and rows["mean", "passes"]["value"] == "1.10"
    best = rows["mean", "chosen"]
    assert (best["value"], best["difference"], best["half_width"]) == ("50.00", "0.00", "0.00")
    assert float(rows["mean", "labels"]["difference"]) == 25 and float(rows["mean", "labels"]["half_width"]) > 10


def test_draws_begin_with_every_image_once() -> None:
    draws = drawn(5, 20)
    assert draws.shape == (21, 5) and (draws[0] == 1).all() and (draws.sum(axis=1) == 5).all()


def test_a_square_is_around_the_largest_object_of_the_classes(tmp_path: Path) -> None:
    picture = np.zeros((100, 200, 3), dtype=np.uint8)
    picture[20:60, 140:160] = 200
    Image.fromarray(picture).save(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("0 0.5 0.5 1 1\n2 0.75 0.4 0.1 0.4\n2 0.1 0.1 0.01 0.01\n")
    square, label = around_largest(tmp_path / "a.png", CLASSES, 16) or (picture, 0)
    assert label == 2 and square.shape == (60, 60, 3)
    assert (np.argwhere(square[..., 0] > 100).min(axis=0) == (10, 20)).all()  # in the middle
    assert around_largest(tmp_path / "a.png", (7,), 16) is None


def test_classes_of_imagenet_belong_to_one_object() -> None:
    columns = [column for group in CLASSES.values() for column in group]
    assert len(set(columns)) == len(columns) and min(columns) >= 0 and max(columns) < IMAGENET


def test_ssd_s_categories_become_coco_s_classes() -> None:
    boxes, scores = np.zeros((ANCHORS, 4)), np.zeros((ANCHORS, 90))
    boxes[3], scores[3, 12], scores[3, 11] = (0.25, 0, 0.5, 1), 0.9, 0.8  # category 13, stop sign; 12 has no class
    found = read_ssd(np.concatenate([boxes.ravel(), scores.ravel()]))
    assert found.classes.tolist() == [11] and found.boxes.tolist() == [[0, 104, 416, 208]]


def test_a_study_says_what_it_needs() -> None:
    command = [sys.executable, "-m", "benchmarks.fronts", "dark", "--images", "x"]
    run = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stderr.count("\n")) == (2, 1) and "--images, --data, --models" in run.stderr


def test_the_page_s_verdict_follows_from_the_interval() -> None:
    rows = [
        {"model": model, "domain": "mean", "arm": arm, "value": passes, "difference": gain, "half_width": "0.5"}
        for model, gain, passes in (("A", "0.6", "1.1"), ("B", "-0.4", "1"), ("C", "-0.6", "1"), ("D", "0.6", "1.2"))
        for arm in ("plain", "tokens", "detector", "chosen", "labels", "passes")
    ]
    text = choice_table(rows)
    assert "| **+0.6 ± 0.5** | -0.4 ± 0.5 | *-0.6 ± 0.5* |" in text and "at more than 1.1 passes, for D." in text
    assert all(words in text for words in ("place for A.", "costs points for C.", "no significant difference for B."))
