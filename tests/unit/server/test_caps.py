"""What a token may have at most: its rows a second and its rows waiting, and nothing kept of who is gone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.access.caller import DEFAULT_SHARES, Shares
from server.errors import QuotaExceeded
from server.scheduling.token_bucket import TokenBucket
from server.serving.caps import Caps

pytestmark = pytest.mark.security


@given(
    st.floats(1.0, 1000.0),
    st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 500)), min_size=1, max_size=100),
)
def test_no_more_rows_come_than_the_rate_and_a_seconds_worth_and_one_request(
    rate: float, wishes: list[tuple[float, int]]
) -> None:
    bucket, now_s, came = TokenBucket.full(rate, 0.0), 0.0, 0
    largest = max(rows for _, rows in wishes)
    for later_s, rows in wishes:
        now_s += later_s
        if not bucket.wait_s(now_s):
            bucket.take(now_s, rows)
            came += rows
        assert came <= rate * (now_s + 1) + 1 + largest + 1e-6


@given(st.floats(0.5, 1000.0), st.integers(1, 5000))
def test_who_waits_as_long_as_it_was_told_may_come(rate: float, rows: int) -> None:
    bucket = TokenBucket.full(rate, 0.0)
    bucket.take(0.0, rows)
    assert bucket.wait_s(bucket.wait_s(0.0) + 1e-6) == 0.0


def test_a_second_request_is_told_when_to_come_back() -> None:
    caps, shares = Caps(), Shares(rows_per_s=10.0)
    caps.take(0.0, "a", shares, 30, 300)
    with pytest.raises(QuotaExceeded, match="10 rows/s") as caught:
        caps.take(0.0, "a", shares, 1, 10)
    assert (caught.value.status, caught.value.headers()) == (429, {"Retry-After": "3"})
    caps.take(0.0, "b", shares, 1, 10)
    caps.take(2.2, "a", shares, 1, 10)


@pytest.mark.parametrize("shares", [Shares(queued_rows=10), Shares(queued_bytes=100)])
def test_rows_waiting_are_bounded_and_room_comes_back(shares: Shares) -> None:
    caps = Caps()
    caps.take(0.0, "a", shares, 8, 80)
    with pytest.raises(QuotaExceeded, match="would wait"):
        caps.take(0.0, "a", shares, 3, 30)
    caps.take(0.0, "a", shares, 2, 20)
    caps.give("a", shares, 8, 80)
    caps.give("a", shares, 2, 20)
    assert caps._held == {}


def test_alone_even_a_larger_request_is_let_in() -> None:
    caps, shares = Caps(), Shares(queued_rows=10)
    caps.take(0.0, "a", shares, 1000, 10)
    with pytest.raises(QuotaExceeded):
        caps.take(0.0, "a", shares, 1, 1)


def test_what_was_refused_is_not_counted() -> None:
    caps, shares = Caps(), Shares(rows_per_s=5.0, queued_rows=10)
    caps.take(0.0, "a", shares, 4, 4)
    with pytest.raises(QuotaExceeded, match="would wait"):
        caps.take(0.0, "a", shares, 7, 7)
    caps.take(0.0, "a", shares, 1, 1)


def test_nothing_is_kept_of_callers_without_caps_or_of_those_who_went() -> None:
    caps = Caps()
    caps.take(0.0, "free", DEFAULT_SHARES, 100, 100)
    caps.give("free", DEFAULT_SHARES, 100, 100)
    for number in range(20_000):
        caps.take(number / 100, f"caller {number}", Shares(rows_per_s=10.0), 1, 1)
    assert caps._held == {}
    assert len(caps._buckets) < 3000
