"""`ml-udf simulate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from ml_udf.cli.app import app
from ml_udf.cli.chart import line_chart
from ml_udf.cli.console import console


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["simulate", *words, "--duration-s", "0.5"])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_it_compares_policies_and_the_same_seed_gives_the_same_bytes() -> None:
    words = (
        "--functions",
        "3",
        "--load",
        "1.2",
        "--arrivals",
        "bursty",
        "--jitter",
        "0.1",
        "--seeds",
        "2",
        "--json",
    )
    first = run(*words)
    assert run(*words) == first != run(*words, "--seed", "9")
    policies = json.loads(first)["policies"]
    assert list(policies) == ["goodput", "window", "clockwork", "greedy"]
    for runs in policies.values():
        assert len(runs) == 2
        total = runs[0]["total"]
        assert total["offered"] == total["good"] + total["late"] + total["refused"] > 500


def test_its_table_names_each_policy() -> None:
    table = run(
        "--policy", "goodput", "--policy", "aimd", "--devices", "2", "--places", "1", "--swap-ms", "5"
    )
    assert "goodput" in table
    assert "aimd" in table


def test_latencies_and_arrivals_come_from_files_too(tmp_path: Path) -> None:
    profile, batches, trace = tmp_path / "profile.json", tmp_path / "batches.csv", tmp_path / "trace.txt"
    profile.write_text('{"1": 0.005, "64": 0.021}')
    batches.write_text("rows,seconds\n1,0.005\n64,0.021\n64,0.023\n64,0.022\n")
    trace.write_text("\n".join(str(number / 100) for number in range(40)))
    for latency in (profile, batches):
        words = ("--latency", str(latency), "--arrivals", str(trace), "--policy", "goodput", "--json")
        assert json.loads(run(*words))["policies"]["goodput"][0]["total"]["good"] == 40


def sized(*words: str) -> dict[str, Any]:
    """Ten models of 100 MB by Zipf's law on one device, of which the rows take a fifth."""
    words = (*words, "--functions", "10", "--zipf", "1", "--model-bytes", "100e6", "--policy", "goodput")
    load = ("--load", "0.2", "--slo-ms", "200", "--link-bytes-per-s", "5e9", "--json")
    (result,) = json.loads(run(*words, *load))["policies"]["goodput"]
    return dict(result)


def test_memory_that_holds_every_model_is_enough_and_less_is_paid_in_loads() -> None:
    enough, little = sized("--device-bytes", "1e9"), sized("--device-bytes", "200e6")
    assert enough["swaps"] == 0 < little["swaps"]
    assert enough["total"]["good"] == enough["total"]["offered"]
    assert little["total"]["good"] < little["total"]["offered"]


def test_the_first_function_is_the_most_popular() -> None:
    offered = [each["offered"] for each in sized()["functions"].values()]
    assert offered[0] > 5 * offered[9] > 0
    even = json.loads(run("--functions", "2", "--policy", "goodput", "--load", "0.5", "--json"))
    first, second = (each["offered"] for each in even["policies"]["goodput"][0]["functions"].values())
    assert first < 1.3 * second


def test_eighty_columns_hold_every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_width", 80)
    assert "…" not in run("--load", "1.5")
    assert "100.00%" in run("--load", "0.5", "--policy", "goodput")


def test_it_draws_what_was_overdue_over_time(tmp_path: Path) -> None:
    plot = tmp_path / "overdue.svg"
    run("--arrivals", "sine", "--load", "1.5", "--plot", str(plot))
    drawn = ElementTree.fromstring(plot.read_text())
    names = [element.text for element in drawn.iter() if element.tag.endswith("text")]
    assert {"arriving", "goodput", "window", "clockwork", "greedy"} <= set(names)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--policy", "fastest"), "no batching policy"),
        (("--latency", "fast"), "rows:milliseconds"),
        (("--latency", "1:-5"), "latency profile"),
        (("--arrivals", "/no/such/trace"), "cannot be read"),
        (("--batch-sizes", "a,b"), "16,32,48,64"),
        (("--model-bytes", "large"), "50e6,240e6"),
        (("--model-bytes", "50e6,-1"), "50e6,240e6"),
        (("--placement", "anywhere"), "no placement policy"),
        (("--plot", "/no/such/folder/plot.svg"), "cannot be written"),
    ],
)
def test_what_cannot_be_simulated_is_said(words: tuple[str, ...], complaint: str) -> None:
    result = CliRunner().invoke(app, ["simulate", *words, "--duration-s", "0.1"])
    assert result.exit_code == 1
    assert complaint in " ".join(result.output.split())


def test_a_chart_needs_something_to_draw() -> None:
    with pytest.raises(ValueError, match="two points"):
        line_chart("t", "x", "y", [1.0], {"a": [1.0]})
    assert "&lt;b&gt;" in line_chart("<b>", "x", "y", [0.0, 1.0], {"a": [0.0, 0.0]})
