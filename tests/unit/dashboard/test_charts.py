"""Charts: well-formed whatever is drawn, small however many points; no text of a user's becomes markup."""

from __future__ import annotations

import math
from xml.etree.ElementTree import Element, fromstring

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import Markup

from server.dashboard.charts import units
from server.dashboard.charts.bars import Bar, bar_chart, histogram
from server.dashboard.charts.confusion import MOST_CLASSES, OTHERS, confusion_table, folded
from server.dashboard.charts.figure import MOST_LISTED
from server.dashboard.charts.lines import Goal, Series, line_chart, thinned
from server.dashboard.charts.parallel import Line, axis_of, parallel_coordinates
from server.dashboard.charts.reliability import bins_of, expected_calibration_error, reliability_chart
from server.dashboard.charts.scales import LogScale, linear, spread, time_ticks
from server.dashboard.charts.timeline import Lane, Moment, Span, timeline

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; onload='alert(1)",
    "</title></svg><script>alert(1)</script>",
    "&lt;b&gt; & <!-- ]]>",
    "\x00\x08\ud800\uffff",
    "x" * 5000,
)
NAN = math.nan


def _svg(chart: Markup) -> Element:
    return next(element for element in fromstring(chart).iter() if element.tag.endswith("svg"))


def _tags(chart: Markup) -> set[str]:
    return {element.tag.rpartition("}")[2] for element in fromstring(chart).iter()}


def _all_charts(name: str, values: list[float]) -> list[Markup]:
    points = list(enumerate(values))
    return [
        line_chart(name, [Series(name, points, href="?" + name)], goals=[Goal(name, 1.0)], note=name),
        line_chart(
            name, [Series(name, points), Series(name, points)], units.BYTES, x_axis=name, style="area"
        ),
        bar_chart(name, [Bar(name, value, href="?" + name) for value in values], units.PERCENT, note=name),
        histogram(name, [1.0, 10.0], values[:3], units.SECONDS, goal=1.0, note=name),
        timeline(
            name,
            [Lane(name, name, [Span(value, None, name)], [Moment(value, "load", name)]) for value in values],
            0.0,
            100.0,
            note=name,
        ),
        parallel_coordinates(
            name,
            [axis_of(name, [*values, name]), axis_of("score", values)],
            [Line(name, {name: value, "score": value}, value, href="?" + name) for value in values],
            note=name,
        ),
        confusion_table(name, [name, "b"], {(name, "b"): 3, ("b", name): 1}, lambda *cell: "?".join(cell)),
        reliability_chart(name, bins_of([(value, True) for value in values])),
    ]


@pytest.mark.security
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_text(name):
    for chart in _all_charts(name, [1.0, NAN, 3.0]):
        assert not _tags(chart) & {"script", "img", "b"}
        chart.encode()  # can be sent
        for element in fromstring(chart).iter():
            assert not any(attribute.startswith("on") or attribute == "style" for attribute in element.attrib)


@given(st.text(max_size=40), st.lists(st.floats(), max_size=12))
@settings(deadline=None, max_examples=60)
def test_whatever_is_drawn_is_well_formed(name, values):
    for chart in _all_charts(name, values):
        fromstring(chart)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [NAN],
        [5.0],
        [0.0, 0.0],
        [7.0] * 50,
        [math.inf, 1.0],
        [-3.0, 3.0],
        [1e-12, 2e-12],
        [5e-324],
        [1e300, -1e300],
    ],
)
def test_no_value_breaks_a_chart(values):
    for chart in _all_charts("values", values):
        for element in fromstring(chart).iter():
            for attribute in ("x", "y", "cx", "cy", "width", "height", "d"):
                assert not {"nan", "inf"} & set(
                    (element.get(attribute) or "").lower().replace("l", " ").split()
                )


def test_nothing_is_said_in_words():
    assert "nothing yet" in line_chart("Rows", [])
    assert "nothing yet" in bar_chart("Errors", [])
    assert "nothing yet" in histogram("Sizes", [1.0], [0, 0], units.ROWS)


def test_a_gap_is_no_line():
    chart = line_chart("Rows", [Series("a", [(0, 1.0), (1, 2.0), (2, None), (3, 1.0), (4, 2.0)])], x_axis="x")
    strokes = [path for path in _svg(chart).iter() if path.get("class") == "stroke"]
    assert len(strokes) == 2


def test_a_single_point_is_seen():
    assert "circle" in _tags(line_chart("Rows", [Series("a", [(1_795_000_000, 5.0)])]))


def test_a_hundred_thousand_points_are_a_small_picture_with_their_extremes():
    points = [(float(x), 1.0) for x in range(100_000)]
    points[54_321] = (54_321.0, 99.0)
    chart = line_chart("Rows", [Series("a", points)], x_axis="x")
    assert len(chart) < 40_000
    assert max(y or 0.0 for _, y in thinned(points, 300)) == 99.0
    rows = [element for element in fromstring(chart).iter("tr") if element.find("th") is not None]
    assert len(rows) <= MOST_LISTED + 1


def test_a_screen_reader_gets_the_name_the_range_and_the_goal():
    chart = line_chart(
        "Latency", [Series("p99", [(0, 10.0), (1, 30.0)])], units.MILLISECONDS, goals=[Goal("goal", 100.0)]
    )
    svg = _svg(chart)
    said = "".join(element.text or "" for element in svg if element.tag.endswith("desc"))
    assert svg.get("role") == "img"
    assert svg.get("aria-label") == "Latency"
    assert said == "p99: 10 to 30, last 30 ms. goal: 100 ms"


def test_a_chart_with_links_is_no_image():
    chart = bar_chart("Errors", [Bar("LATE", 3.0, href="?code=LATE")])
    assert _svg(chart).get("role") == "group"


def test_many_lines_are_drawn_without_legend_and_links():
    chart = line_chart("Trials", [Series(f"trial {n}", [(1, n), (2, n)], href=f"#{n}") for n in range(40)])
    assert "ul" not in _tags(chart)
    assert "a" not in _tags(chart)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 87.0, [0, 25, 50, 75, 100]),
        (0.0, 1.0, [0, 0.25, 0.5, 0.75, 1]),
    ],
)
def test_an_axis_has_round_values(low, high, expected):
    assert list(linear(low, high, 0, 1).ticks()) == expected


def test_equal_values_lie_within_an_axis():
    low, high = spread([3.0, 3.0])
    assert low < 3.0 < high


def test_moments_on_an_axis_are_round_and_few():
    moments = time_ticks(1_795_000_000, 1_795_003_600, 5)
    assert len(moments) <= 5
    assert all(moment % 900 == 0 for moment in moments)


def test_powers_of_ten_lie_equally_far_apart():
    scale = LogScale(1e-5, 1e-1, 0, 100)
    assert [round(scale(value)) for value in scale.ticks()] == [0, 25, 50, 75, 100]


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        (units.NUMBER, 1234.0, "1.23k"),
        (units.NUMBER, 0.00025, "0.00025"),
        (units.PERCENT, 0.934, "93.4\u202f%"),
        (units.BYTES, 3e6, "3\u202fMB"),
    ],
)
def test_an_axis_says_a_value_shortly(unit, value, text):
    assert unit.short(value) == text


def test_a_lane_of_the_timeline_shows_what_was_there_and_what_happened():
    lane = Lane("cpu-0", "food/1", [Span(None, 50.0, "resident")], [Moment(50.0, "eviction", "made room")])
    chart = timeline("Loads", [lane], 0.0, 100.0)
    drawn = [element.get("class") for element in _svg(chart).iter()]
    assert "bar" in drawn
    assert "moment eviction" in drawn
    assert "made room" in chart


def test_an_axis_of_trials_fits_what_was_tried():
    assert axis_of("rate", [1e-4, 1e-2, None]).is_log
    assert axis_of("flip", [0, 1, 1]).categories == ("0", "1")
    assert axis_of("optimizer", ["sgd", "adam"]).categories == ("adam", "sgd")
    assert not axis_of("shift", [0.0, 0.03, 0.1]).is_log
    axis = axis_of("mixed", [math.nan, math.inf])
    assert (axis.low, axis.high, axis.value(math.nan)) == (0.0, 1.0, None)


def test_the_best_fifth_of_the_trials_is_marked():
    axes = [axis_of("a", [0.1, 0.9]), axis_of("score", [0.0, 1.0])]
    lines = [Line(f"trial {n}", {"a": n / 10, "score": n / 10}, n / 10) for n in range(10)]
    grades = [element.get("class") for element in _svg(parallel_coordinates("Trials", axes, lines)).iter()]
    assert grades.count("series g4") == 2
    assert grades.count("series g0") == 2


def test_a_trial_without_a_score_is_drawn_apart():
    axes = [axis_of("a", [0.1, 0.9]), axis_of("score", [0.0, 1.0])]
    chart = parallel_coordinates("Trials", axes, [Line("trial 0", {"a": 0.5})])
    assert "series none" in [element.get("class") for element in _svg(chart).iter()]


def test_a_cell_of_the_confusions_leads_to_its_rows_and_an_empty_one_nowhere():
    chart = confusion_table(
        "Confusion", ["a", "b"], {("a", "b"): 3}, lambda truth, answer: f"?{truth}{answer}"
    )
    assert [element.get("href") for element in fromstring(chart).iter("a")] == ["?ab"]


def test_of_many_classes_the_least_confused_stand_together():
    labels = [f"class {n}" for n in range(100)]
    counts = {(label, label): 5 for label in labels} | {("class 7", "class 9"): 4}
    shown, told, behind = folded(labels, counts)
    assert len(shown) == MOST_CLASSES
    assert shown[-1] == OTHERS
    assert {"class 7", "class 9"} <= set(shown)
    assert sum(told.values()) == sum(counts.values())
    assert len(behind) == 100 - MOST_CLASSES + 1
    chart = confusion_table("Confusion", labels, counts, lambda truth, answer: truth + answer)
    assert not any(OTHERS in (element.get("href") or "") for element in fromstring(chart).iter("a"))


def test_confidences_that_are_true_have_no_calibration_error():
    bins = bins_of([(0.75, True), (0.75, True), (0.75, True), (0.75, False), (math.nan, True)])
    assert [each.rows for each in bins] == [4]
    assert expected_calibration_error(bins) == pytest.approx(0.0)
    assert expected_calibration_error([]) is None
