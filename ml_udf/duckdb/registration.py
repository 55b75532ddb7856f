"""What one `register` puts into a DuckDB connection, and takes out again."""

from __future__ import annotations

import atexit
import contextlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa
from duckdb.func import ARROW, SPECIAL

from ml_udf.client import Client
from ml_udf.client.claim import Claim
from ml_udf.client.column import asked_by_key
from ml_udf.client.function_info import FunctionInfo
from ml_udf.client.statement import Binding
from ml_udf.config import Options
from ml_udf.duckdb.calls import Calls
from ml_udf.duckdb.evaluation import EvaluationFunctions, evaluation_statements
from ml_udf.duckdb.faults import spelled_out
from ml_udf.duckdb.generic import GenericFunctions, asked_function
from ml_udf.duckdb.scalar import Scalar, parted
from ml_udf.duckdb.surface import CATALOG, GENERIC, catalog_statements, function_macro
from ml_udf.duckdb.training import FUNCTIONS_CATALOG, TrainingFunctions, training_statements
from ml_udf.duckdb.vectors import TEXT, ArrowVector, column_of, fitting
from ml_udf.errors import BadOption, Cancelled, MlUdfError
from ml_udf.quoting import literal, quoted

__all__ = ["Registration", "register"]

_PREFIX = "ml_udf_call_"  # of the Arrow functions behind the macros of the catalog

# DuckDB counts functions made in Python as its own; those made here take columns of any number and type.
_BUILTIN = """
    SELECT lower(function_name) FROM duckdb_functions()
    WHERE internal AND NOT (varargs IS NOT DISTINCT FROM 'ANY' AND parameters = ['col0'])"""

Functions = Iterable[str] | Mapping[str, str | Binding] | None
_Body: TypeAlias = Callable[..., pa.Array]

# What DuckDB is given. It frees a function that is removed or replaced, though a statement of another
# connection goes on to call it, which ends the process. So the last ones stay, some hundred registrations.
_alive: deque[_Body] = deque(maxlen=10_000)


def register(
    con: duckdb.DuckDBPyConnection,
    endpoint: str = "http://127.0.0.1:8080",
    *,
    token: str | None = None,
    functions: Functions = None,
    options: Options | None = None,
    allow_plain: bool = False,
    sslrootcert: str | None = None,
    sslcert: str | None = None,
    sslkey: str | None = None,
    user: str = "",
) -> Registration:
    """Make a server's functions SQL functions of `con`; what an earlier call registered is replaced.

    endpoint    `http://host:port`, `https://host:port`, or `local:/path/to/home` (no server at all); several
                servers of one registry with commas between them
    functions   names, or {SQL name: the server's name, or a `Binding`}; None = all that the server has.
                A server that is not ours has no list: name them.
    options     defaults of every call; `SET VARIABLE ml_udf_on_error = 'null'` and its like go before them
    allow_plain whether http:// may leave this machine, where all between can read token and rows
    sslrootcert file of the authorities (PEM) that may vouch for the server; None = those of this machine
    sslcert     file of the certificate (PEM) that a server sees that wants one of its clients
    sslkey      file of its private key, readable by this user alone; None = in sslcert, too
    user        in whose name is asked, for the server's audit log and statistics, such as
                `getpass.getuser()`; "" says nothing. PostgreSQL says its current_user.

    Every connection of the same database (`con.cursor()`, a thread's own, the reader of a view) knows them;
    the others call with the options of here, and a pause of 0.3 s ends what counts as one statement.

    Raises the errors of `ml_udf.errors`; nothing is registered then.
    """
    try:
        if not isinstance(options, Options | None):
            raise BadOption(
                "options is no Options", hint="from ml_udf.client import Options; options=Options(slo_ms=200)"
            )
        client = Client(
            endpoint,
            token=token,
            allow_plain=allow_plain,
            sslrootcert=sslrootcert,
            sslcert=sslcert,
            sslkey=sslkey,
            claim=Claim(user),
        )
        return Registration(con, client, functions, options or Options())
    except MlUdfError as error:
        raise error.with_traceback(None) from None  # it says all: the frames below are ours


class Registration:
    """The functions of one connection. Keep it to `interrupt()`, or to `close()` early."""

    def __init__(
        self, con: duckdb.DuckDBPyConnection, client: Client, functions: Functions, options: Options
    ) -> None:
        self._con = con
        self._client = client
        self._calls = Calls(con, client, options)
        self._arrow_functions: list[tuple[duckdb.DuckDBPyConnection, str]] = []
        self._bodies: list[tuple[str, list[_Body]]] = []
        self._training = TrainingFunctions(
            con, client, _PREFIX + "predict", self._calls, self._define_deployed
        )
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
        self._calls.interrupts.interrupt()

    def flush_warnings(self) -> None:
        """Give the warnings of finished statements now instead of a moment later."""
        self._calls.faults.flush()

    def close(self) -> None:
        """Remove the functions and close the endpoint."""
        atexit.unregister(self._at_exit)
        self._calls.faults.flush()
        self._calls.interrupts.stop_listening()
        for name in self.functions:
            self._con.execute(f"DROP MACRO IF EXISTS temp.{quoted(name)}")
        self._leave_search_path()
        self._con.execute(f"DETACH DATABASE IF EXISTS {CATALOG}")
        self._con.execute(f"DETACH DATABASE IF EXISTS {FUNCTIONS_CATALOG}")
        for owner, name in self._arrow_functions:
            with contextlib.suppress(duckdb.Error):  # another registration may have replaced it
                owner.remove_function(name)
        for name, held in self._bodies:  # a statement of another connection may be under way
            held[0] = _closed(name)
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
        rows = self._con.execute(_BUILTIN)
        builtin = {row[0] for row in rows.fetchall()}
        for name in names:
            if name.lower() in builtin:
                raise BadOption(
                    f"{name!r} is a function of DuckDB itself, or one that you have made",
                    hint=f"give it another SQL name: functions={{'udf_{name}': '{name}'}}",
                )

    def _define(self, name: str, binding: Binding, info: FunctionInfo) -> None:
        self._create_scalar(self._con, Scalar(name, binding, info, self._calls))
        self._con.execute(function_macro(name, info.columns))

    def _define_deployed(self, con: duckdb.DuckDBPyConnection, name: str, info: FunctionInfo) -> None:
        """A function that SQL has deployed, for connections without its macro. con: one that is not busy."""
        if all(known != name for _, known in self._arrow_functions):
            self._create_scalar(con, Scalar(name, Binding(name), info, self._calls))

    def _create_scalar(self, con: duckdb.DuckDBPyConnection, scalar: Scalar) -> None:
        def answer(*vectors: ArrowVector) -> pa.Array:
            return scalar.answers(vectors)

        # By that name DuckDB would find the macro of an earlier registration, and not the function behind it.
        con.execute(f"DROP MACRO IF EXISTS temp.{quoted(scalar.name)}")
        try:
            self._create(con, scalar.name, answer, scalar.result)
        except duckdb.CatalogException as error:
            raise BadOption(
                f"another connection of this database has registered {scalar.name!r}",
                hint="every connection knows it: register once, or close() that registration first",
            ) from error

    def _define_catalog(self) -> None:
        generic = GenericFunctions(self._calls)
        told: dict[str, _Body] = {
            "feedback": self._feedback,
            "feedback_by_id": lambda *vectors: self._feedback(*vectors, by_id=True),
        }
        behind = {name: _PREFIX + name for name in GENERIC}
        for name, (_, result) in GENERIC.items():
            body = told.get(name) or _body(generic, name)
            self._create(self._con, behind[name], body, result, acts=name in told)
        self._create(self._con, _PREFIX + "view", self._view, "VARCHAR")
        self._create(self._con, _PREFIX + "train", self._training.call, "VARCHAR", acts=True)
        evaluation = EvaluationFunctions(self._con, self._client, self._calls)
        self._create(self._con, _PREFIX + "evaluate", evaluation.call, "VARCHAR", acts=True)
        for statement in [
            *catalog_statements(behind, _PREFIX + "view"),
            *training_statements(_PREFIX + "train"),
            *evaluation_statements(_PREFIX + "evaluate"),
        ]:
            self._con.execute(statement)
        ((path, database, schema),) = self._con.execute(
            "SELECT current_setting('search_path'), current_database(), current_schema()"
        ).fetchall()
        if not path:  # so that a function that SQL deploys is there by its plain name
            self._con.execute(f"SET search_path = {literal(_path_of(database, schema))}")

    def _leave_search_path(self) -> None:
        ((path,),) = self._con.execute("SELECT current_setting('search_path')").fetchall()
        parts = [part for part in path.split(",") if not part.startswith(FUNCTIONS_CATALOG)]
        if ",".join(parts) != path:
            self._con.execute(f"SET search_path = {literal(','.join(parts))}")

    def _create(
        self,
        con: duckdb.DuckDBPyConnection,
        name: str,
        body: _Body,
        result: str,
        *,
        acts: bool = False,
    ) -> None:
        held = [body]

        # DuckDB looks at the parameters: any number, of any type.
        def columns(*vectors: ArrowVector) -> pa.Array:
            return held[0](*vectors)

        _alive.append(columns)
        self._bodies.append((name.removeprefix(_PREFIX), held))
        with contextlib.suppress(duckdb.Error):  # there was none
            con.remove_function(name)
        con.create_function(
            name,
            columns,
            None,
            result,
            type=ARROW,
            null_handling=SPECIAL,  # NULLs are ours: never sent
            side_effects=acts,  # without them, ORDER BY … LIMIT 3 evaluates three rows
        )
        self._arrow_functions.append((con, name))

    def _feedback(self, *vectors: ArrowVector, by_id: bool = False) -> pa.Array:
        (functions, inputs, labels), statement = parted(vectors)
        photos = not by_id and (pa.types.is_binary(inputs.type) or pa.types.is_large_binary(inputs.type))
        try:
            names: list[str | None] = fitting("feedback", functions, TEXT).to_pylist()
            values = column_of(inputs if photos else fitting("feedback", inputs, TEXT))
            told = column_of(fitting("feedback", labels, TEXT))
        except MlUdfError as error:
            self._calls.note(error)
            raise spelled_out(error, asked_function(functions) or "feedback") from None

        def ask(function: str, own: list[tuple[Any, Any]]) -> list[str | None]:
            mine = [value for value, _ in own], [label for _, label in own]
            return self._calls.feedback(Binding(function), statement, *mine, by_id=by_id)

        pairs: list[tuple[Any, Any]] = list(zip(values, told, strict=True))
        return TEXT.array(asked_by_key(names, pairs, ask, None))

    def _view(self, views: ArrowVector, _transactions: ArrowVector) -> pa.Array:
        return TEXT.array([json.dumps(self._view_rows(view)) for view in views.to_pylist()])

    def _view_rows(self, view: str) -> list[dict[str, Any]]:
        if view == "stat_functions":
            return self._calls.statistics()
        return self._client.listed(view)


def _closed(name: str) -> _Body:
    def refuse(*_vectors: ArrowVector) -> pa.Array:
        raise spelled_out(Cancelled("the registration was closed while the statement ran"), name)

    return refuse


def _body(generic: GenericFunctions, name: str) -> _Body:
    return lambda *vectors: generic.call(name, vectors)


def _path_of(database: str, schema: str) -> str:
    """A search path of the schema that is current, and the functions that are deployed from SQL."""
    return f"{quoted(database)}.{quoted(schema)},{FUNCTIONS_CATALOG}.main"
