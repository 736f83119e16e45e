"""Alerts and dashboard: their metrics exist, and the rules fire when they should."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fozo.serve.metrics import Metrics
from tests.helpers import REPO

RULES = REPO / "deploy" / "alerts.yml"
PROMTOOL = shutil.which("promtool")
CASES = """
rule_files: [RULES]
evaluation_interval: 30s
tests:
  - interval: 30s
    input_series:
      - {series: 'fozo_drift_ratio{model="gates",stream="gate-3"}', values: "0.5x10 2.5x60"}
      - {series: 'fozo_fault{model="gates",stream="gate-3",kind="black"}', values: "0x10 1x20 0x40"}
      - {series: 'fozo_silent{model="gates",stream="gate-4"}', values: "0x10 1x20 0x40"}
      - {series: 'fozo_relative_accuracy{model="gates",stream="gate-4"}', values: "0.8x70"}
    alert_rule_test:
      - {eval_time: 5m, alertname: FozoDrift, exp_alerts: []}
      - eval_time: 20m
        alertname: FozoDrift
        exp_alerts:
          - exp_labels: {severity: ticket, model: gates, stream: gate-3}
            exp_annotations:
              summary: "The images of gate-3 (gates) have drifted: 2.5 of the threshold"
              runbook: docs/runbook.md#drift
      - eval_time: 8m
        alertname: FozoFault
        exp_alerts:
          - exp_labels: {severity: page, model: gates, stream: gate-3, kind: black}
            exp_annotations: {summary: "gate-3 (gates): black", runbook: "docs/runbook.md#faults"}
      - {eval_time: 30m, alertname: FozoFault, exp_alerts: []}
      - eval_time: 8m
        alertname: FozoSilent
        exp_alerts:
          - exp_labels: {severity: page, model: gates, stream: gate-4}
            exp_annotations: {summary: "No image of gate-4 (gates) comes", runbook: "docs/runbook.md#silent"}
      - {eval_time: 30m, alertname: FozoAccuracy, exp_alerts: []}
"""


@pytest.mark.parametrize("name", ["alerts.yml", "grafana.json"])
def test_what_rules_and_dashboard_ask_for_is_measured(name: str) -> None:
    names = {metric.name for metric in Metrics().registry.collect()}
    measured = names | {f"{metric}_{ending}" for metric in names for ending in ("total", "bucket")}
    text = (REPO / "deploy" / name).read_text()
    asked = set(re.findall(r"fozo_[a-z_]+(?=[{ \[)=<>]|$)", text, re.MULTILINE))
    assert asked and asked <= measured, asked - measured


def test_every_alert_has_its_place_in_the_runbook() -> None:
    page = (REPO / "docs" / "runbook.md").read_text()
    anchors = {heading.lower() for heading in re.findall(r"^## (\w+)$", page, re.MULTILINE)}
    assert set(re.findall(r"runbook\.md#(\w+)", RULES.read_text())) <= anchors


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool of Prometheus, which is not on this machine")
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    (tmp_path / "cases.yml").write_text(CASES.replace("RULES", str(RULES)))
    run = subprocess.run([str(PROMTOOL), "test", "rules", tmp_path / "cases.yml"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_dashboard_has_a_panel_for_each_kind_of_event() -> None:
    panels = json.loads((REPO / "deploy" / "grafana.json").read_text())["panels"]
    asked = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    assert all(name in asked for name in ("fozo_drift_ratio", "fozo_fault", "fozo_silent", "fozo_expected_accuracy"))
    places = [tuple(panel["gridPos"].values()) for panel in panels]
    assert len(set(places)) == len(places)
