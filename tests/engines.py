"""The two engines behind one small face, so that one suite holds both to the same contract."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import duckdb
import psycopg
import pytest

import ml_udf.duckdb
from ml_udf.cli.pg_sandbox import Sandbox
from ml_udf.duckdb import FaultyRowsWarning
from ml_udf.errors import MlUdfError

FUNCTIONS = ("udf_text", "udf_photo", "udf_slow", "udf_features")
NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
_SQLSTATE = re.compile(r"\[([0-9A-Z]{5}) \w+\]")


class SqlError(Exception):
    """A statement that failed: its SQLSTATE and everything that the user reads."""

    def __init__(self, sqlstate: str, text: str) -> None:
        super().__init__(f"{sqlstate}: {text}")
        self.sqlstate = sqlstate
        self.text = text


class Engine(Protocol):
    name: str

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a statement. Raises `SqlError`."""
        ...

    def set(self, setting: str, value: str) -> None:
        """Set `ml_udf.SETTING` for the session."""
        ...

    def warned(self) -> list[str]:
        """The warnings since the last look."""
        ...

    def cancel_after(self, seconds: float) -> threading.Timer:
        """Cancel, from another thread, the statement that runs in `seconds`."""
        ...

    def close(self) -> None: ...


class DuckDb:
    name = "duckdb"

    def __init__(
        self, endpoint: str, functions: Sequence[str] = FUNCTIONS, options: Mapping[str, str] = NO_OPTIONS
    ) -> None:
        self._con = duckdb.connect()
        try:
            self._registration = ml_udf.duckdb.register(
                self._con, endpoint, functions=functions, **_of_register(options)
            )
        except MlUdfError as error:
            raise SqlError(error.sqlstate, error.report()) from error
        self._warnings = warnings.catch_warnings(record=True)
        self._caught = self._warnings.__enter__()
        warnings.simplefilter("always")

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection itself."""
        return self._con

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        try:
            return self._con.execute(sql).fetchall()
        except duckdb.Error as error:
            found = _SQLSTATE.search(str(error))
            raise SqlError(found[1] if found else "", str(error)) from error

    def set(self, setting: str, value: str) -> None:
        self._con.execute(f"SET VARIABLE ml_udf_{setting} = '{value}'")

    def warned(self) -> list[str]:
        self._registration.flush_warnings()
        texts = [str(w.message) for w in self._caught if issubclass(w.category, FaultyRowsWarning)]
        self._caught.clear()
        return texts

    def cancel_after(self, seconds: float) -> threading.Timer:
        return _timer(seconds, self._registration.interrupt)

    def close(self) -> None:
        self._warnings.__exit__(None, None, None)
        self._registration.close()
        self._con.close()


class Postgres:
    """A session with the batching module, or one that calls row by row as if it were not there."""

    def __init__(
        self,
        dsn: str,
        endpoint: str,
        functions: Sequence[str],
        options: Mapping[str, str] = NO_OPTIONS,
        *,
        batching: bool,
    ) -> None:
        self.name = "postgres" if batching else "postgres-by-row"
        self._con = psycopg.connect(dsn, autocommit=True)
        self._notices: list[str] = []
        self._con.add_notice_handler(lambda notice: self._notices.append(_told(notice)))
        self._batching = batching
        self.begin(endpoint, functions, options)

    def begin(self, endpoint: str, functions: Sequence[str], options: Mapping[str, str] = NO_OPTIONS) -> None:
        """Make the server and its functions anew, whatever other sessions have left of them; and forget what
        this session was told.
        """
        self._con.execute("DROP SERVER IF EXISTS ml_udf CASCADE")
        listed = {"url": endpoint, **options}
        token = listed.pop("token", None)
        written = ", ".join(f"{name} '{value}'" for name, value in listed.items())
        self.query(f"CREATE SERVER ml_udf FOREIGN DATA WRAPPER ml_udf OPTIONS ({written})")
        if token is not None:
            self.query(f"CREATE USER MAPPING FOR PUBLIC SERVER ml_udf OPTIONS (token '{token}')")
        for function in functions:
            self.query(f"SELECT ml_udf.drop_function('{function}', if_exists => true)")
            self.query(f"SELECT ml_udf.create_function('{function}')")
        self.reset()

    @property
    def is_open(self) -> bool:
        """Whether it has not been ended, by itself or by the server."""
        return not self._con.closed

    def reset(self) -> None:
        """Forget the session's settings, temporary tables and warnings."""
        self._con.execute("DISCARD TEMP")
        self._con.execute("RESET ALL")
        if not self._batching:
            self._con.execute("SET ml_udf.batching = off")
        self._notices.clear()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        try:
            cursor = self._con.execute(sql)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise SqlError(error.sqlstate or "", _told(error.diag)) from error

    def set(self, setting: str, value: str) -> None:
        self._con.execute(f"SET ml_udf.{setting} = '{value}'")

    def warned(self) -> list[str]:
        texts, self._notices[:] = list(self._notices), []
        return texts

    def cancel_after(self, seconds: float) -> threading.Timer:
        return _timer(seconds, self._con.cancel)

    def close(self) -> None:
        self._con.close()


def make_engine(
    name: str,
    endpoint: str,
    request: pytest.FixtureRequest,
    functions: Sequence[str] = FUNCTIONS,
    options: Mapping[str, str] = NO_OPTIONS,
) -> Engine:
    """functions: of the endpoint, to be called by their names.

    options: of the server, as PostgreSQL has them, and the token of its mapping. Raises `SqlError`.
    """
    if name == "duckdb":
        return DuckDb(endpoint, functions, options)
    cluster: Sandbox = request.getfixturevalue("cluster")
    installed = cluster.installed
    if endpoint.startswith("local:") and installed is not None and installed.local_path is None:
        pytest.skip(f"LOCAL ENDPOINTS NOT TESTED: {installed.notes}")
    if not cluster.sql("SELECT 1 FROM pg_database WHERE datname = 'contract'"):
        cluster.sql("CREATE DATABASE contract")
        cluster.sql("CREATE EXTENSION ml_udf CASCADE", "contract")
    return Postgres(cluster.dsn("contract"), endpoint, functions, options, batching=name == "postgres")


def _of_register(options: Mapping[str, str]) -> dict[str, Any]:
    return {name: value == "true" if name == "allow_plain" else value for name, value in options.items()}


def _told(diagnostic: psycopg.errors.Diagnostic) -> str:
    parts = (diagnostic.message_primary, diagnostic.message_detail, diagnostic.message_hint)
    return "\n".join(filter(None, parts))


def _timer(seconds: float, act: Any) -> threading.Timer:
    timer = threading.Timer(seconds, act)
    timer.start()
    return timer
