"""SQL functions made for a server's functions: `ml_udf.create_function`, `ml_udf.drop_function`.

A function's own text is its record: the call in its body holds, as JSON, what it was created with. So it
survives renaming, another schema, dump and restore, and there is no table to fall behind. Only superusers can
write such a text, so it can be trusted.

PL/Python being open to superusers alone, the text is given by `ml_udf._define()` (SECURITY DEFINER, no
arguments), which takes its order from here. All else is done by the caller's own statements: what was looked
up before may be old (a transaction's snapshot can be hours old), so PostgreSQL's own checks decide whose a
function is, and the privileged part gives text to functions that the caller holds already, and no owner.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ml_udf.client import Client, FunctionInfo
from ml_udf.client.answer_type import AnswerKind, answer_kind, sample_answer
from ml_udf.config import Options
from ml_udf.errors import BadOption, ReadOnly, WrongType
from ml_udf.postgres.backend import Backend
from ml_udf.postgres.binary import MOST_DIMENSIONS, PGVECTOR, is_binary
from ml_udf.postgres.columns import DEPENDENTS, ROW, ColumnFunction
from ml_udf.postgres.faults import PostgresError
from ml_udf.postgres.fitting import Fitting
from ml_udf.postgres.spi import Spi
from ml_udf.postgres.statements import Statements
from ml_udf.postgres.wrapper import READER, Wrapper
from ml_udf.training import TrainingCalls, json_of

__all__ = ["Definitions", "FunctionDefinition"]

_INPUTS = ("text", "bytea", "real", "double precision", "integer", "bigint", "real[]", "double precision[]")

# Of each kind of answer, where nothing is said.
_RETURNS: Mapping[AnswerKind, str] = {
    "text": "text",
    "labels": "text[]",
    "boxes": "jsonb",
    "json": "jsonb",
    "number": "double precision",
    "whole": "bigint",
    "boolean": "boolean",
    "floats": "real[]",
    "numbers": "double precision[]",
}

_TYPE = """
    SELECT pg_catalog.format_type(t.oid, NULL) AS name, t.typtype IN ('b', 'd', 'e', 'r') AS plain,
           pg_catalog.has_type_privilege(t.oid, 'USAGE') AS permitted
    FROM pg_catalog.pg_type t WHERE t.oid = $1::pg_catalog.regtype"""

# pgvector's own type, wherever the extension was put, where the caller may use it.
_PGVECTOR = """
    SELECT pg_catalog.format_type(t.oid, NULL) AS name
    FROM pg_catalog.pg_extension e
    JOIN pg_catalog.pg_depend d ON d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass
        AND d.refobjid = e.oid AND d.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND d.deptype = 'e'
    JOIN pg_catalog.pg_type t ON t.oid = d.objid
    WHERE e.extname = 'vector' AND t.typname = 'vector'
      AND pg_catalog.has_type_privilege(t.oid, 'USAGE')
      AND pg_catalog.has_schema_privilege(t.typnamespace, 'USAGE')"""

_EXISTING = """
    SELECT EXISTS (SELECT FROM ml_udf._wrappers() w WHERE w.oid = p.oid) AS ours,
           pg_catalog.pg_has_role(p.proowner, 'USAGE') AS owned,
           pg_catalog.format_type(p.prorettype, NULL) AS returns
    FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = $1 AND p.proname = $2 AND pg_catalog.oidvectortypes(p.proargtypes) = $3"""

# The function that a signature stands for now, if it belongs to role $2.
_HELD = """
    SELECT p.oid FROM pg_catalog.pg_proc p
    WHERE p.oid = pg_catalog.to_regprocedure($1) AND pg_catalog.pg_has_role($2, p.proowner, 'USAGE')"""

_MAY_DEPLOY = """
    SELECT pg_catalog.bool_or(pg_catalog.has_function_privilege(p.oid, 'EXECUTE')) AS may
    FROM pg_catalog.pg_proc p
    WHERE p.proname = 'deploy' AND p.pronamespace = 'ml_udf'::pg_catalog.regnamespace"""

_MADE = """
    SELECT w.oid::pg_catalog.regprocedure::text AS signature
    FROM ml_udf._wrappers() w JOIN pg_catalog.pg_proc p ON p.oid = w.oid
    JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = $1 AND (p.proname, w.kind) IN (($2, 'scalar'), ($3, 'batch'))"""


@dataclass(frozen=True, slots=True)
class FunctionDefinition:
    """The arguments of `ml_udf.create_function`, in its order."""

    name: str
    function: str | None
    server: str
    input: str
    returns: str | None  # None: as the function's answers are
    options: str | None
    input_name: str | None
    output_name: str | None
    verify: bool
    schema: str | None
    grant_to: str | None = READER  # None: nobody but the owner
    wants: str | None = None  # JSON: what the server makes the function by

    def __post_init__(self) -> None:
        for field in ("name", "server", "input", "verify"):
            if getattr(self, field) is None:
                raise PostgresError("22004", f"{field} is NULL", hint="leave it out for its default")


@dataclass(frozen=True, slots=True)
class _Order:
    """What `ml_udf._define()` is to do: statements that give text to functions which `role` holds."""

    role: int
    signatures: Sequence[str]
    statements: Sequence[str]


class Definitions:
    """Creates and drops SQL functions for the functions of servers."""

    def __init__(self, spi: Spi, backend: Backend, statements: Statements, fitting: Fitting) -> None:
        self._spi = spi
        self._backend = backend
        self._statements = statements
        self._fitting = fitting
        self._order: _Order | None = None
        self._told_of_rows = False

    def create(self, asked: FunctionDefinition) -> str:
        """Create or replace an SQL function and its twin; returns its signature.

        Raises `PostgresError` for names, types and rights, `BadOption` for options, and with `verify` the
        client's errors where the server does not answer or does not know the function.
        """
        self.check_writable()
        schema, name = self._qualified(asked.name, asked.schema)
        wrapper = Wrapper(
            schema=schema,
            name=name,
            argument=self._argument_type(asked.input),
            returns="text" if asked.returns is None else self._type(asked.returns),
            server=asked.server,
            function=name if asked.function is None else asked.function,
            options=_options(asked.options),
            input_name=asked.input_name,
            output_name=asked.output_name,
            parallel="UNSAFE" if self._backend.version < 170000 else "RESTRICTED",
            grant_to=asked.grant_to,
        )
        client = self._statements.client(wrapper.server)  # refuses who has no right to use the server
        if asked.wants is not None:
            self._check_may_deploy()
            calls = TrainingCalls(client, self._statements.check_interrupts)
            calls.wish(wrapper.function, json_of(asked.wants, "wants"))
        made_for = self._statements.bound(wrapper.server)
        wrapper = replace(wrapper, server_oid=made_for.oid, server_owner=made_for.owner)
        info = self._look_up(client, wrapper) if asked.verify else None
        if info is not None and asked.returns is None:
            wrapper = replace(wrapper, returns=self._returns_of(info))
        elif info is not None:
            self._check_fits(info, wrapper.returns)
        if is_binary(wrapper.returns) and _is_named_vector(wrapper.returns):
            wrapper = replace(wrapper, twin_is_binary=self._pgvector() == wrapper.returns)
        if info is not None and info.columns:
            return self._create_of_columns(wrapper, info)
        self._create(wrapper, info)
        return wrapper.signature

    def check_writable(self) -> None:
        """What makes an SQL function behind it changes nothing of the server, where none can be made.

        Raises `ReadOnly`.
        """
        if self._backend.setting(b"transaction_read_only") == "on":
            raise ReadOnly(
                "an SQL function cannot be made in a read-only transaction",
                hint="call it on the primary, in a transaction that may write; the server was not asked",
            )

    def _check_may_deploy(self) -> None:
        """A wish changes what the server answers everybody. Raises `PostgresError`."""
        found = self._spi.row(_MAY_DEPLOY)
        if found is None or not found["may"]:
            raise PostgresError(
                "42501",
                "wants has the server make a function, which this role may not",
                hint="it takes the right to execute ml_udf.deploy",
            )

    def _create_of_columns(self, wrapper: Wrapper, info: FunctionInfo) -> str:
        """Create or replace the function of a row, and the one of its columns on top of it."""
        _check_length(wrapper.name, ROW)
        row = replace(wrapper, name=wrapper.name + ROW, argument="text")
        self._create(row, info)
        made = ColumnFunction(
            wrapper.schema, wrapper.name, info.columns, wrapper.returns, wrapper.parallel, wrapper.grant_to
        )
        existing = self._dependents(row)
        if not any(old["names"] == made.names and old["types"] == made.types for old in existing):
            self._spi.run([f"DROP FUNCTION {old['signature']}" for old in existing])
            text = (
                f"{wrapper.function} of server {wrapper.server}, by columns (made by ml_udf.create_function)"
            )
            self._spi.run(made.create(text))
        return made.signature

    def _returns_of(self, info: FunctionInfo) -> str:
        """The type of what a function answers; of a vector pgvector's, where that is and can hold it."""
        kind = answer_kind(info)
        if kind == "floats" and 1 < info.output_width <= MOST_DIMENSIONS:
            return self._pgvector() or _RETURNS[kind]
        return _RETURNS[kind]

    def _pgvector(self) -> str | None:
        found = self._spi.row(_PGVECTOR)
        return None if found is None else str(found["name"])

    def _check_fits(self, info: FunctionInfo, returns: str) -> None:
        """See that a function's answers can be values of the type that is asked for. Raises `WrongType`."""
        sample = sample_answer(info)
        kind = self._one(
            "SELECT typtype::text AS found FROM pg_catalog.pg_type WHERE oid = $1::pg_catalog.regtype",
            ("text", returns),
        )
        if sample is None or kind in ("d", "e"):  # texts show for themselves, as do some values of a type
            return
        try:
            self._fitting.value(sample, returns)
        except (BadOption, WrongType) as misfit:
            usual = self._returns_of(info)
            raise WrongType(
                f"{info.name} answers {_KINDS[answer_kind(info)]}, which cannot be returned as {returns}",
                hint=f"leave returns out for {usual}, or name another type that holds it: text, jsonb",
                detail=misfit.message,
            ) from misfit

    def _dependents(self, row: Wrapper) -> list[dict[str, Any]]:
        name = row.name.removesuffix(ROW)
        return self._spi.rows(DEPENDENTS, ("text", row.signature), ("name", row.schema), ("name", name))

    def _create(self, wrapper: Wrapper, info: FunctionInfo | None) -> None:
        """Create or replace the function of one argument, and its twin."""
        wrapper = self._as_it_was(wrapper)
        new = self._check_place(wrapper)
        for signature in wrapper.signatures():
            self._spi.run([wrapper.claim(signature, is_new=signature in new)])
        self._order = _Order(self._backend.role(), wrapper.all(), wrapper.create())
        try:
            self._spi.rows("SELECT ml_udf._define()")
        finally:
            self._order = None
        for signature in new:
            self._spi.run(wrapper.grant(signature))
        self._spi.run(wrapper.tie())
        self._spi.run(wrapper.comment(info))
        self._tell_of_rows()

    def define(self) -> None:
        """The body of `ml_udf._define()`: runs with its owner's rights, what `create` ordered."""
        order, self._order = self._order, None
        if order is None:
            raise PostgresError("42501", "ml_udf._define() is for ml_udf's own use")
        held = self._held(order)
        self._spi.run(order.statements)
        # A schema that was renamed meanwhile would have led to another function of the same name.
        if self._held(order) != held:
            raise PostgresError(
                "40001", "the function was changed by another session meanwhile", hint="try again"
            )

    def _held(self, order: _Order) -> list[int]:
        """The functions of an order, each its caller's own."""
        found = []
        for signature in order.signatures:
            row = self._spi.row(_HELD, ("text", signature), ("oid", order.role))
            if row is None:
                raise PostgresError("42501", f"must be owner of function {signature}")
            found.append(int(row["oid"]))
        return found

    def drop(self, name: str, *, if_exists: bool, schema: str | None) -> None:
        """Drop the SQL functions of that name that `create` made, and their twins. Raises `PostgresError`."""
        schema, name = self._qualified(name, schema)
        row = Wrapper(schema, name + ROW, "text", "", "", "", "")
        found = self._dependents(row)
        made = name + ROW if found else name
        found += self._spi.rows(_MADE, ("name", schema), ("name", made), ("name", made + "_batch"))
        if not found:
            message = f"there is no function {schema}.{name} that was made by ml_udf.create_function"
            if not if_exists:
                raise PostgresError(
                    "42883", message, hint="SELECT * FROM ml_udf.functions lists those there are"
                )
            self._spi.plpy.notice(message + ", skipping")
        self._spi.run([f"DROP FUNCTION {row['signature']}" for row in found])

    def _look_up(self, client: Client, wrapper: Wrapper) -> FunctionInfo:
        return client.look_up(
            wrapper.function,
            input_name=wrapper.input_name,
            output_name=wrapper.output_name,
            on_wait=self._statements.check_interrupts,
        )

    def _qualified(self, name: str, schema: str | None) -> tuple[str, str]:
        """(schema, name) of a name as SQL writes it: folded to lower case unless quoted."""
        parts = self._one("SELECT pg_catalog.parse_ident($1) AS found", ("text", name))
        if len(parts) > 2:
            raise PostgresError("42601", f"{name!r} has too many parts", hint="write name or schema.name")
        if len(parts) == 1:
            if schema is None:
                raise PostgresError("3F000", "no schema has been selected", hint="name one: schema.name")
            parts = [schema, *parts]
        _check_length(parts[1])
        return parts[0], parts[1]

    def _argument_type(self, asked: str) -> str:
        name = self._type(asked)
        if name not in _INPUTS:
            raise PostgresError(
                "0A000", f"a function cannot take {name}", hint=f"input is one of {', '.join(_INPUTS)}"
            )
        return name

    def _type(self, asked: str) -> str:
        found = self._spi.row(_TYPE, ("text", asked))
        if not found or not found["plain"]:
            raise PostgresError(
                "0A000", f"{asked} cannot be a function's type", hint="such as text, float8, jsonb"
            )
        if not found["permitted"]:
            raise PostgresError("42501", f"permission denied for type {asked}")
        return str(found["name"])

    def _check_place(self, wrapper: Wrapper) -> list[tuple[str, str, str]]:
        """Those of the wrapper's signatures that seem new. Raises `PostgresError` where it cannot be put.

        For the sake of the message alone: PostgreSQL checks again what is so by then.
        """
        if wrapper.schema in ("ml_udf", "information_schema") or wrapper.schema.startswith("pg_"):
            raise PostgresError("42939", f"schema {wrapper.schema!r} is not for functions of users")
        may_create = "SELECT pg_catalog.has_schema_privilege($1, 'CREATE') AS found"
        if not self._one(may_create, ("text", wrapper.schema)):
            raise PostgresError(
                "42501",
                f"permission denied for schema {wrapper.schema}",
                hint="its owner can GRANT CREATE ON SCHEMA, or name another: schema => '…'",
            )
        new = []
        for name, argument, returns in wrapper.signatures():
            arguments = [("name", wrapper.schema), ("name", name), ("text", argument)]
            existing = self._spi.row(_EXISTING, *arguments)
            if existing is None:
                new.append((name, argument, returns))
            else:
                _check_replaceable(f"{wrapper.schema}.{name}({argument})", returns, existing)
        return new

    def _as_it_was(self, wrapper: Wrapper) -> Wrapper:
        """`wrapper`, with the form of vectors that its twin has, if there is one: a result type stays."""
        older = replace(wrapper, twin_is_binary=False)
        for name, argument, returns in older.signatures()[1:]:
            arguments = [("name", wrapper.schema), ("name", name), ("text", argument)]
            existing = self._spi.row(_EXISTING, *arguments)
            if existing is not None and existing["returns"] == returns:
                return older
        return wrapper

    def _tell_of_rows(self) -> None:
        if not self._told_of_rows and self._backend.setting(b"ml_udf.batching") is None:
            self._told_of_rows = True
            self._spi.plpy.notice(
                "functions are called row by row here: the batching module is not loaded",
                hint="ml_udf.predict_many(function, array) takes many rows at once",
            )

    def _one(self, query: str, *arguments: tuple[str, Any]) -> Any:  # noqa: ANN401  # the query's type
        row = self._spi.row(query, *arguments)
        return row["found"] if row else None


_KINDS: Mapping[AnswerKind, str] = {
    "text": "texts",
    "labels": "lists of labels",
    "boxes": "boxes",
    "json": "JSON",
    "number": "numbers",
    "whole": "whole numbers",
    "boolean": "true or false",
    "floats": "vectors",
    "numbers": "vectors",
}


def _is_named_vector(sql_type: str) -> bool:
    return sql_type.rpartition(".")[2] == PGVECTOR


def _check_length(name: str, suffix: str = "") -> None:
    most = 57 - len(suffix)  # of the 63 that PostgreSQL keeps, six for the twin's "_batch"
    if len(name.encode()) > most:
        raise PostgresError("42622", f"{name!r} is too long", hint=f"use at most {most} bytes")


def _check_replaceable(signature: str, returns: str, existing: Mapping[str, Any]) -> None:
    if not existing["ours"]:
        raise PostgresError(
            "42723",
            f"function {signature} exists and was not made by ml_udf.create_function",
            hint="choose another name, or drop that function first",
        )
    if not existing["owned"]:
        raise PostgresError("42501", f"must be owner of function {signature}")
    if existing["returns"] != returns:
        raise PostgresError(
            "42P13",
            f"function {signature} returns {existing['returns']}, not {returns}",
            hint="drop it first with ml_udf.drop_function",
        )


def _options(text: str | None) -> dict[str, str]:
    """A function's own options, checked. Raises `BadOption`."""
    given = json.loads(text or "{}")
    if not isinstance(given, dict):
        raise BadOption("options is not an object", hint="""such as options => '{"slo_ms": 200}'""")
    texts = {name: str(value) for name, value in given.items()}
    Options().overridden(texts)
    return texts
