"""The benchmarks of the papers' figures run what ships, and show what they are to show, small."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from ml_udf.cli.chart import line_chart
from server.ensemble.fit import combined
from tests.benchmarks import clipper, ensembles_rafiki
from tests.benchmarks import clipper_contexts as contexts
from tests.benchmarks import clipper_failure as failure
from tests.benchmarks import clipper_stragglers as stragglers
from tests.benchmarks.clipper_data import failing_split


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Members are trained once for all that ask for the same split: what they answer is kept here."""
    return tmp_path_factory.mktemp("figures")


@pytest.fixture(autouse=True)
def _results_of_their_own(results, monkeypatch):
    monkeypatch.chdir(results)


def test_figure_8_every_contender_answers_every_query_and_what_ships_recovers():
    found = failure.runs(0, "wrong classes", 1.0, 2000)
    assert set(found) == set(failure.CONTENDERS)
    assert all(len(each.curve) == failure.POINTS for each in found.values())
    assert all(each.curve[-1] == pytest.approx(each.whole, abs=1e-3) for each in found.values())
    assert found["best member"].failing > 90, "the member that fails names wrong classes"
    assert found[failure.OURS].failing < 0.6 * found["fixed weights"].failing
    assert found[failure.BOUND].whole < found[failure.OURS].whole


def test_figure_8_without_labels_what_learns_answers_by_its_first_weights():
    split = failing_split(0, 2000)
    stream = failure.stream_of(split, 0, "garbled input", 0.0)
    wrong, _ = failure.by_learned_weights(stream)
    assert not stream.labelled.any()
    everybody = tuple(range(len(stream.told)))
    answers = combined(stream.fit, everybody, stream.told).argmax(axis=1)
    assert np.array_equal(wrong, answers != stream.labels)


def test_figure_9_at_the_goal_nothing_is_late_and_those_that_wait_see_the_stragglers():
    found = stragglers.outcomes(0, 6, 3000)
    ours, waits = found[stragglers.OURS], found[stragglers.WAITS]
    goal_ms = 1000 * stragglers.SLO_S
    assert ours.late == 0
    assert ours.p99_ms <= goal_ms + 1e-6 < waits.p99_ms
    assert waits.incomplete == waits.missing == waits.refused == 0
    assert 0 < ours.missing < ours.incomplete < 50
    assert ours.accuracy > waits.accuracy - 3


def test_figure_10_a_context_learns_from_its_own_rows():
    found = contexts.curves(0, 120)
    assert set(found) == set(contexts.CONTENDERS)
    assert found[contexts.OURS].last_half < found[contexts.STILL].last_half
    assert all(len(each.windows) == 120 // contexts.WINDOW for each in found.values())


def test_clippers_benchmark_writes_its_record_and_its_drawings(results):
    clipper.main(["--quick", "--figures", "10", "--first", "0"])
    record = json.loads((results / "bench-results" / "clipper-figure-10.json").read_text())
    assert record["splits"] == [0, 1]
    assert len(record["curves"]) == 2
    drawing = ElementTree.parse(results / "bench-results" / "clipper-figure-10.svg")
    assert len(list(drawing.iter("{http://www.w3.org/2000/svg}polyline"))) == len(contexts.CONTENDERS)


def test_rafikis_benchmark_writes_its_record_and_its_drawings(results):
    ensembles_rafiki.main(["--quick"])
    record = json.loads((results / "bench-results" / "rafiki.json").read_text())
    for at in ensembles_rafiki.RATES:
        for cycles in record[at].values():
            assert len(cycles) == 2
            assert all(0 < each["accuracy"] <= 100 for each in cycles)
    for figure in (14, 15, 16):
        drawing = ElementTree.parse(results / "bench-results" / f"rafiki-figure-{figure}.svg")
        assert len(list(drawing.iter("{http://www.w3.org/2000/svg}svg"))) == 3


def test_a_charts_axis_may_begin_above_zero_and_what_is_beyond_is_at_its_edge():
    drawn = line_chart("t", "x", "y", [0.0, 1.0], {"a": [55.0, 120.0]}, bottom=50.0, top=90.0)
    assert ">50</text>" in drawn
    assert ">90</text>" in drawn
    (line,) = ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}polyline")
    last = line.attrib["points"].split()[-1]
    assert float(last.split(",")[1]) == 40.0
