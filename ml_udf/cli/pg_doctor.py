"""The PostgreSQL links of the chain, for `ml-udf doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ml_udf.cli.findings import Finding, failed, found, noted
from ml_udf.cli.pg_extension import default_version
from ml_udf.cli.pg_server import PostgresServer, SetupError

if TYPE_CHECKING:
    import psycopg

__all__ = ["check_cluster", "check_installation"]


def check_installation() -> Iterator[Finding]:
    """Whether a PostgreSQL here has PL/Python and the extension's files."""
    try:
        server = PostgresServer.find()
    except SetupError as error:
        yield noted(error.message, f"only where PostgreSQL is wanted: {error.hint}")
        return
    if server.plpython() is None:
        yield noted(
            f"PostgreSQL {server.version} in {server.bin_dir} has no PL/Python",
            f"apt-get install postgresql-plpython3-{server.major}",
        )
        return
    yield found(f"PostgreSQL {server.version} with PL/Python in {server.bin_dir}")
    if (server.share_dir / "extension" / "ml_udf.control").exists():
        yield found(f"the extension's files are in {server.share_dir / 'extension'}")
    else:
        yield noted("the extension is not installed into it", "ml-udf postgres install")


def check_cluster(dsn: str) -> Iterator[Finding]:
    """The links inside a database: extension, endpoint, functions."""
    try:
        import psycopg
    except ModuleNotFoundError:
        yield failed("psycopg is missing", "pip install 'ml_udf[server]'")
        return
    try:
        connection = psycopg.connect(dsn, connect_timeout=5)
    except psycopg.Error as error:
        # The driver's message names host and user, never the password.
        yield failed(f"no connection: {str(error).strip()}", "check the DSN, and that the server runs")
        return
    with connection:
        try:
            yield from _check_database(connection)
        except psycopg.Error as error:
            yield failed(str(error).strip(), "see the message's hint, and the database's log")


def _check_database(connection: psycopg.Connection) -> Iterator[Finding]:
    version = connection.info.parameter_status("server_version")
    yield found(f"PostgreSQL {version}, database {connection.info.dbname}, as {connection.info.user}")
    installed, available = _extension_versions(connection)
    if installed is None:
        if available is None:
            yield failed(
                "the extension's files are not there", "on the database's host: ml-udf postgres install"
            )
        else:
            yield failed("the extension is not in this database", "CREATE EXTENSION ml_udf CASCADE")
        return
    # A cluster that looks for extensions below another root finds them, but does not list them.
    newest = available or default_version()
    if newest == installed:
        yield found(f"extension ml_udf {installed}")
    else:
        yield noted(
            f"extension ml_udf is {installed} in this database, and could be {newest}",
            "ALTER EXTENSION ml_udf UPDATE",
        )
    yield from _check_servers(connection)
    yield _check_batching(connection)
    functions = connection.execute("SELECT name FROM ml_udf.functions ORDER BY 1").fetchall()
    if not functions:
        yield noted("no functions are visible", "SELECT ml_udf.create_function('NAME')")
    for (name,) in functions:
        yield _check_sql_function(connection, name)


def _extension_versions(connection: psycopg.Connection) -> tuple[str | None, str | None]:
    """The version in this database, and the one that its host's files would make of it."""
    row = connection.execute(
        "SELECT (SELECT extversion FROM pg_extension WHERE extname = 'ml_udf'),"
        " (SELECT default_version FROM pg_available_extensions WHERE name = 'ml_udf')"
    ).fetchone()
    return (None, None) if row is None else (row[0], row[1])


def _check_servers(connection: psycopg.Connection) -> Iterator[Finding]:
    servers = connection.execute(
        "SELECT s.srvname, (SELECT string_agg(o, ', ') FROM unnest(s.srvoptions) AS o WHERE o LIKE 'url=%'), "
        "'allow_plain=true' = ANY (s.srvoptions) "
        "FROM pg_foreign_server s JOIN pg_foreign_data_wrapper w ON w.oid = s.srvfdw "
        "WHERE w.fdwname = 'ml_udf'"
    ).fetchall()
    for name, url, plain in servers:
        if plain:
            yield noted(
                f"server {name}: {url}, where rows and the token may go in the clear (allow_plain)",
                "give the inference server a certificate, unless a proxy does TLS: docs/tls.md",
            )
        else:
            yield found(f"server {name}: {url}")
    if not servers:
        yield failed(
            "it names no inference server",
            "CREATE SERVER ml_udf FOREIGN DATA WRAPPER ml_udf OPTIONS (url 'http://127.0.0.1:8080')",
        )


def _check_batching(connection: psycopg.Connection) -> Finding:
    loaded = connection.execute(
        "SELECT 1 FROM pg_settings WHERE name = 'ml_udf.batching' AND setting = 'on'"
    ).fetchone()
    if loaded:
        return found("the batching module is loaded: plain SQL runs in batches")
    return noted(
        "the batching module is not loaded: scalar functions run row by row",
        "ml_udf.predict_many(fn, array_agg(x)) runs in batches without it",
    )


def _check_sql_function(connection: psycopg.Connection, name: str) -> Finding:
    row = connection.execute(
        "SELECT (r).error FROM (SELECT ml_udf.try_predict(%s, 'ml-udf-doctor-probe') AS r) AS probe", [name]
    ).fetchone()
    error = row[0] if row else None
    if error is None or error.startswith(("input_", "no_confident_answer")):
        return found(f"{name} answered a probe from SQL")
    return failed(f"{name}: {error}", "ml-udf doctor --endpoint … tests the server alone")
