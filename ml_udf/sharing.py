"""Who sees a function, a model or a dataset of a server, as a call, for the command line and the SDK."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args
from urllib.parse import quote

from ml_udf.client import Client

__all__ = ["KINDS", "SharedKind", "share"]

SharedKind = Literal["function", "model", "dataset"]
KINDS: tuple[SharedKind, ...] = get_args(SharedKind)


def share(
    client: Client,
    kind: SharedKind,
    name: str,
    *,
    visibility: str | None = None,
    shared_with: Sequence[str] = (),
    owner: str | None = None,
) -> dict[str, Any]:
    """Say who sees a thing, as its owner or an admin: `visibility`, or the tokens that it is shared with.

    owner: whose it is from now on; admins may say so. None = as it is. Returns `name`, `owner`, `visibility`,
    `shared_with`. Raises the errors of `ml_udf.errors`.
    """
    form: dict[str, Any] = {}
    if visibility is not None:
        form["visibility"] = visibility
    if shared_with:
        form["shared_with"] = list(shared_with)
    if owner is not None:
        form["owner"] = owner
    return client.put(f"/v1/{kind}s/{quote(name, safe='')}/visibility", form)
