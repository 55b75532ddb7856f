"""Whose a thing is and who sees it, as its page shows it to a caller. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.access.caller import Kind
from server.access.view import View

__all__ = ["SharingView", "asked_sharing", "sharing_view"]


@dataclass(frozen=True, slots=True)
class SharingView:
    """owner: a token's name; "" = nobody's · shared_with: tokens, told to who may change it alone

    may_change: whether the caller says who sees it; may_give: and whose it is
    """

    kind: Kind
    name: str
    owner: str
    visibility: str
    shared_with: Sequence[str]
    may_change: bool
    may_give: bool

    @property
    def said(self) -> str:
        """Who sees it, in words."""
        if self.visibility == "public":
            return "every token that reaches it"
        others = f", {', '.join(self.shared_with)}" if self.shared_with else ""
        if self.visibility == "shared" and not others:
            others = ", and the tokens that it is shared with"
        return f"{f'{self.owner}, ' if self.owner else ''}admins{others}"


def sharing_view(view: View, kind: Kind, name: str, *, may: bool) -> SharingView:
    """may: whether the caller's scope lets them change things of this kind."""
    told: dict[str, Any] = view.shown(kind, name)
    may_change = may and view.changes(kind, name)
    shared_with = told.get("shared_with", ())
    return SharingView(
        kind,
        name,
        told["owner"],
        told["visibility"],
        shared_with,
        may_change,
        may_change and view.is_admin,
    )


def asked_sharing(form: Mapping[str, Any], known: SharingView) -> dict[str, Any]:
    """A page's form as a program would send it: what is as it was is left out."""
    asked: dict[str, Any] = {"visibility": str(form.get("visibility", ""))}
    if asked["visibility"] == "shared":
        names = str(form.get("shared_with", "")).replace("\n", ",").split(",")
        asked["shared_with"] = list(dict.fromkeys(name.strip() for name in names if name.strip()))
    owner = str(form.get("owner", known.owner)).strip()
    if owner != known.owner:
        asked["owner"] = owner
    return asked
