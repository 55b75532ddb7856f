"""What a function's page says of its members, its versions, its batches and its callers."""

from __future__ import annotations

import pytest

from server.cache.counts import CacheCounts
from server.catalog.selections import Selection
from server.dashboard.function_view import (
    callers_of,
    kept_of,
    members_of,
    sizes_of,
    subsets_of,
    versions_of,
    why_of,
)
from server.dashboard.sql_view import connecting, of_function
from server.observability.stats import OTHERS, FunctionStats
from tests.unit.server.served import function, image_model, text_model


def latency_of(model: object) -> object:
    return lambda rows: 0.001 + 0.0005 * rows


def test_members_say_where_they_are_what_they_take_and_whether_they_are_asked() -> None:
    asked = function(text_model("one"), text_model("two", accuracy=0.0))
    one, two = members_of(asked, None, {"w0": ["one/1"], "w1": ["one/1"]}, latency_of)  # type: ignore[arg-type]
    assert (one.key, one.places, one.asks, one.accuracy) == ("one/1", ("w0", "w1"), "asked of every row", 0.9)
    assert one.one_row_s == 0.0015
    assert one.row_s < one.one_row_s
    assert (two.is_asked, two.places, two.accuracy) == (False, (), None)
    assert "not loaded" in two.asks


@pytest.mark.parametrize(
    ("members", "selection", "fault", "said"),
    [
        (1, Selection("static"), None, "One model"),
        (2, Selection("static"), None, "all members"),
        (2, Selection("value", 0, 3), None, "plan 1 of 3, the richest: the load leaves room"),
        (2, Selection("value", 2, 3), None, "plan 3 of 3, the poorest: the load leaves no room"),
        (2, Selection("value", 0, 1), None, "only plan"),
        (2, Selection("value", 0, 3), "it raised", "put aside"),
    ],
)
def test_why_members_answer_is_a_sentence(
    members: int, selection: Selection, fault: str | None, said: str
) -> None:
    asked = function(*(text_model(f"m{number}") for number in range(members)))
    assert said in why_of(asked, selection, fault)


def test_what_the_cache_did_is_told_in_rows_and_shares_and_not_at_all_where_it_was_not_asked() -> None:
    assert kept_of(CacheCounts()) == ()
    told = dict(kept_of(CacheCounts(hits=1500, misses=400, coalesced=100, entries=400, nbytes=140_000)))
    assert told == {
        "answered before": "1\u202f500 rows (75.0\u202f%)",
        "came with an equal one": "100 rows (5.0\u202f%)",
        "computed": "400 rows (20.0\u202f%)",
        "kept now": "400 answers, 140\u202fkB",
    }
    restored = dict(kept_of(CacheCounts(entries=3, nbytes=1000, evictions=7)))
    assert restored["answered before"] == "0 rows"
    assert restored["left for want of room"] == "7 answers"


PROXY = {
    "is_used": True,
    "agreement": 0.98,
    "proxy": "head/1",
    "agrees": 0.99,
    "low": 0.981,
    "proof_rows": 600,
    "answered_share": 0.5,
    "saved_share": 0.4,
    "kept_off": None,
}


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            {},
            "is asked first, and answers where it is sure, 50.0% of the rows since the server started;",
        ),
        ({}, "99.0% of 600 held-out rows were, 98.1% at the least. It saves 40% of the device's time."),
        ({"kept_off": "it takes 9 ms"}, "Its proxy is kept off: it takes 9 ms."),
        ({"is_used": False, "reason": "too few rows"}, "No proxy is used: too few rows."),
    ],
)
def test_of_a_proxy_it_is_said_who_answers_first_and_what_that_saves(
    told: dict[str, object], said: str
) -> None:
    asked = function(text_model("one"))
    assert said in why_of(asked, Selection("static", 1, 2, cascade={**PROXY, **told}), None)


def test_without_held_out_rows_nothing_is_said_of_subsets() -> None:
    assert subsets_of(function(text_model("one"), text_model("two"))) == ()


def test_of_versions_the_last_answers_and_the_one_before_ends_statements() -> None:
    served = [function(version=4), function(version=5)]
    lines = versions_of([(5, ["a/2"], 50.0), (4, ["a/1"], 40.0), (3, ["a/1"], 30.0)], served)
    assert [(line.version, line.is_current, line.is_served) for line in lines] == [
        (5, True, True),
        (4, False, True),
        (3, False, False),
    ]


def test_batches_are_held_against_what_was_predicted() -> None:
    stats = FunctionStats()
    for _ in range(4):
        stats.batch_done(8, 0.001, 0.004, 0.0)
    (line,) = sizes_of(function(), stats, latency_of, lambda rows: 0.0)  # type: ignore[arg-type]
    assert (line.rows, line.batches, line.predicted_s) == (8, 4, 0.005)
    assert line.took_s == pytest.approx(0.005)
    both = function(text_model("one"), text_model("two"))
    (line,) = sizes_of(both, stats, latency_of, lambda rows: 0.002)  # type: ignore[arg-type]
    assert line.predicted_s == pytest.approx(0.008)


def test_callers_are_counted_up_to_a_bound_and_only_ones_own_where_others_are_not_to_be_seen() -> None:
    stats = FunctionStats()
    for number in range(200):
        stats.asked_by(f"token{number}", "", 1)
    stats.asked_by("token7", "", 99)
    assert len(stats.callers) == 101
    assert stats.callers[OTHERS, ""] == 100
    lines = callers_of(stats)
    assert (lines[0].caller, lines[0].rows) == ("token7", 100)
    assert [line.caller for line in callers_of(stats, only="token7")] == ["token7"]
    assert callers_of(stats, only="stranger") == ()


def test_who_has_no_token_is_called_by_the_address() -> None:
    stats = FunctionStats()
    stats.asked_by("@127.0.0.1", "", 1)
    assert callers_of(stats)[0].caller == "without a token, from 127.0.0.1"


def test_what_is_pasted_names_the_server_and_quotes_what_sql_would_not_read() -> None:
    texts = [each.text for each in connecting("https://it's.example:8443", with_token=True)]
    assert "url 'https://it''s.example:8443'" in texts[0]
    assert "token '…'" in texts[0]
    assert all('"https://it\'s.example:8443"' in text for text in texts[1:])
    assert "MAPPING" not in connecting("http://h", with_token=False)[0].text
    plain, odd = function(image_model(), name="udf_food"), function(name="Odd-name.x")
    assert "udf_food(t.image_path)" in of_function(plain)[0].text
    assert "ml_udf.predict('Odd-name.x', t.text)" in of_function(odd)[0].text
