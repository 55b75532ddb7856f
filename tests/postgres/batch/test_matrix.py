"""Batched equals unbatched: the query matrix, with the calls counted and the plan looked at."""

from __future__ import annotations

import pytest

from tests.postgres.batch.cases import (
    Case,
    access,
    grouping,
    guards,
    joins,
    left_alone,
    reading,
    sessions,
    writing,
)
from tests.postgres.batch.session import Outcome, Session, layers_of

FILES = (reading, joins, grouping, guards, writing, sessions, access, left_alone)
NOT_SUPPORTED = "0A000"
CASES = [case for file in FILES for case in file.CASES]


def run(session: Session, case: Case, batching: str) -> Outcome:
    prepared = session.run("BEGIN", f"SET LOCAL ml_udf.batching = {batching}", *case.before)
    outcome = prepared if prepared.error else session.run(case.sql, *case.after)
    session.run("ROLLBACK")
    if outcome.error and outcome.error[0] == NOT_SUPPORTED:
        pytest.skip(f"this server was built without: {outcome.error[1]}")
    assert prepared.error is None, prepared.error
    if not case.ordered:
        outcome.rows.sort(key=repr)
    return outcome


@pytest.mark.parametrize("case", CASES, ids=str)
def test_batched_equals_unbatched(session: Session, case: Case) -> None:
    unbatched = run(session, case, "off")
    batched = run(session, case, "on")

    session.must("BEGIN", *case.before)
    layers = layers_of(session.plan(case.plan or case.sql))
    session.must("ROLLBACK")

    assert batched.result == unbatched.result
    assert not unbatched.batches
    assert tuple(layer["over"] for layer in layers) == case.over
    if case.singles is not None:
        assert len(batched.singles) == case.singles
    if case.sent is not None:
        assert batched.sent == case.sent


def test_no_query_is_asked_twice() -> None:
    assert len({case.sql + str(case.before) for case in CASES}) == len(CASES)
    assert len({case.name for case in CASES}) == len(CASES)
