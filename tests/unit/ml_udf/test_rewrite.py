"""The cheap first, as text: what is rewritten and how, and what stays as it was."""

from __future__ import annotations

import pytest

from ml_udf.duckdb.rewrite import Known, Relation, rewrite

KNOWN = Known(
    frozenset({"udf", "udf2", "ml_udf.predict"}),
    frozenset({"md5", "lower", "count", "row_number", "max"}),
    {
        "t": Relation(
            {"x": "VARCHAR", "k": "INTEGER", "z": "INTEGER", "s": "VARCHAR", "d": "INTEGER", "day": "DATE"}
        ),
        "d": Relation({"id": "INTEGER", "flag": "INTEGER", "name": "VARCHAR"}),
        "e": Relation({"id": "INTEGER", "size": "INTEGER"}),
        "answers": Relation(
            {"x": "VARCHAR", "s": "VARCHAR", "food": "VARCHAR"},
            "CREATE VIEW answers AS SELECT x, s, udf(x) AS food FROM t;",
        ),
        "joined": Relation(
            {"x": "VARCHAR", "name": "VARCHAR"},
            "CREATE VIEW joined AS SELECT x, name FROM t JOIN d ON t.d = d.id",
        ),
    },
)


def rewritten(query: str) -> str:
    return rewrite(query, KNOWN).query


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("udf(x) = 'a' AND k = 7", "CASE WHEN k = 7 THEN udf(x) = 'a' END AND k = 7"),
        (
            "md5(s) LIKE 'a%' AND udf(x) IS NULL",
            "md5(s) LIKE 'a%' AND CASE WHEN md5(s) LIKE 'a%' THEN udf(x) IS NULL END",
        ),
        (
            "UDF(x) = 'a' AND k + z = 7",
            "CASE WHEN TRY((k + z = 7) IS TRUE) IS NOT FALSE THEN UDF(x) = 'a' END AND k + z = 7",
        ),
        ("udf(x) = 'a' OR k = 7", "CASE WHEN k = 7 THEN TRUE ELSE udf(x) = 'a' END"),
        (
            "udf(x) = 'a' OR k + z = 7",
            "CASE WHEN TRY(k + z = 7) THEN TRUE WHEN udf(x) = 'a' THEN TRUE ELSE k + z = 7 END",
        ),
        (
            "k > 1 AND (udf(x) = 'a' OR (s = 'b' AND udf2(x) = 'c'))",
            "k > 1 AND CASE WHEN k > 1 THEN "
            "CASE WHEN udf(x) = 'a' THEN TRUE ELSE CASE WHEN s = 'b' THEN udf2(x) = 'c' END END END",
        ),
        (
            "udf(x) = 'a' AND udf2(x) = 'b' AND k = 7",
            "CASE WHEN k = 7 THEN CASE WHEN udf(x) = 'a' THEN udf2(x) = 'b' END END AND k = 7",
        ),
        (
            "k BETWEEN 1 AND 2 AND ml_udf.predict('f', x) = 'a'",
            "k BETWEEN 1 AND 2 AND CASE WHEN k BETWEEN 1 AND 2 THEN ml_udf.predict('f', x) = 'a' END",
        ),
        (
            "d IN (SELECT id FROM d WHERE flag = 1) AND NOT udf(x) = 'a'",
            "CASE WHEN d IN (SELECT id FROM d WHERE flag = 1) THEN NOT udf(x) = 'a' END",
        ),
        (
            "day >= '2026-01-31' AND udf(x) = 'ä' -- Ärger",
            "day >= '2026-01-31' AND CASE WHEN day >= '2026-01-31' THEN udf(x) = 'ä' END -- Ärger",
        ),
    ],
)
def test_of_one_table_cheap_conditions_stand_before_the_models(condition: str, expected: str):
    assert rewritten(f"SELECT * FROM t WHERE {condition}".strip()) == f"SELECT * FROM t WHERE {expected}"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "SELECT udf(x), 1 FROM t JOIN d ON t.d = d.id WHERE d.flag = 3 AND udf(t.x) = 'a' GROUP BY 1",
            "SELECT udf(x), 1 FROM (SELECT * FROM t WHERE CASE WHEN EXISTS (SELECT 1 FROM d WHERE "
            "t.d = d.id AND d.flag = 3) THEN udf(t.x) = 'a' END) AS t JOIN d ON t.d = d.id WHERE d.flag = 3 "
            "GROUP BY 1",
        ),
        (
            "SELECT 1 FROM t AS a, d AS b, e WHERE a.d = b.id AND e.id = b.id AND udf(a.x) = 'a' AND a.k = 7",
            "SELECT 1 FROM (SELECT * FROM t AS a WHERE a.k = 7 AND CASE WHEN EXISTS (SELECT 1 FROM d AS b, e "
            "WHERE a.d = b.id AND e.id = b.id) THEN udf(a.x) = 'a' END) AS a, d AS b, e "
            "WHERE a.d = b.id AND e.id = b.id AND a.k = 7",
        ),
        (
            "SELECT 1 FROM t JOIN d ON t.d = d.id AND udf(t.x) = 'a' LEFT JOIN e ON e.id = d.id",
            "SELECT 1 FROM (SELECT * FROM t WHERE CASE WHEN EXISTS (SELECT 1 FROM d WHERE t.d = d.id) "
            "THEN udf(t.x) = 'a' END) AS t JOIN d ON t.d = d.id LEFT JOIN e ON e.id = d.id",
        ),
        (
            "SELECT 1 FROM d JOIN e USING (id) WHERE udf(name) = 'a'",
            "SELECT 1 FROM (SELECT * FROM d WHERE CASE WHEN EXISTS (SELECT 1 FROM e WHERE d.id = e.id) "
            "THEN udf(name) = 'a' END) AS d JOIN e USING (id) ",
        ),
    ],
)
def test_a_model_on_a_joined_table_waits_for_its_partners(query: str, expected: str):
    assert rewritten(query) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "SELECT x FROM answers WHERE food = 'a' AND md5(s) LIKE 'a%'",
            "SELECT x FROM answers WHERE CASE WHEN md5(s) LIKE 'a%' THEN food = 'a' END AND md5(s) LIKE 'a%'",
        ),
        (
            "WITH q AS (SELECT s, udf(x) AS food FROM t) SELECT s FROM q WHERE food = 'a' AND s > 'b'",
            "WITH q AS (SELECT s, udf(x) AS food FROM t) SELECT s FROM q "
            "WHERE CASE WHEN s > 'b' THEN food = 'a' END AND s > 'b'",
        ),
        (
            "SELECT s, udf(x) AS food FROM t WHERE food = 'a' AND s > 'b'",
            "SELECT s, udf(x) AS food FROM t WHERE CASE WHEN s > 'b' THEN food = 'a' END AND s > 'b'",
        ),
        (
            "SELECT x FROM t GROUP BY x HAVING udf(x) = 'a' AND count(*) > 5",
            "SELECT x FROM t GROUP BY x HAVING CASE WHEN count(*) > 5 THEN udf(x) = 'a' END AND count(*) > 5",
        ),
        (
            "SELECT x FROM t QUALIFY row_number() OVER (PARTITION BY k ORDER BY z) = 1 AND udf(x) = 'a'",
            "SELECT x FROM t QUALIFY CASE WHEN row_number() OVER (PARTITION BY k ORDER BY z) = 1 "
            "THEN udf(x) = 'a' END",
        ),
        (
            "UPDATE t SET z = 1 WHERE udf(x) = 'a' AND k = 7",
            "UPDATE t SET z = 1 WHERE CASE WHEN k = 7 THEN udf(x) = 'a' END AND k = 7",
        ),
        (
            "EXPLAIN ANALYZE SELECT x FROM t WHERE udf(x) = 'a' AND k = 7;",
            "EXPLAIN ANALYZE SELECT x FROM t WHERE CASE WHEN k = 7 THEN udf(x) = 'a' END AND k = 7;",
        ),
        (
            "CREATE TEMP TABLE n AS (FROM t WHERE udf(x) = 'a' AND k = 7)",
            "CREATE TEMP TABLE n AS (FROM t WHERE CASE WHEN k = 7 THEN udf(x) = 'a' END AND k = 7)",
        ),
        (
            "COPY (SELECT x FROM t WHERE udf(x) = 'a' AND k = 7) TO 'a.csv'",
            "COPY (SELECT x FROM t WHERE CASE WHEN k = 7 THEN udf(x) = 'a' END AND k = 7) TO 'a.csv'",
        ),
        (
            "FROM t WHERE udf(x) = ? AND k = ?",
            "FROM t WHERE CASE WHEN TRY((k = $2) IS TRUE) IS NOT FALSE THEN udf(x) = $1 END AND k = $2",
        ),
        (
            "SELECT x FROM 'a.csv' WHERE udf(x) = 'a' AND k IS NULL",
            "SELECT x FROM 'a.csv' WHERE CASE WHEN k IS NULL THEN udf(x) = 'a' END AND k IS NULL",
        ),
    ],
)
def test_models_are_asked_last_wherever_conditions_stand(query: str, expected: str):
    assert rewritten(query) == expected
    assert not rewrite(expected, KNOWN).is_changed


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT x FROM t WHERE udf(x) = 'a'", "no condition beside it is cheaper"),
        ("SELECT x FROM t WHERE random() < 0.5 AND udf(x) = 'a'", "may give another value each time"),
        ("SELECT x FROM t WHERE mine(k) AND udf(x) = 'a'", "may give another value each time"),
        ("SELECT x FROM joined WHERE udf(x) = 'a' AND name = 'b'", "made of several tables"),
        ("SELECT x FROM t JOIN d ON t.d = d.id WHERE udf(x) = 'a' LIMIT 3", "LIMIT without ORDER BY"),
        ("SELECT x FROM t FULL JOIN d ON t.d = d.id WHERE udf(x) = 'a'", "without a partner"),
        ("SELECT x FROM t FULL JOIN d ON t.d = d.id WHERE udf(x) = 'a' AND flag = 1", "without a partner"),
        ("SELECT x FROM t JOIN d ON t.d = d.id WHERE udf(x) = 'a' AND rowid = 1", "hidden column"),
        (
            "SELECT udf(x) AS f FROM t GROUP BY f HAVING f = 'a' AND count(*) > 1",
            "grouped by what a model says",
        ),
        ("SELECT x FROM t GROUP BY x HAVING udf(x) = 'a' AND x > 'b'", "beside the conditions of WHERE"),
        ("SELECT x FROM t WHERE NOT (udf(x) = 'a' OR k = 1) AND s = 'b'", "NOT around AND or OR"),
        ("SELECT x FROM t WHERE CASE WHEN k = 1 THEN udf2(x) END = 'b' AND udf(x) = 'a' AND k = 1", "leaves"),
        ("SELECT x FROM t WHERE k = (SELECT max(id) FROM d) AND udf(x) = 'a' AND s = 'b'", "leaves"),
        ("SELECT x FROM t WHERE udf(x) = 'a' AND k = 1 USING SAMPLE 10%", "sample"),
        ("CREATE VIEW v AS SELECT x FROM t WHERE udf(x) = 'a' AND k = 1", "run as they are written"),
        ("PREPARE q AS SELECT x FROM t WHERE udf(x) = 'a' AND k = 1", "run as they are written"),
        ("SELECT x FROM t WHERE udf(x) = 'a' AND AND k = 1", "run as they are written"),
    ],
)
def test_what_could_change_the_meaning_stays_and_the_reason_is_told(query: str, reason: str):
    told = rewrite(query, KNOWN)
    assert (told.query, told.is_changed) == (query, False)
    assert any(reason in each.reason for each in told.left), told.left


@pytest.mark.parametrize(
    "query",
    [
        "SELECT x FROM t WHERE k = 7",
        "SELECT x, udf(x) FROM t WHERE k = 7 ORDER BY z LIMIT 3",
        "SELECT x FROM t WHERE CASE WHEN k = 7 THEN udf(x) END = 'a' AND k = 7",
        "SELECT count(*) FILTER (WHERE k = 7 AND udf(x) = 'a') FROM t",
        "SELECT x FROM t WHERE x IN (SELECT udf(name) FROM d) AND k = 7",
        "SELECT x FROM t GROUP BY x HAVING max(udf(x)) = 'a' AND count(*) > 1",
        "PRAGMA version",
        "",
        "not SQL at all '",
    ],
)
def test_a_query_without_an_open_condition_on_a_model_stays_as_it_is(query: str):
    assert rewrite(query, KNOWN).query == query


def test_of_two_models_the_one_that_has_been_quicker_is_asked_first():
    known = Known(KNOWN.models, KNOWN.deterministic, KNOWN.relations, {"udf": 0.01, "udf2": 0.001})
    told = rewrite("SELECT x FROM t WHERE udf(x) = 'a' AND udf2(x) = 'b' AND k = 7", known)
    case = "CASE WHEN k = 7 THEN CASE WHEN udf2(x) = 'b' THEN udf(x) = 'a' END END"
    assert told.query == f"SELECT x FROM t WHERE {case} AND k = 7"
