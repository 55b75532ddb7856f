"""`ml-udf train-actor`: from what a home folder knows of a function to a network for its policy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ml_udf.cli.app import app
from server.ensemble.actor import ActorNetwork
from server.ensemble.fit import fit_combination
from server.scheduling.latency_model import LatencyModel
from tests.unit.ensemble.ensembles import drawn

NAMES = ("a", "b")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    told, labels = drawn([0.6, 0.9], rows=200)
    (tmp_path / "functions").mkdir()
    members = [
        {"model": name, "version": 3, "accuracy": each} for name, each in zip(NAMES, (0.6, 0.9), strict=True)
    ]
    fit = fit_combination(told, np.asarray(labels), members=NAMES).to_json()
    function = {"name": "f", "members": members, "fit": fit, "slo_ms": 50.0}
    (tmp_path / "functions" / "f.json").write_text(json.dumps(function))
    for name, most_s in zip(NAMES, (0.004, 0.02), strict=True):
        (tmp_path / "latencies" / name).mkdir(parents=True)
        latency = LatencyModel({1: 0.001, 64: most_s})
        (tmp_path / "latencies" / name / "3.json").write_text(json.dumps(latency.to_json()))
    return tmp_path


def run(home: Path, *words: str, function: str = "f") -> tuple[int, str]:
    out = str(home / "actor.json")
    asked = ["train-actor", function, "--home", str(home), "--out", out, "--updates", "2", *words]
    result = CliRunner().invoke(app, asked)
    return result.exit_code, result.output


def test_it_writes_a_network_for_the_functions_members(home: Path) -> None:
    status, told = run(home, "--rates", "200:3000")
    assert status == 0, told
    network = ActorNetwork.from_json(json.loads((home / "actor.json").read_text()))
    assert (network.members, network.devices) == (2, 1)


@pytest.mark.parametrize("rates", ["", "5", "0:5", "5:1", "a:b", "1:2:3"])
def test_rates_are_a_range(home: Path, rates: str) -> None:
    status, _ = run(home, "--rates", rates)
    assert status != 0
    assert not (home / "actor.json").exists()


def test_it_says_what_is_missing(home: Path) -> None:
    assert run(home, "--rates", "1:2", function="nobody")[0] != 0
    (home / "latencies" / "a" / "3.json").unlink()
    status, told = run(home, "--rates", "1:2")
    assert status != 0
    assert "latencies" in told.replace("\n", "")  # a long path is broken over lines
    function = json.loads((home / "functions" / "f.json").read_text())
    (home / "functions" / "f.json").write_text(json.dumps({**function, "fit": None}))
    assert "no fit" in run(home, "--rates", "1:2")[1]
