"""Who sees a function, a model or a dataset of a server, as a call, for both engines and the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args
from urllib.parse import quote

from ml_udf.client import Client
from ml_udf.client.transport import HttpRequest
from ml_udf.errors import BadOption
from ml_udf.name_list import names_of

__all__ = ["KINDS", "SharedKind", "share"]

SharedKind = Literal["function", "model", "dataset"]
KINDS: tuple[SharedKind, ...] = get_args(SharedKind)

_TIMEOUT_S = 60.0


def share(
    client: Client,
    kind: SharedKind,
    name: str,
    *,
    visibility: str | None = None,
    shared_with: Sequence[str] | str | None = None,
    owner: str | None = None,
    on_wait: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Say who sees a thing, as its owner or an admin: `visibility`, or the tokens that it is shared with.

    owner: whose it is from now on; admins may say so. None = as it is. on_wait: called in this thread at
    least every 50 ms; what it raises aborts the call. Returns `name`, `owner`, `visibility`, `shared_with`.
    Raises the errors of `ml_udf.errors`.
    """
    if kind not in KINDS:
        raise BadOption(f"there is nothing to share of the kind {kind!r}", hint=f"one of {', '.join(KINDS)}")
    form: dict[str, Any] = {}
    if visibility is not None:
        form["visibility"] = visibility
    if tokens := names_of(shared_with, "shared_with"):
        form["shared_with"] = tokens
    if owner is not None:
        form["owner"] = owner
    if not form:
        raise BadOption("who may see it?", hint="visibility => 'private', shared_with, or owner")
    path = f"/v1/{kind}s/{quote(name, safe='')}/visibility"
    request = HttpRequest("PUT", path, json.dumps(form).encode(), {"Content-Type": "application/json"})
    return client.ask(request, timeout_s=_TIMEOUT_S, on_wait=on_wait)
