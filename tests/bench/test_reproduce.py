"""The command that reproduces the paper's Table 1 goes through ImageNet's and ImageNet-C's own layouts to a report."""

import csv
import shlex
from pathlib import Path

from safetensors.torch import save_file
from typer.testing import CliRunner

from fozo.cli import app
from fozo.data.corruptions import KINDS
from fozo.data.sets import imagenet_wnids
from fozo.models.vit import Architecture
from tests.data.conftest import plant_noise
from tests.helpers import REPO, random_vit

GROUPS = {"noise": KINDS[:3], "blur": KINDS[3:7], "weather": KINDS[7:11], "digital": KINDS[11:]}
IMAGES = 64
STREAMED = 4
NARROW = Architecture((224, 224), (16, 16), 3, 64, 12, 1, 256, 1000)
"""A ViT-B/16 in all but its width, which is a twelfth: the whole command takes seconds."""


def test_the_command_of_the_page_reproduces_table_1(tmp_path: Path) -> None:
    page = (REPO / "docs" / "reproduce.md").read_text(encoding="utf-8")
    command = page[page.index("fozo bench table1") :].partition("fozo report")[0].replace("\\\n", " ")
    words = shlex.split(command)[1:]
    model = words[words.index("--model") + 1].removeprefix("timm:")
    weights = tmp_path / f"{model}.safetensors"
    save_file(random_vit(NARROW).state_dict(), weights)
    wnids = imagenet_wnids()
    names = [f"{wnids[15 * number]}/ILSVRC2012_val_{number:08d}.JPEG" for number in range(IMAGES)]
    plant_noise(tmp_path / "clean", dict.fromkeys(names, (256, 300)))
    stored = {
        f"{group}/{kind}/5/{name}": (224, 224)
        for group, kinds in GROUPS.items()
        for kind in kinds
        for name in names[:STREAMED]
    }
    plant_noise(tmp_path / "imagenet-c", stored)
    folders = {"imagenet=DIR": f"imagenet={tmp_path}/clean", "imagenet-c=DIR": f"imagenet-c={tmp_path}/imagenet-c"}
    given = [folders.get(word, word) for word in words]
    given[given.index("--model") + 1] = str(weights)
    given[given.index("--images") + 1] = str(STREAMED)
    out = tmp_path / "runs"
    run = CliRunner().invoke(app, [*given, "--calibration", "32", "--threads", "1", "--out", str(out)])
    assert run.exit_code == 0, run.output
    beside = [line for line in run.output.splitlines() if "in the paper" in line]
    methods = [line.partition(",")[0] for line in beside]
    assert methods == ["NoAdapt", "LAME", "T3A", "FOA", "ZOA", "FOZO"]
    assert "minutes of an RTX 4090" in run.output
    report = CliRunner().invoke(app, ["report", str(out), "-o", str(tmp_path / "report.html")])
    assert report.exit_code == 0, report.output
    with (tmp_path / "report.csv").open(newline="") as file:
        averages = {row["row"]: row for row in csv.DictReader(file) if row["column"] == "Avg"}
    assert averages["FOZO"]["paper"] == "59.5200" and averages["FOZO"]["ours"]
