"""What acts on a server from DuckDB's SQL: `ml_udf.create_dataset`, `train`, `share`, `pause_bulk`, …

A statement that runs keeps its connection busy, so the dataset's query, and the macro of a function that was
deployed, go by a second connection to the same database. It sees what is committed, and no temporary tables.
The rows travel as they come: a part of a few megabytes at a time, in the order of the key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import duckdb
import pyarrow as pa

from ml_udf.bulk import BULK_VERBS, BulkCalls
from ml_udf.client import Client
from ml_udf.client.function_info import FunctionInfo
from ml_udf.duckdb.calls import Calls
from ml_udf.duckdb.faults import spelled_out
from ml_udf.duckdb.queries import checked_query
from ml_udf.duckdb.surface import CATALOG, predict_macro
from ml_udf.duckdb.vectors import TEXT, ArrowVector, output_vector
from ml_udf.errors import BadOption, MlUdfError
from ml_udf.pipelines import create_pipeline
from ml_udf.quoting import literal, quoted
from ml_udf.sharing import SharedKind, share
from ml_udf.training import PUSHED, TrainingCalls, json_of

__all__ = ["FUNCTIONS_CATALOG", "TrainingFunctions", "training_statements"]

FUNCTIONS_CATALOG = "ml_udf_functions"  # of macros alone: its name on the search path hides no table

_PART_ROWS = 20_000
_PART_BYTES = 16 << 20

# SQL name → ((parameter, its default; None = required), result as SQL over the JSON text {})
_MACROS: dict[str, tuple[tuple[tuple[str, str | None], ...], str]] = {
    "create_dataset": (
        (
            ("name", None),
            ("query", None),
            ("target", "NULL"),
            ("key", "NULL"),
            ("task", "'image-classification'"),
            ("input", "NULL"),
            ("entity", "NULL"),
            ("time", "NULL"),
            ("validation", "0.15"),
            ("test", "0.15"),
        ),
        "{}->>'snapshot'",
    ),
    "refresh_dataset": ((("dataset", None),), "{}->>'snapshot'"),
    "train": (
        (
            ("dataset", None),
            ("task", "NULL"),
            ("models", "NULL"),
            ("budget", "NULL"),
            ("policy", "NULL"),
            ("advisor", "'random'"),
            ("max_epochs", "NULL"),
            ("seed", "0"),
            ("size", "NULL"),
            ("visibility", "'private'"),
            ("pretrained", "false"),
            ("metric", "NULL"),
            ("class_weight", "NULL"),
            ("knobs", "NULL"),
            ("patience", "NULL"),
            ("delta", "NULL"),
            ("max_trials", "NULL"),
            ("refit", "NULL"),
            ("backbone", "NULL"),
        ),
        "({}->>'id')::BIGINT",
    ),
    "deploy": (
        (
            ("function", None),
            ("job", "NULL"),
            ("choose", "'ensemble'"),
            ("slo_ms", "NULL"),
            ("promote", "'always'"),
            ("task", "NULL"),
            ("cascade", "NULL"),
            ("proxy", "NULL"),
        ),
        "from_json({}, '"
        + json.dumps(
            {
                "function": "VARCHAR",
                "version": "BIGINT",
                "models": "VARCHAR[]",
                "validation_accuracy": "DOUBLE",
                "test_accuracy": "DOUBLE",
                "test_low": "DOUBLE",
                "test_high": "DOUBLE",
                "test_rows": "BIGINT",
                "best_single": "DOUBLE",
                "subsets": "MAP(VARCHAR, DOUBLE)",
                "promoted": "BOOLEAN",
                "p_value": "DOUBLE",
                "looks": "BIGINT",
                "level": "DOUBLE",
                "majority_accuracy": "DOUBLE",
                "warning": "VARCHAR",
                "combine": "VARCHAR",
                "fitted_rows": "BIGINT",
                "held_out": "MAP(VARCHAR, DOUBLE)",
                "refit": "VARCHAR[]",
                "thresholds": "MAP(VARCHAR, DOUBLE)",
                "metric": "VARCHAR",
                "validation_score": "DOUBLE",
                "test_score": "DOUBLE",
                "baseline": "DOUBLE",
                "baseline_said": "VARCHAR",
                "cascade": "JSON",
            }
        )
        + "')",
    ),
    "create_pipeline": (
        (
            ("name", None),
            ("stages", None),
            ("slo_ms", "NULL"),
            ("goal_split", "NULL"),
            ("answer_cache", "NULL"),
        ),
        "({}->>'version')::BIGINT",
    ),
    "create_function": ((("name", None), ("function", "NULL"), ("wants", "NULL")), "{}->>'name'"),
    "retrain": (
        (("function", None), ("every", "NULL"), ("budget", "NULL")),
        "{}->>'state'",
    ),
    "rollback": ((("function", None),), "({}->>'version')::BIGINT"),
    "share": (
        (
            ("kind", None),
            ("name", None),
            ("visibility", "NULL"),
            ("shared_with", "NULL"),
            ("owner", "NULL"),
        ),
        "{}->>'visibility'",
    ),
    "pause_bulk": ((("id", None),), "{}->>'state'"),
    "resume_bulk": ((("id", None),), "{}->>'state'"),
    "cancel_bulk": ((("id", None),), "{}->>'state'"),
    "cap_bulk": ((("id", None), ("max_rows_per_s", None)), "({}->>'max_rows_per_s')::DOUBLE"),
    "cancel": ((("job", None),), "{}->>'state'"),
    "pause": ((("job", None),), "{}->>'state'"),
    "resume": ((("job", None),), "{}->>'state'"),
    "extend": ((("job", None), ("budget", None)), "{}->>'state'"),
}

_UNIT = ("train", "budget")  # a number alone is refused, as on PostgreSQL: to the server it would be epochs


def training_statements(scalar: str) -> list[str]:
    """The statements that put the macros over `scalar(verb, arguments, search path)` into the catalog."""
    statements = [f"ATTACH IF NOT EXISTS ':memory:' AS {FUNCTIONS_CATALOG} (READ_WRITE)"]
    for name, (parameters, result) in _MACROS.items():
        head = ", ".join(p if default is None else f"{p} := {default}" for p, default in parameters)
        pairs = ", ".join(
            f"'{parameter}', {parameter}" + ("::VARCHAR" if (name, parameter) == _UNIT else "")
            for parameter, _ in parameters
        )
        call = f"{quoted(scalar)}('{name}', json_object({pairs})::VARCHAR, current_setting('search_path'))"
        statements.append(
            f"CREATE OR REPLACE MACRO {CATALOG}.{name}({head}) AS {result.replace('{}', call, 1)}"
        )
    return statements


class TrainingFunctions:
    """The scalar behind the macros.

    predict   the scalar by which deployed functions are called
    deployed  called with each, and a connection that is free
    """

    def __init__(
        self,
        con: duckdb.DuckDBPyConnection,
        client: Client,
        predict: str,
        calls: Calls,
        deployed: Callable[[duckdb.DuckDBPyConnection, str, FunctionInfo], None],
    ) -> None:
        self._con = con
        self._client = client
        self._session = calls
        self._predict = predict
        self._own: dict[str, dict[str, Any]] = {}  # datasets by name, as they were registered here
        self._deployed = deployed
        self._beside: duckdb.DuckDBPyConnection | None = None  # a connection that owns what was deployed

    def call(self, verbs: ArrowVector, arguments: ArrowVector, paths: ArrowVector) -> pa.Array:
        """One JSON text for each row: what the server answered."""
        asked = zip(verbs.to_pylist(), arguments.to_pylist(), paths.to_pylist(), strict=True)
        return TEXT.array([self._told(verb, json.loads(text), path) for verb, text, path in asked])

    def _told(self, verb: str, given: dict[str, Any], path: str) -> str:
        try:
            with self._session.interrupts.call() as check:
                if verb == "share":
                    return json.dumps(self._shared(given, check))
                if verb in BULK_VERBS:
                    bulk = BulkCalls(self._client, check)
                    return json.dumps(bulk.do(verb, given["id"], given.get("max_rows_per_s")))
                if verb == "create_pipeline":
                    return json.dumps(self._piped(given, check))
                return json.dumps(self._answer(TrainingCalls(self._client, check), verb, given, path))
        except MlUdfError as error:
            self._session.note(error)
            raise spelled_out(error, verb) from error

    def _shared(self, given: Mapping[str, Any], check: Callable[[], None]) -> dict[str, Any]:
        kind: SharedKind = _text(given, "kind")  # type: ignore[assignment]  # `share` looks
        return share(
            self._client,
            kind,
            _text(given, "name"),
            visibility=given["visibility"],
            shared_with=given["shared_with"],
            owner=given["owner"],
            on_wait=check,
        )

    def _piped(self, given: Mapping[str, Any], check: Callable[[], None]) -> dict[str, Any]:
        name = _text(given, "name")
        made = create_pipeline(
            self._client,
            name,
            given["stages"],
            slo_ms=given["slo_ms"],
            goal_split=given["goal_split"],
            answer_cache=given["answer_cache"],
            on_wait=check,
        )
        self._define(name, name)
        return made

    def _answer(self, calls: TrainingCalls, verb: str, given: dict[str, Any], path: str) -> dict[str, Any]:
        if verb == "create_dataset":
            made = calls.push(given, self._parts(given, path))
            self._own[_text(given, "name")] = given
            return made
        if verb == "refresh_dataset":
            return self._refresh(calls, _text(given, "dataset"), path)
        if verb == "train":
            return calls.train({**given, "knobs": json_of(given.get("knobs"), "knobs")})
        if verb == "deploy":
            return self._deploy(calls, given)
        if verb == "create_function":
            return self._create(calls, given)
        if verb == "retrain":
            return calls.retrain(_text(given, "function"), given["every"], given["budget"])
        if verb == "rollback":
            return calls.rollback(_text(given, "function"))
        if verb == "extend":
            return calls.extend(_whole(given, "job"), given["budget"])
        if verb == "pause":
            return calls.pause(_whole(given, "job"))
        if verb == "resume":
            return calls.resume(_whole(given, "job"))
        return calls.cancel(_whole(given, "job"))

    def _refresh(self, calls: TrainingCalls, name: str, path: str) -> dict[str, Any]:
        known = calls.dataset(name)
        if known["source"] != PUSHED:  # the server reads it
            return calls.refresh(name)
        own = self._own.get(name)
        if own is None:
            raise BadOption(
                f"the query of dataset {name} was not registered by this connection",
                hint="call ml_udf.create_dataset again: what others registered is not run on your data",
            )
        return calls.push(own, self._parts(own, path))

    def _deploy(self, calls: TrainingCalls, given: Mapping[str, Any]) -> dict[str, Any]:
        function = _text(given, "function")
        deployed = calls.deploy(
            _whole(given, "job"),
            function,
            choose=given["choose"],
            slo_ms=given["slo_ms"],
            promote=given["promote"],
            task=given["task"],
            cascade=given["cascade"],
            proxy=given["proxy"],
        )
        self._define(function, function)
        return deployed

    def _create(self, calls: TrainingCalls, given: Mapping[str, Any]) -> dict[str, Any]:
        name = _text(given, "name")
        function = name if given["function"] is None else _text(given, "function")
        if given["wants"] is not None:
            calls.wish(function, json_of(given["wants"], "wants"))
        self._define(name, function)
        return {"name": name}

    def _define(self, name: str, function: str) -> None:
        """Make `name` call the server's function in SQL."""
        info = self._client.look_up(function)
        place = f"{FUNCTIONS_CATALOG}.{quoted(name)}"
        if self._beside is None:
            self._beside = self._con.cursor()
        cast = output_vector(info).cast
        self._beside.execute(predict_macro(place, function, self._predict, info.columns, cast))
        self._deployed(self._beside, name, info)

    def _parts(self, given: Mapping[str, Any], path: str) -> Iterator[bytes]:
        query, key, target = (_text(given, name) for name in ("query", "key", "target"))
        with self._con.cursor() as cursor:
            try:
                checked_query(cursor, query)
                if path:
                    cursor.execute(f"SET search_path = {literal(path)}")
                reader = cursor.sql(
                    f"SELECT * FROM (\n{query.strip().rstrip(';')}\n) AS dataset "
                    f"ORDER BY {quoted(key)}, {quoted(target)}"
                ).to_arrow_reader(_PART_ROWS)
                for batch in reader:
                    yield from _encoded(batch)
            except duckdb.Error as error:
                raise BadOption(
                    f"DuckDB refused the dataset's query: {error}",
                    hint="it runs beside your statement: no temporary tables, nothing uncommitted",
                ) from error


def _encoded(batch: pa.RecordBatch) -> Iterator[bytes]:
    """The batch as Arrow IPC streams of some `_PART_BYTES` at most."""
    pieces = max(1, -(-batch.nbytes // _PART_BYTES))
    rows = max(1, -(-batch.num_rows // pieces))
    for start in range(0, batch.num_rows, rows):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch.slice(start, rows))
        yield sink.getvalue().to_pybytes()


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value:
        raise BadOption(f"{name!r} is missing", hint=f"{name} => '…'")
    return value


def _whole(given: Mapping[str, Any], name: str) -> int:
    value = given.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadOption(f"{name!r} must be a whole number", hint="SELECT id FROM ml_udf.jobs")
    return value
