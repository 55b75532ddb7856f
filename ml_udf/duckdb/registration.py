"""What one `register` puts into a DuckDB connection, and takes out again."""

from __future__ import annotations

import atexit
import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import duckdb
import pyarrow as pa
from duckdb.func import ARROW, SPECIAL

from ml_udf.client import Client
from ml_udf.config import Options
from ml_udf.duckdb.calls import Calls, by_function
from ml_udf.duckdb.surface import (
    CATALOG,
    GENERIC,
    catalog_statements,
    function_macro,
    quoted,
)
from ml_udf.duckdb.training import FUNCTIONS_CATALOG, TrainingFunctions, training_statements
from ml_udf.duckdb.vectors import (
    TEXT,
    TEXTS,
    Vector,
    column_of,
    input_vector,
    output_vector,
    try_array,
)
from ml_udf.errors import BadOption, MlUdfError
from ml_udf.function_info import FunctionInfo
from ml_udf.statement import Answer, Binding

__all__ = ["Registration", "register"]

_PREFIX = "ml_udf_"  # of the Arrow functions behind the macros

Functions = Iterable[str] | Mapping[str, str | Binding] | None


def register(
    con: duckdb.DuckDBPyConnection,
    endpoint: str = "http://127.0.0.1:8080",
    *,
    token: str | None = None,
    functions: Functions = None,
    options: Options | None = None,
    allow_plain: bool = False,
    sslrootcert: str | None = None,
) -> Registration:
    """Make a server's functions SQL functions of `con`; what an earlier call registered is replaced.

    endpoint    `http://host:port`, `https://host:port`, or `local:/path/to/home` (no server at all)
    functions   names, or {SQL name: the server's name, or a `Binding`}; None = all that the server has.
                A server that is not ours has no list: name them.
    options     defaults of every call; `SET VARIABLE ml_udf_on_error = 'null'` and its like go before them
    allow_plain whether http:// may leave this machine, where all between can read token and rows
    sslrootcert file of the authorities (PEM) that may vouch for the server; None = those of this machine

    Raises the errors of `ml_udf.errors`; nothing is registered then.
    """
    client = Client(endpoint, token=token, allow_plain=allow_plain, sslrootcert=sslrootcert)
    return Registration(con, client, functions, options or Options())


class Registration:
    """The functions of one connection. Keep it to `interrupt()`, or to `close()` early."""

    def __init__(
        self, con: duckdb.DuckDBPyConnection, client: Client, functions: Functions, options: Options
    ) -> None:
        self._con = con
        self._client = client
        self._calls = Calls(client, options)
        self._arrow_functions: list[str] = []
        self._training = TrainingFunctions(con, client, _PREFIX + "call_predict", self._calls)
        bindings = self._bindings(functions)
        infos = {name: self._describe(binding) for name, binding in bindings.items()}
        self._refuse_builtins(bindings)
        self.functions = tuple(bindings)
        for name, binding in bindings.items():
            self._define(name, binding, infos[name])
        self._define_catalog()
        self._calls.interrupts.listen_to_ctrl_c()
        # DuckDB prints a list of leaked objects at exit where a connection with functions is left open.
        atexit.register(self._at_exit)

    @property
    def last_error(self) -> MlUdfError | None:
        """The error behind DuckDB's last one, which has its text alone."""
        return self._calls.last_error

    def interrupt(self) -> None:
        """End the statement under way within a moment; `con.interrupt()` alone waits for its functions."""
        self._con.interrupt()
        self._calls.interrupts.interrupt()

    def flush_warnings(self) -> None:
        """Give the warnings of finished statements now instead of a moment later."""
        self._calls.faults.flush()

    def close(self) -> None:
        """Remove the functions and let go of the endpoint."""
        atexit.unregister(self._at_exit)
        self._calls.faults.flush()
        self._calls.interrupts.stop_listening()
        for name in self.functions:
            self._con.execute(f"DROP MACRO IF EXISTS temp.{quoted(name)}")
        self._leave_search_path()
        self._con.execute(f"DETACH DATABASE IF EXISTS {CATALOG}")
        self._con.execute(f"DETACH DATABASE IF EXISTS {FUNCTIONS_CATALOG}")
        for name in self._arrow_functions:
            with contextlib.suppress(duckdb.Error):  # another registration may have replaced it
                self._con.remove_function(name)
        self._client.close()

    def _at_exit(self) -> None:
        self._calls.faults.flush()
        self._con.close()
        del self._con

    def _bindings(self, functions: Functions) -> dict[str, Binding]:
        if functions is None:
            names = [str(function["name"]) for function in self._client.get("/v1/functions")["functions"]]
            return {name: Binding(name) for name in names}
        if isinstance(functions, Mapping):
            return {n: b if isinstance(b, Binding) else Binding(b) for n, b in functions.items()}
        return {name: Binding(name) for name in functions}

    def _describe(self, binding: Binding) -> FunctionInfo:
        return self._client.look_up(
            binding.function, input_name=binding.input_name, output_name=binding.output_name
        )

    def _refuse_builtins(self, names: Iterable[str]) -> None:
        rows = self._con.execute("SELECT lower(function_name) FROM duckdb_functions() WHERE internal")
        builtin = {row[0] for row in rows.fetchall()}
        for name in names:
            if name.lower() in builtin:
                raise BadOption(
                    f"{name!r} is a function of DuckDB itself",
                    hint=f"give it another SQL name: functions={{'udf_{name}': '{name}'}}",
                )

    def _define(self, name: str, binding: Binding, info: FunctionInfo) -> None:
        source, target = input_vector(info), output_vector(info)

        def answer(inputs: Vector, statements: Vector) -> pa.Array:
            if len(inputs) == 0:
                return target.array([])
            text = statements[0].as_py()
            return target.array(self._calls.values(binding, text, column_of(inputs)))

        self._create(_PREFIX + name, answer, [source.sql, "VARCHAR"], target.sql)
        self._con.execute(function_macro(name, _PREFIX + name, info.columns))

    def _define_catalog(self) -> None:
        bodies: dict[str, Callable[..., pa.Array]] = {
            "predict": self._predict,
            "try_predict": self._try_predict,
            "predict_many": self._predict_many,
        }
        behind = {name: f"{_PREFIX}call_{name}" for name in GENERIC}
        for name, (_, types, result) in GENERIC.items():
            self._create(behind[name], bodies[name], [*types, "VARCHAR"], result)
        self._create(_PREFIX + "view", self._view, ["VARCHAR", "VARCHAR"], "VARCHAR")
        self._create(_PREFIX + "train", self._training.call, ["VARCHAR"] * 3, "VARCHAR", acts=True)
        for statement in [
            *catalog_statements(behind, _PREFIX + "view"),
            *training_statements(_PREFIX + "train"),
        ]:
            self._con.execute(statement)
        ((path, database, schema),) = self._con.execute(
            "SELECT current_setting('search_path'), current_database(), current_schema()"
        ).fetchall()
        if not path:  # so that a function that SQL deploys is there by its plain name
            self._con.execute(f"SET search_path = '{_path_of(database, schema)}'")

    def _leave_search_path(self) -> None:
        ((path,),) = self._con.execute("SELECT current_setting('search_path')").fetchall()
        parts = [part for part in path.split(",") if not part.startswith(FUNCTIONS_CATALOG)]
        if ",".join(parts) != path:
            self._con.execute(f"SET search_path = '{','.join(parts)}'")

    def _create(
        self,
        name: str,
        body: Callable[..., pa.Array],
        types: list[str],
        result: str,
        *,
        acts: bool = False,
    ) -> None:
        with contextlib.suppress(duckdb.Error):  # there was none
            self._con.remove_function(name)
        self._con.create_function(
            name,
            body,
            [*types],
            result,
            type=ARROW,
            null_handling=SPECIAL,  # NULLs are ours: never sent
            side_effects=acts,  # without them, ORDER BY … LIMIT 3 evaluates three rows
        )
        self._arrow_functions.append(name)

    # ── the generic functions ─────────────────────────────────────────────────────────────────────

    def _predict(self, names: Vector, inputs: Vector, statements: Vector) -> pa.Array:
        def ask(binding: Binding, column: list[Any]) -> list[Any]:
            return self._calls.values(binding, statements[0].as_py(), column)

        return TEXT.array(by_function(names.to_pylist(), column_of(inputs), ask, None))

    def _try_predict(self, names: Vector, inputs: Vector, statements: Vector) -> pa.Array:
        def ask(binding: Binding, column: list[Any]) -> list[tuple[Answer, str | None]]:
            return self._calls.answers(binding, statements[0].as_py(), column)

        return try_array(by_function(names.to_pylist(), column_of(inputs), ask, (Answer(), None)))

    def _predict_many(self, names: Vector, inputs: Vector, statements: Vector) -> pa.Array:
        lists: list[list[Any] | None] = inputs.to_pylist()
        flat_names = [n for n, row in zip(names.to_pylist(), lists, strict=True) for _ in row or ()]
        flat = pa.array([value for row in lists for value in row or ()], pa.string())
        answers = iter(self._predict(pa.array(flat_names, pa.string()), flat, statements).to_pylist())
        return TEXTS.array([None if row is None else [next(answers) for _ in row] for row in lists])

    def _view(self, views: Vector, _transactions: Vector) -> pa.Array:
        return TEXT.array([json.dumps(self._view_rows(view)) for view in views.to_pylist()])

    def _view_rows(self, view: str) -> list[dict[str, Any]]:
        if view == "stat_functions":
            return self._calls.statistics()
        rows: list[dict[str, Any]] = self._client.get(f"/v1/{view}")[view]
        return rows


def _path_of(database: str, schema: str) -> str:
    """A search path of the schema that is current, and the functions that are deployed from SQL."""
    return f"{quoted(database)}.{quoted(schema)},{FUNCTIONS_CATALOG}.main".replace("'", "''")
