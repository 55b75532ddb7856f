"""`ml-udf share KIND NAME`: who sees a function, a model or a dataset."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from ml_udf.cli.console import console, fail
from ml_udf.cli.server_options import ServerOptions, asks_a_server
from ml_udf.sharing import share as shared

__all__ = ["share"]


class _Kind(StrEnum):
    function = "function"
    model = "model"
    dataset = "dataset"


@asks_a_server
def share(
    kind: Annotated[_Kind, typer.Argument(help="what it is")],
    name: Annotated[str, typer.Argument(help="what it is called")],
    with_: Annotated[str, typer.Option("--with", help="names of tokens that see it, with commas")] = "",
    public: Annotated[bool, typer.Option("--public", help="every token sees it")] = False,
    private: Annotated[bool, typer.Option("--private", help="its owner's token and admins' see it")] = False,
    owner: Annotated[str | None, typer.Option("--owner", help="give it to this token; for admins")] = None,
    *,
    server: ServerOptions,
) -> None:
    """Say who sees a function, a model or a dataset: ml-udf share function udf_x --with bi."""
    said = {"public": public, "private": private, "shared": bool(with_)}
    chosen = [word for word, is_said in said.items() if is_said]
    if len(chosen) > 1 or not (chosen or owner is not None):
        fail("who may see it?", "say one of --with TOKENS, --public, --private, or --owner TOKEN")
    told: dict[str, Any] = {}
    with server.asking() as client:
        told = shared(
            client,
            kind.value,
            name,
            visibility=chosen[0] if chosen else None,
            shared_with=[each.strip() for each in with_.split(",") if each.strip()],
            owner=owner,
        )
    seen_by = ", ".join(told.get("shared_with", ())) or told["visibility"]
    console.print(f"{kind.value} {name}: {told['owner'] or 'nobody'}'s, {seen_by}", markup=False)
