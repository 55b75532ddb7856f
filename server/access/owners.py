"""What the server does in the name of whose a thing is: as they may, and no more. Pure."""

from __future__ import annotations

from server.access.caller import Caller, Kind
from server.access.things import Things
from server.access.tokens import Tokens
from server.access.view import View
from server.errors import Forbidden

__all__ = ["view_of_owner"]


def view_of_owner(tokens: Tokens, things: Things, kind: Kind, name: str) -> View:
    """What a thing's owner sees; of what nobody owns, everything.

    Raises `Forbidden` where the owner's token counts no more.
    """
    owner = things.of(kind, name).owner
    if not owner:
        return View(Caller(), things)
    token = tokens.named(owner)
    if token is None:
        raise Forbidden(
            f"the token {owner}, whose the {kind} {name} is, counts no more: make one of that name, "
            f"or give the {kind} to another (ml-udf share {kind} {name} --owner …)"
        )
    return View(token.caller(""), things)
