"""The SQL that stands in front of the Arrow functions: macros and views.

A macro adds what DuckDB does not pass to its functions: which transaction this is, and the session's
`ml_udf_*` variables, in a struct behind the input. A transaction is one statement unless the user says
BEGIN: then the promises that hold for a statement (one version, one memo) hold for the whole transaction.
Generic functions and views live in an attached in-memory catalog named `ml_udf`, so that nothing is written
to the user's database.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ml_udf.config import SETTINGS, Options
from ml_udf.errors import BadOption
from ml_udf.quoting import literal, quoted
from ml_udf.views import VIEWS

__all__ = [
    "CATALOG",
    "GENERIC",
    "STATEMENT",
    "STATEMENT_ARGUMENT",
    "catalog_statements",
    "function_macro",
    "options_of",
    "predict_macro",
]

# (name, kind) of each value of a table's row; empty where a function takes one value.
ValueKinds: TypeAlias = Sequence[tuple[str, str]]

CATALOG = "ml_udf"
_KINDS = {
    "number": "DOUBLE",
    "text": "VARCHAR",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMPTZ",
}
_SEPARATOR = "\x1f"  # ASCII's unit separator: in no setting that is taken
_VARIABLES = [f"coalesce(getvariable('ml_udf_{setting.name}')::VARCHAR, '')" for setting in SETTINGS]
STATEMENT = "ml_udf_statement"  # the struct's one field
# A constant to DuckDB, evaluated anew by every execution. current_query() would tell statements of one
# transaction apart, but it is volatile: ORDER BY … LIMIT 3 would then ask for every row.
STATEMENT_ARGUMENT = f"{{'{STATEMENT}': concat_ws(chr(31), txid_current(), {', '.join(_VARIABLES)})}}"

# generic function → (parameters, result type)
GENERIC: dict[str, tuple[tuple[str, ...], str]] = {
    "predict": (("fn", "input"), "VARCHAR"),
    "try_predict": (
        ("fn", "input"),
        "STRUCT(value VARCHAR, confidence DOUBLE, model_version VARCHAR, error VARCHAR)",
    ),
    "detail": (
        ("fn", "input"),
        "STRUCT(value VARCHAR, confidence DOUBLE, model_version VARCHAR, error VARCHAR, "
        "answered_by VARCHAR[], expected_accuracy DOUBLE, device_seconds DOUBLE, "
        "prediction VARCHAR, decision VARCHAR, columns JSON)",
    ),
    "scores": (("fn", "input"), "MAP(VARCHAR, DOUBLE)"),
    "score": (("fn", "input", "label"), "DOUBLE"),
    "top_k": (("fn", "input", "k"), "STRUCT(label VARCHAR, score DOUBLE)[]"),
    "predict_many": (("fn", "inputs"), "VARCHAR[]"),
    "feedback": (("fn", "input", "label"), "VARCHAR"),
    "feedback_by_id": (("fn", "prediction", "label"), "VARCHAR"),
}

# Of vectors of zeros DuckDB's cosine is not a number; on PostgreSQL, too, nothing is like them.
_COSINE = "list_cosine_similarity(CAST(a AS DOUBLE[]), CAST(b AS DOUBLE[]))"
_SIMILARITY = f"CASE WHEN isnan({_COSINE}) THEN NULL ELSE {_COSINE} END"
# As on PostgreSQL: 80, meant in percent, would let no row through and say nothing.
_REFUSED = BadOption("a probability is from 0 to 1", hint="such as ml_udf.filter(…, 0.8)").report()
_MIN_SCORE = (
    "CASE WHEN min_score NOT BETWEEN 0 AND 1 THEN "
    f"error('ml_udf.filter: min_score = ' || min_score || ': ' || {literal(_REFUSED)})::DOUBLE "
    "ELSE min_score END"
)

_STATISTICS = {
    "name": "VARCHAR",
    "statements": "BIGINT",
    "rows": "BIGINT",
    "rows_sent": "BIGINT",
    "batches": "BIGINT",
    "retries": "BIGINT",
    "failed_rows": "BIGINT",
    "seconds": "DOUBLE",
    "cached_rows": "BIGINT",
}


def function_macro(name: str, columns: ValueKinds = ()) -> str:
    """The macro in front of the function of the same name: `name(input)`, or `name(age, plan)`."""
    parameters, row = _row(columns)
    return (
        f"CREATE OR REPLACE TEMPORARY MACRO {quoted(name)}({parameters}) AS "
        f"system.main.{quoted(name)}({row}, {STATEMENT_ARGUMENT})"
    )


def predict_macro(
    place: str, function: str, predict: str, columns: ValueKinds, cast: Callable[[str], str]
) -> str:
    """The macro `place` by which SQL calls the server's `function` through the scalar `predict`, a text's.

    cast  the SQL of a text → the SQL of the value that it stands for
    """
    parameters, row = _row(columns)
    call = f"{quoted(predict)}({literal(function)}, {row}, {STATEMENT_ARGUMENT})"
    return f"CREATE OR REPLACE MACRO {place}({parameters}) AS {cast(call)}"


def _row(columns: ValueKinds) -> tuple[str, str]:
    """The parameters of a macro, and the input that is made of them: of a table's columns, a row as JSON."""
    if not columns:
        return "input", "input"
    parameters = [quoted(name) for name in _told_apart([name for name, _ in columns])]
    values = [f"CAST({name} AS {_KINDS[kind]})" for name, (_, kind) in zip(parameters, columns, strict=True)]
    return ", ".join(parameters), f"CAST(json_array({', '.join(values)}) AS VARCHAR)"


def _told_apart(columns: Sequence[str]) -> list[str]:
    """Their names; of those that are one to DuckDB, as `a` and `A` are, all but the first have a number.

    A name that it cannot have would keep every function of the server from being registered.
    """
    names: dict[str, str] = {}
    for column in columns:
        name, number = column or "column", 0
        while name.casefold() in names:
            number += 1
            name = f"{column or 'column'}_{number}"
        names[name.casefold()] = name
    return [*names.values()]


def catalog_statements(scalar_of: dict[str, str], view_source: str) -> list[str]:
    """The statements that fill the catalog `ml_udf`."""
    statements = [f"ATTACH IF NOT EXISTS ':memory:' AS {CATALOG} (READ_WRITE)"]
    for name, (parameters, _) in GENERIC.items():
        arguments = ", ".join(parameters)
        statements.append(
            f"CREATE OR REPLACE MACRO {CATALOG}.{name}({arguments}) AS "
            f"{quoted(scalar_of[name])}({arguments}, {STATEMENT_ARGUMENT})"
        )
    statements.append(
        f"CREATE OR REPLACE MACRO {CATALOG}.filter(fn, input, label, min_score := 0.5) AS "
        f"{_MIN_SCORE} <= {quoted(scalar_of['score'])}(fn, input, label, {STATEMENT_ARGUMENT})"
    )
    statements.append(f"CREATE OR REPLACE MACRO {CATALOG}.similarity(a, b) AS {_SIMILARITY}")
    for view, columns in {**VIEWS, "stat_functions": _STATISTICS}.items():
        shape = "[{" + ", ".join(f'"{column}": "{kind}"' for column, kind in columns.items()) + "}]"
        statements.append(
            f"CREATE OR REPLACE VIEW {CATALOG}.{view} AS SELECT unnest(from_json("
            f"{quoted(view_source)}('{view}', txid_current()::VARCHAR), '{shape}'), max_depth := 2)"
        )
    return statements


def options_of(statement: str, defaults: Options) -> Options:
    """The options of a statement: the session's variables over `defaults`. Raises `BadOption`."""
    texts = statement.split(_SEPARATOR, len(SETTINGS))[1:]
    if not texts:  # called past the macro
        return defaults
    given = {setting.name: text for setting, text in zip(SETTINGS, texts, strict=True) if text}
    return defaults.overridden(given)
