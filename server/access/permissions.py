"""Who sees a thing, and who may change it. Pure; the one place that decides.

A thing is owned by the token that made it. What a caller may not see does not exist for them: it stands in
no list, and asking for it gets the same error as asking for a name that was never there (INFaaS §3.1:
private and public models).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from server.access.caller import Caller, Kind

__all__ = ["VISIBILITIES", "Thing", "Visibility", "changes", "sees"]

Visibility = Literal["private", "shared", "public"]
VISIBILITIES: tuple[Visibility, ...] = get_args(Visibility)


@dataclass(frozen=True, slots=True)
class Thing:
    """Something that has an owner.

    owner: a token's name; "" for what was made before there were tokens, which is everybody's
    shared_with: names of tokens, where it is `shared`
    """

    kind: Kind
    name: str
    owner: str = ""
    visibility: Visibility = "public"
    shared_with: frozenset[str] = frozenset()


def sees(caller: Caller, thing: Thing) -> bool:
    """Whether a thing exists for a caller, who may then use it as far as their scopes go."""
    if caller.is_admin:
        return True
    if not caller.grants.reach(thing.kind, thing.name):
        return False
    if thing.visibility == "public" or (thing.owner and thing.owner == caller.token):
        return True
    return thing.visibility == "shared" and caller.token in thing.shared_with


def changes(caller: Caller, thing: Thing) -> bool:
    """Whether a caller may change or delete a thing that they see: its owner, and an admin.

    What nobody owns may be changed by everybody whose scope allows it.
    """
    return caller.is_admin or not thing.owner or thing.owner == caller.token
