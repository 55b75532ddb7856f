"""The options that name a server, alike for every command that asks one, and the client that they make."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from ml_udf.cli.console import INTERRUPTED, fail, token_of
from ml_udf.client import Client
from ml_udf.client.claim import Claim
from ml_udf.errors import MlUdfError

__all__ = ["DEFAULT_ENDPOINT", "ServerOptions", "asks_a_server"]

DEFAULT_ENDPOINT = "http://127.0.0.1:8080"


def _option(flag: str, help_text: str, *more: str) -> Any:  # noqa: ANN401  # as typer's own
    variable = "ML_UDF_" + flag.removeprefix("--").replace("-", "_").upper()
    return typer.Option(flag, *more, envvar=variable, help=help_text)


@dataclass(frozen=True)
class ServerOptions:
    """How a server is reached; each field is an option, and a variable ML_UDF_… of the environment."""

    endpoint: Annotated[
        str,
        _option(
            "--endpoint",
            "http://host:port, https://host:port, or local:/path/to/home; several servers of one registry "
            "with commas between them",
            "-e",
        ),
    ] = DEFAULT_ENDPOINT
    token_file: Annotated[Path | None, _option("--token-file", "a file that holds the server's token")] = None
    allow_plain: Annotated[
        bool,
        _option("--allow-plain", "let http:// leave this machine, where all between can read token and rows"),
    ] = False
    sslrootcert: Annotated[
        str | None,
        _option("--sslrootcert", "file of the authorities (PEM) that may vouch for an https:// server"),
    ] = None
    sslcert: Annotated[
        str | None,
        _option("--sslcert", "file of the certificate (PEM) for a server that wants one of its clients"),
    ] = None
    sslkey: Annotated[
        str | None, _option("--sslkey", "file of its private key, yours alone to read; none = in --sslcert")
    ] = None

    user: Annotated[
        str, _option("--user", "in whose name is asked, for the server's audit log and statistics")
    ] = ""

    def client(self) -> Client:
        """Nothing is sent yet. Raises the errors of `ml_udf.errors`."""
        return Client(self.endpoint, token=self.token, claim=Claim(self.user), **self.security)

    @property
    def token(self) -> str | None:
        """The token of its file."""
        return token_of(self.token_file)

    @property
    def security(self) -> dict[str, Any]:
        """What `Client` and `register` take by these names beside the endpoint and the token."""
        names = ("allow_plain", "sslrootcert", "sslcert", "sslkey")
        return {name: getattr(self, name) for name in names}

    @property
    def of_foreign_server(self) -> dict[str, str]:
        """The options of a foreign server in PostgreSQL beside its url."""
        given = {name: value for name, value in self.security.items() if value}
        return {name: "true" if value is True else value for name, value in given.items()}

    @contextlib.contextmanager
    def asking(self) -> Iterator[Client]:
        """A client; the command ends with what it raises, and at Ctrl-C."""
        try:
            with contextlib.closing(self.client()) as client:
                yield client
        except MlUdfError as error:
            fail(error.message, error.hint)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def asks_a_server(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of a server in the place of its parameter `server: ServerOptions`."""

    @functools.wraps(command)
    def with_server(**given: Any) -> None:  # noqa: ANN401  # options of any type
        server = ServerOptions(**{item.name: given.pop(item.name) for item in fields(ServerOptions)})
        try:
            command(server=server, **given)
        except KeyError as lacks:  # of a reply: nothing else here is looked up by names that others choose
            fail(
                f"what answers at {server.endpoint} lacks {lacks} in its answer",
                "is it an ml_udf server, and of this version? ml-udf doctor says what it is",
            )

    own = [
        each
        for each in inspect.signature(command, eval_str=True).parameters.values()
        if each.name != "server"
    ]
    options = inspect.signature(ServerOptions, eval_str=True).parameters.values()
    every = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*own, *options)]
    with_server.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]  # what typer looks at
    with_server.__annotations__ = {each.name: each.annotation for each in every}
    return with_server
