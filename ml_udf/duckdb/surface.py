"""The SQL that stands in front of the Arrow functions: macros and views.

A macro adds what DuckDB does not tell its functions: which transaction this is, and the session's
`ml_udf_*` variables. A transaction is one statement unless the user says BEGIN: then the promises that hold
for a statement (one version, one memo) hold for the whole transaction. Generic functions and views live in
an attached in-memory catalog named `ml_udf`, so that nothing is written to the user's database.
"""

from __future__ import annotations

from ml_udf.config import SETTINGS, Options
from ml_udf.errors import BadOption

__all__ = [
    "CATALOG",
    "GENERIC",
    "catalog_statements",
    "function_body",
    "function_macro",
    "options_of",
    "quoted",
]

CATALOG = "ml_udf"
_SEPARATOR = "\x1f"  # ASCII's unit separator: in no setting
_VARIABLES = [f"coalesce(getvariable('ml_udf_{setting.name}')::VARCHAR, '')" for setting in SETTINGS]
# A constant to DuckDB, evaluated anew by every execution. current_query() would tell statements of one
# transaction apart, but it is volatile: ORDER BY … LIMIT 3 would then ask for every row.
_STATEMENT = f"concat_ws(chr(31), txid_current(), {', '.join(_VARIABLES)})"

# generic function → (parameters, their SQL types, result type)
GENERIC: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "predict": (("fn", "input"), ("VARCHAR", "VARCHAR"), "VARCHAR"),
    "try_predict": (
        ("fn", "input"),
        ("VARCHAR", "VARCHAR"),
        "STRUCT(value VARCHAR, confidence DOUBLE, model_version VARCHAR, error VARCHAR)",
    ),
    "predict_many": (("fn", "inputs"), ("VARCHAR", "VARCHAR[]"), "VARCHAR[]"),
}

_VIEWS = {
    "functions": {
        "name": "VARCHAR",
        "version": "VARCHAR",
        "task": "VARCHAR",
        "models": "VARCHAR[]",
        "policy": "VARCHAR",
        "slo_ms": "DOUBLE",
    },
    "models": {
        "name": "VARCHAR",
        "version": "VARCHAR",
        "task": "VARCHAR",
        "architecture": "VARCHAR",
        "accuracy": "DOUBLE",
        "resident": "BOOLEAN",
    },
    "datasets": {
        "name": "VARCHAR",
        "snapshot": "VARCHAR",
        "task": "VARCHAR",
        "source": "VARCHAR",
        "query": "VARCHAR",
        "target": "VARCHAR",
        "rows": "BIGINT",
        "classes": "VARCHAR[]",
        "splits": "STRUCT(train BIGINT, validation BIGINT, test BIGINT)",
        "unreadable": "BIGINT",
        "taken_at": "TIMESTAMPTZ",
    },
    "jobs": {
        "id": "BIGINT",
        "dataset": "VARCHAR",
        "snapshot": "VARCHAR",
        "state": "VARCHAR",
        "reason": "VARCHAR",
        "models": "VARCHAR[]",
        "policy": "VARCHAR",
        "advisor": "VARCHAR",
        "epochs_used": "BIGINT",
        "epochs_budget": "BIGINT",
        "trials": "BIGINT",
        "best_score": "DOUBLE",
        "best_model": "VARCHAR",
        "created_at": "TIMESTAMPTZ",
        "ended_at": "TIMESTAMPTZ",
    },
    "trials": {
        "job_id": "BIGINT",
        "model": "VARCHAR",
        "trial": "BIGINT",
        "state": "VARCHAR",
        "knobs": "JSON",
        "warm": "BOOLEAN",
        "parent_trial": "BIGINT",
        "worker": "VARCHAR",
        "epochs": "BIGINT",
        "score": "DOUBLE",
        "best_score": "DOUBLE",
        "checkpoint": "VARCHAR",
        "reason": "VARCHAR",
    },
    "stat_functions": {
        "name": "VARCHAR",
        "statements": "BIGINT",
        "rows": "BIGINT",
        "rows_sent": "BIGINT",
        "batches": "BIGINT",
        "retries": "BIGINT",
        "failed_rows": "BIGINT",
        "seconds": "DOUBLE",
    },
}


def quoted(name: str) -> str:
    """An SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def function_macro(name: str, scalar: str) -> str:
    """The macro by which SQL calls `scalar(input, statement)` as `name(input)`."""
    return f"CREATE OR REPLACE TEMPORARY MACRO {quoted(name)}(input) AS {quoted(scalar)}(input, {_STATEMENT})"


def function_body(name: str, predict: str) -> str:
    """The SQL of a macro by which the server's function `name` is called through the scalar `predict`."""
    literal = "'" + name.replace("'", "''") + "'"
    return f"{quoted(predict)}({literal}, input, {_STATEMENT})"


def catalog_statements(scalar_of: dict[str, str], view_source: str) -> list[str]:
    """The statements that fill the catalog `ml_udf`."""
    statements = [f"ATTACH IF NOT EXISTS ':memory:' AS {CATALOG}"]
    for name, (parameters, _, _) in GENERIC.items():
        arguments = ", ".join(parameters)
        statements.append(
            f"CREATE OR REPLACE MACRO {CATALOG}.{name}({arguments}) AS "
            f"{quoted(scalar_of[name])}({arguments}, {_STATEMENT})"
        )
    for view, columns in _VIEWS.items():
        shape = "[{" + ", ".join(f'"{column}": "{kind}"' for column, kind in columns.items()) + "}]"
        statements.append(
            f"CREATE OR REPLACE VIEW {CATALOG}.{view} AS SELECT unnest(from_json("
            f"{quoted(view_source)}('{view}', txid_current()::VARCHAR), '{shape}'), max_depth := 2)"
        )
    return statements


def options_of(statement: str, defaults: Options) -> Options:
    """The options of a statement: the session's variables over `defaults`. Raises `BadOption`."""
    texts = statement.split(_SEPARATOR)[1 : 1 + len(SETTINGS)]
    if len(texts) != len(SETTINGS):
        raise BadOption("the function was called without its macro", hint="call it by its SQL name")
    given = {setting.name: text for setting, text in zip(SETTINGS, texts, strict=True) if text}
    return defaults.overridden(given)
