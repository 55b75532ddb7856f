"""What members have answered of a call's rows: complete when all have come, in whatever parts and order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.wire.protocol import Answer, RowError
from server.scheduling.core import Slice
from server.serving.evidence import Evidence, Span
from tests.answers import classified, confidences_of, labels_of


def part(offset: int, rows: int) -> Slice:
    return Slice(1, offset, rows)


def answer(rows: list[int], *members: str, faults: tuple[int, ...] = ()) -> Answer:
    """What members say of these rows of the call: `row-member`."""
    said = [
        classified(member, [f"{row}-{member}" for row in rows], [row / 100 for row in rows])
        for member in members
    ]
    errors = [RowError(rows.index(row), "input_invalid", f"row {row}") for row in faults]
    return Answer(0, said, errors)


def told(spans: list[Span]) -> dict[int, dict[str, str]]:
    """Row of the call → what each member said of it."""
    return {
        span.offset + index: {member.model: labels_of(member)[index] for member in span.answer().members}
        for span in spans
        for index in range(span.rows)
    }


def test_rows_are_complete_when_every_member_has_come() -> None:
    evidence = Evidence()
    evidence.expect(part(2, 3), ("a", "b", "c"))
    assert evidence.take(part(2, 3), 0, answer([2, 3, 4], "b")) == []
    assert evidence.missing(part(2, 3)) == {"a", "c"}
    (span,) = evidence.take(part(2, 3), 0, answer([2, 3, 4], "c", "a"))
    assert [member.model for member in span.answer().members] == ["a", "b", "c"]
    assert told([span])[3] == {"a": "3-a", "b": "3-b", "c": "3-c"}
    assert evidence.missing(part(2, 3)) == set()


def test_rows_of_a_batch_that_holds_other_calls_too_are_found_where_they_begin() -> None:
    evidence = Evidence()
    evidence.expect(part(0, 2), ("a", "b"))
    evidence.take(part(0, 2), 3, answer([90, 91, 92, 0, 1, 93], "a"))
    (span,) = evidence.take(part(0, 2), 1, answer([80, 0, 1], "b"))
    assert told([span]) == {0: {"a": "0-a", "b": "0-b"}, 1: {"a": "1-a", "b": "1-b"}}
    assert confidences_of(span.answer().members[0]) == pytest.approx([0.0, 0.01])


def test_what_comes_for_a_row_that_was_answered_or_never_sent_is_dropped() -> None:
    evidence = Evidence()
    assert evidence.take(part(0, 2), 0, answer([0, 1], "a")) == []
    evidence.expect(part(0, 2), ("a", "b"))
    evidence.take(part(0, 2), 0, answer([0, 1], "a"))
    assert len(evidence.begun()) == 1
    assert evidence.take(part(0, 2), 0, answer([0, 1], "b")) == []
    assert evidence.begun() == []


def test_a_row_that_was_answered_waits_for_nobody_again() -> None:
    """It may be in a queue yet, for a member that had refused it."""
    evidence = Evidence()
    evidence.expect(part(0, 6), ("a", "b"))
    assert len(evidence.close(part(1, 2))) == 1
    evidence.expect(part(0, 8), ("a",))
    assert [(span.offset, span.rows, span.wanted) for span in evidence.waiting(part(0, 8))] == [
        (0, 1, ("a", "b")),
        (3, 3, ("a", "b")),
        (6, 2, ("a",)),
    ]
    assert [span.offset for span in evidence.take(part(0, 8), 0, answer(list(range(8)), "a"))] == [6]
    evidence.expect(part(5, 4), ("b",))
    assert [(span.offset, span.rows) for span in evidence.waiting(part(5, 4))] == [(5, 1), (8, 1)]


def test_the_first_answer_of_a_member_counts_and_a_stranger_is_not_heard() -> None:
    evidence = Evidence()
    evidence.expect(part(0, 1), ("a", "b"))
    evidence.take(part(0, 1), 0, answer([0], "a"))
    evidence.take(part(0, 1), 0, answer([7], "a", "z"))
    (span,) = evidence.take(part(0, 1), 0, answer([0], "b"))
    assert told([span]) == {0: {"a": "0-a", "b": "0-b"}}


def test_a_row_at_fault_has_one_error_under_its_own_index() -> None:
    evidence = Evidence()
    evidence.expect(part(4, 3), ("a", "b"))
    evidence.take(part(4, 3), 1, answer([99, 4, 5, 6], "a", faults=(5, 99)))
    evidence.take(part(5, 1), 0, answer([5], "b", faults=(5,)))
    spans = evidence.take(part(4, 3), 0, answer([4, 5, 6], "b", faults=(6,)))
    errors = {span.offset + error.index: error.message for span in spans for error in span.answer().errors}
    assert errors == {6: "row 6"}, "row 5 had left before"


ROWS = 12
MEMBERS = ("a", "b", "c")


@given(
    cuts=st.sets(st.integers(1, ROWS - 1)),
    comes=st.lists(
        st.tuples(
            st.integers(0, ROWS - 1),
            st.integers(1, ROWS),
            st.sets(st.sampled_from(MEMBERS), min_size=1),
            st.integers(0, 2),
        ),
        max_size=12,
    ),
)
def test_every_row_leaves_once_with_what_each_member_said_of_it(
    cuts: set[int], comes: list[tuple[int, int, set[str], int]]
) -> None:
    evidence = Evidence()
    for first, end in zip([0, *sorted(cuts)], [*sorted(cuts), ROWS], strict=True):
        evidence.expect(part(first, end - first), MEMBERS)
    left: dict[int, dict[str, str]] = {}
    missing = {(row, member) for row in range(ROWS) for member in MEMBERS}
    for first, most, members, before in [*comes, (0, ROWS, set(MEMBERS), 0)]:
        asked = list(range(first, min(ROWS, first + most)))
        of_batch = [99] * before + asked
        found = told(evidence.take(part(first, len(asked)), before, answer(of_batch, *sorted(members))))
        assert not found.keys() & left.keys()
        left |= found
        missing -= {(row, member) for row in asked for member in members}
        waiting = {row for row, _ in missing}
        assert left.keys() == set(range(ROWS)) - waiting
        for row in waiting:
            assert evidence.missing(part(row, 1)) == {m for m in MEMBERS if (row, m) in missing}
    assert left == {row: {member: f"{row}-{member}" for member in MEMBERS} for row in range(ROWS)}
