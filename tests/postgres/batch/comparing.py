"""Runs random queries batched and unbatched and looks for a difference."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.postgres.batch.random_queries import random_query, random_settings, random_write
from tests.postgres.batch.session import Outcome, Session

__all__ = ["Difference", "Tally", "compare"]

TIMEOUT = "57014"
# Before, no subtransaction can begin in a parallel plan.
HOLDS_ERRORS_IN_PARALLEL_PLANS = 170000
# Whatever else went wrong, these say that the node did.
INTERNAL = ("XX", "58", "39", "25", "08")


@dataclass(frozen=True)
class Difference:
    """A query that did not mean the same batched."""

    seed: int
    settings: list[str]
    query: str
    unbatched: Outcome
    batched: Outcome
    plan: str

    def __str__(self) -> str:
        settings = "; ".join(self.settings)
        return (
            f"seed {self.seed}\n  {settings};\n  {self.query}\n"
            f"  unbatched: {self.unbatched.error or self.unbatched.rows}\n"
            f"  batched:   {self.batched.error or self.batched.rows}\n{self.plan}"
        )


@dataclass
class Tally:
    """What became of the queries so far."""

    queries: int = 0
    batched: int = 0  # had at least one layer
    failed: int = 0  # raised an error either way
    early: int = 0  # raised the error of a row read ahead, where the server cannot hold it
    timeouts: int = 0
    invalid: int = 0  # refused before they were planned


def compare(session: Session, seed: int, tally: Tally) -> Difference | None:
    """Run the query of a seed both ways, in transactions that are rolled back."""
    random = Random(seed)
    settings = random_settings(random)
    writes = random.random() < 0.15
    query = random_write(random) if writes else random_query(random)
    after = ["TABLE a", "TABLE b"] if writes else []

    tally.queries += 1
    unbatched = _run(session, [*settings, "SET LOCAL ml_udf.batching = off"], query, after)
    if unbatched.error and unbatched.error[0].startswith("42"):
        tally.invalid += 1
        return None
    batched = _run(session, settings, query, after)
    if TIMEOUT in (_code(unbatched), _code(batched)):
        tally.timeouts += 1
        return None
    if writes:  # so that a seed means the same plan whatever ran before
        session.must("VACUUM a", "VACUUM b")
    plan = _plan(session, settings, query)
    tally.failed += unbatched.error is not None
    tally.batched += "MlUdfBatch" in plan

    if (
        session.connection.info.server_version < HOLDS_ERRORS_IN_PARALLEL_PLANS
        and "Gather" in plan
        and unbatched.error is None
        and _code(batched).startswith("22")
    ):
        tally.early += 1
        return None
    same = unbatched.rows == batched.rows if unbatched.error is None else True
    if same and (unbatched.error is None) == (batched.error is None) and not _internal(batched):
        return None
    return Difference(seed, settings, query, unbatched, batched, plan)


def _run(session: Session, settings: list[str], query: str, after: list[str]) -> Outcome:
    session.must("BEGIN", "SET LOCAL statement_timeout = '3s'", *settings)
    outcome = session.run(query, *after)
    if session.run("ROLLBACK").error is not None:  # the timeout holds for it, too
        session.must("ROLLBACK")
    outcome.rows.sort(key=repr)
    return outcome


def _plan(session: Session, settings: list[str], query: str) -> str:
    session.must("BEGIN", *settings)
    explained = session.run(f"EXPLAIN (VERBOSE) {query}").rows
    session.must("ROLLBACK")
    return "\n".join(line for (line,) in explained)


def _code(outcome: Outcome) -> str:
    return outcome.error[0] if outcome.error else ""


def _internal(outcome: Outcome) -> bool:
    return _code(outcome).startswith(INTERNAL)
