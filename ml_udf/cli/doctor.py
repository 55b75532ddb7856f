"""`ml-udf doctor`: every link of the chain, tried for real, and what to mend where one is broken."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer

from ml_udf.cli.console import check_dsn, console
from ml_udf.cli.findings import Finding, failed, found, noted, show
from ml_udf.cli.pg_doctor import check_cluster, check_installation
from ml_udf.cli.server_options import ServerOptions, asks_a_server
from ml_udf.cli.tls_doctor import check_certificates
from ml_udf.client import Client, Options, Prediction
from ml_udf.client.endpoints import endpoints_of
from ml_udf.errors import Forbidden, InputError, MlUdfError, Unauthorized, UnknownFunction

__all__ = ["doctor"]

# extra → what it needs, and what is missing without it
_EXTRAS = {
    "duckdb": (("duckdb", "pyarrow"), "SQL functions in DuckDB"),
    "server": (("fastapi", "uvicorn", "sqlalchemy", "alembic"), "serving from this machine"),
    "worker": (("torch", "numpy", "pillow", "safetensors", "onnxruntime"), "running models on this machine"),
}
# A path that cannot exist: the worker has to look for it, so its answer proves the whole way.
_PROBE = "ml-udf-doctor-probe"


@asks_a_server
def doctor(
    postgres: Annotated[
        str | None, typer.Option(metavar="DSN", help="a database whose extension is to be checked too")
    ] = None,
    *,
    server: ServerOptions,
) -> None:
    """Check every link between SQL and the model, and say what to mend.

    Ends with status 1 when something is broken.
    """
    check_dsn(postgres or "")
    broken = 0
    sections: list[tuple[str, Iterator[Finding]]] = [
        ("This Python", _check_packages()),
        *_endpoints(server),
        ("PostgreSQL on this machine", check_installation()),
    ]
    if postgres is not None:
        sections.append(("The database", check_cluster(postgres)))
    for title, findings in sections:
        console.print(f"\n{title}", style="bold")
        broken += sum(show(finding) for finding in findings)
    if broken:
        console.print(f"\n{broken} to mend.", style="bold red")
        raise typer.Exit(1)
    console.print("\nAll links hold.", style="bold green")


def _check_packages() -> Iterator[Finding]:
    for extra, (packages, purpose) in _EXTRAS.items():
        versions, missing = [], []
        for package in packages:
            try:
                versions.append(f"{package} {version(package)}")
            except PackageNotFoundError:
                missing.append(package)
        if missing:
            yield noted(f"{extra}: no {', '.join(missing)}", f"for {purpose}: pip install 'ml_udf[{extra}]'")
        else:
            yield found(f"{extra}: {', '.join(versions)}")


def _endpoints(server: ServerOptions) -> list[tuple[str, Iterator[Finding]]]:
    """Each endpoint by itself: one that is down is not hidden by another that answers."""
    try:
        endpoints = endpoints_of(server.endpoint)
    except MlUdfError as error:
        return [(f"The endpoint {server.endpoint}", iter([failed(error.message, error.hint)]))]
    return [(f"The endpoint {each}", _check_endpoint(replace(server, endpoint=each))) for each in endpoints]


def _check_endpoint(server: ServerOptions) -> Iterator[Finding]:
    try:
        client = server.client()
    except MlUdfError as error:
        yield failed(error.message, error.hint)
        return
    try:
        yield from check_certificates(server)
        yield from _check_server(client)
    except MlUdfError as error:
        yield failed(error.message, error.hint or "see the server's log")
    finally:
        client.close()


def _check_server(client: Client) -> Iterator[Finding]:
    began_s = time.monotonic()
    server = client.get("/v2")
    took_ms = (time.monotonic() - began_s) * 1000
    yield found(f"{server.get('name')} {server.get('version')} answers in {took_ms:.1f} ms")
    if "ml_udf" not in server.get("extensions", []):
        yield noted(
            "it is an Open Inference Protocol server, but not ml_udf's",
            "functions work; name each one, since it has no list: functions=[…]",
        )
        return
    if not client.endpoint.startswith("local:"):
        yield from _check_front(client)
        yield from _check_workers(client)
        yield from _check_servers(client)
        yield from _check_sources(client)
    functions = client.get("/v1/functions")["functions"]
    if not functions:
        yield noted("it has no functions", "register a model (POST /register), then PUT /v1/functions/NAME")
    for function in functions:
        yield _check_function(client, str(function["name"]))


def _check_sources(client: Client) -> Iterator[Finding]:
    """The databases that the server reads datasets from: whether each role may read, and no more."""
    try:
        sources = client.get("/v1/sources")["sources"]
    except Forbidden:
        yield noted(
            "this token may ask and read: what the server's sources may do was not looked at",
            "the operator's own (--token-file of the server) shows it",
        )
        return
    except (Unauthorized, UnknownFunction):  # another's to see; a server older than this
        return
    for source in sources:
        roles = ", ".join(source["roles"]) or "no database role"
        if source["problem"]:
            yield failed(
                f"source {source['name']} ({roles}): {source['problem']}",
                "a role that may SELECT and no more: docs/training.md, in the server's connections file",
            )
        else:
            yield found(f"source {source['name']} reads as a role that may no more; it is for {roles}")


def _check_front(client: Client) -> Iterator[Finding]:
    """What reads the server's connections, keeps its answers, and decides, and why these."""
    try:
        told = client.get("/v1/front")
    except (Forbidden, Unauthorized, UnknownFunction):  # another's to see; a server older than this
        return
    yield found(f"its {told['front']} front reads the connections: {told['why']}")
    if (store := told.get("answer_store")) is not None:
        yield found(f"its {store['name']} store keeps answers: {store['why']}")
    if (core := told.get("core")) is not None:
        yield found(f"its {core['name']} core decides: {core['why']}")


def _check_workers(client: Client) -> Iterator[Finding]:
    workers = client.get("/v1/workers")["workers"]
    for worker in workers:
        name, device = worker.get("name"), worker.get("device")
        resident = ", ".join(worker.get("resident", [])) or "nothing"
        if worker.get("state") == "up":
            yield found(f"worker {name} on {device} is up; resident: {resident}{_ended_before(worker)}")
        else:
            why = worker.get("last_error") or "it has not said why"
            yield failed(
                f"worker {name} is {worker.get('state')}: {why}",
                "the server starts it again; its log says more",
            )
    if not workers:
        yield failed("it has no worker", "start the server with --workers 1 or more")


def _check_servers(client: Client) -> Iterator[Finding]:
    """Who shares the registry, and which of them trains."""
    try:
        told = client.get("/v1/servers")
    except (Forbidden, Unauthorized, UnknownFunction):  # another's to see; a server older than this
        return
    servers = told["servers"]
    leading = next((each["name"] for each in servers if each["state"] == "leading"), None)
    if leading is None:
        yield noted(
            "no server of its registry trains now",
            "one takes over within ten seconds of the last one's end; where none does, their logs say why",
        )
    elif leading == told["here"]:
        yield found("of its registry's servers it is the one that trains")
    else:
        yield found(f"{leading}, of the same registry, is the server that trains")
    for each in servers:
        if each["state"] == "gone":
            yield noted(f"server {each['name']} was last seen at {each['seen_at']}", "start it again")


def _ended_before(worker: Mapping[str, Any]) -> str:
    """How the last life of a worker that is up ended; "" where this is its first."""
    why, at, restarts = (worker.get(field) for field in ("last_error", "last_error_at", "restarts"))
    if not why:
        return ""
    return f"; restarted {restarts} times, the last time after {why}" + (f" ({at})" if at else "")


def _probed(client: Client, name: str) -> Prediction:
    try:
        return client.predict(name, [_PROBE], Options(on_error="null", row_class="interactive"))
    except Forbidden:  # a token whose rows are bulk at most
        return client.predict(name, [_PROBE], Options(on_error="null", row_class="bulk"))


def _check_function(client: Client, name: str) -> Finding:
    try:
        prediction = _probed(client, name)
    except MlUdfError as error:
        return failed(f"{name}: {error.message}", error.hint or "see the server's log")
    fault = prediction.errors[0]
    if fault is not None and not isinstance(fault, InputError):
        return failed(f"{name}: {fault.message}", fault.hint or "see the server's log")
    took_ms = prediction.stats.elapsed_s * 1000
    return found(
        f"{name} (version {prediction.model_version}) answered a probe through its worker in {took_ms:.1f} ms"
    )
