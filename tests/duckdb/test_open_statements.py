"""Which statements are remembered, as DuckDB tells nobody when one ends."""

from __future__ import annotations

from ml_udf.client import Client, Options
from ml_udf.client.statement import Binding, Statement
from ml_udf.duckdb.open_statements import OpenStatements
from tests.unit.ml_udf.fake_transport import FakeTransport

CLIENT = Client("http://fake", transport=FakeTransport())


def use(statements: OpenStatements, identity: str, *functions: str) -> None:
    with statements.call(identity) as one:
        for function in functions:
            binding = Binding(function)
            statements.use(one, binding, False, lambda: Statement(CLIENT, binding, Options()))  # noqa: B023


def kept(statements: OpenStatements) -> list[str]:
    return list(statements._open)


def test_of_ended_statements_the_last_eight_are_kept():
    now_s = [100.0]
    statements = OpenStatements(lambda: now_s[0])
    for number in range(12):
        use(statements, f"s{number}", "f")
        now_s[0] += 2
    assert kept(statements) == [f"s{number}" for number in range(4, 12)]
    assert statements.costs()["f"][0] == 12  # what was forgotten counts


def test_a_statement_of_which_a_call_is_under_way_or_was_a_moment_ago_stays():
    now_s = [100.0]
    statements = OpenStatements(lambda: now_s[0])
    with statements.call("waits") as one:
        statements.use(one, Binding("f"), False, lambda: Statement(CLIENT, Binding("f"), Options()))
        now_s[0] += 60
        for number in range(20):
            use(statements, f"s{number}", "f")
    assert len(kept(statements)) == 21
    now_s[0] += 2
    use(statements, "later", *(f"f{n}" for n in range(12)))
    assert kept(statements) == ["later"]


def test_a_statement_that_asked_nothing_leaves_nothing():
    statements = OpenStatements()
    use(statements, "failed")
    assert kept(statements) == []
