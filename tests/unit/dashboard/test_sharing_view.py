"""What a thing's page says of whose it is, and what its form asks for."""

from __future__ import annotations

from typing import Any

import pytest

from server.access.caller import Caller, implied
from server.access.permissions import Thing
from server.access.things import Things
from server.access.view import View
from server.dashboard.sharing_view import SharingView, asked_sharing, sharing_view


def shown(token: str, thing: Thing, *, scope: Any = "deploy", may: bool = True) -> SharingView:
    things = Things()
    things.keep(thing)
    view = View(Caller(token, scopes=implied([scope])), things)
    return sharing_view(view, thing.kind, thing.name, may=may)


SHARED = Thing("function", "f", "ann", "shared", frozenset(("ben", "bi")))


def test_its_owner_sees_with_whom_it_is_shared_and_says_so() -> None:
    view = shown("ann", SHARED)
    assert (view.may_change, view.may_give) == (True, False)
    assert view.said == "ann, admins, ben, bi"


def test_whom_it_is_shared_with_does_not_see_with_whom_else() -> None:
    view = shown("ben", SHARED)
    assert (view.shared_with, view.may_change) == ((), False)
    assert view.said == "ann, admins, and the tokens that it is shared with"


def test_an_admin_gives_it_away() -> None:
    assert shown("root", SHARED, scope="admin").may_give
    assert not shown("root", SHARED, scope="admin", may=False).may_give


@pytest.mark.parametrize(
    ("form", "asked"),
    [
        ({"visibility": "private", "shared_with": "bi"}, {"visibility": "private"}),
        (
            {"visibility": "shared", "shared_with": " bi,\nshop ,, bi"},
            {"visibility": "shared", "shared_with": ["bi", "shop"]},
        ),
        ({"visibility": "public", "owner": "ann"}, {"visibility": "public"}),
        ({"visibility": "public", "owner": " ben "}, {"visibility": "public", "owner": "ben"}),
    ],
)
def test_the_form_asks_for_what_it_changes(form: dict[str, str], asked: dict[str, Any]) -> None:
    assert asked_sharing(form, shown("ann", SHARED)) == asked
