"""Who sent a request, and what their token lets them do. Pure data.

infer    ask functions for rows
read     lists, statistics, pages
train    datasets, jobs, feedback; reads too
deploy   models, functions; reads too
admin    all of it, tokens and the audit log too
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal, get_args

__all__ = [
    "DEFAULT_SHARES",
    "EVERYTHING",
    "KINDS",
    "NOBODY",
    "SCOPES",
    "Caller",
    "Grants",
    "Kind",
    "RowClassName",
    "Scope",
    "Shares",
    "implied",
]

Scope = Literal["infer", "read", "train", "deploy", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

Kind = Literal["function", "model", "dataset", "source", "media_root"]
KINDS: tuple[Kind, ...] = get_args(Kind)

RowClassName = Literal["interactive", "bulk"]

_IMPLIED: Mapping[Scope, frozenset[Scope]] = {
    "infer": frozenset(("infer",)),
    "read": frozenset(("read",)),
    "train": frozenset(("train", "read")),
    "deploy": frozenset(("deploy", "read")),
    "admin": frozenset(SCOPES),
}
_ANY = ("*",)


def implied(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """These scopes, and those that go with them."""
    return frozenset().union(*(_IMPLIED[scope] for scope in scopes))


@dataclass(frozen=True)
class Grants:
    """What a token reaches, by patterns of names (`*`, `?`, `[abc]`, as `fnmatch` reads them)."""

    functions: tuple[str, ...] = _ANY
    models: tuple[str, ...] = _ANY
    datasets: tuple[str, ...] = _ANY
    sources: tuple[str, ...] = _ANY
    media_roots: tuple[str, ...] = _ANY

    def reach(self, kind: Kind, name: str) -> bool:
        """Whether a thing of this name is among them."""
        patterns: tuple[str, ...] = getattr(self, f"{kind}s")
        return patterns == _ANY or any(fnmatchcase(name, pattern) for pattern in patterns)

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Grants:
        """As `to_json` wrote it; what is left out reaches everything."""
        return cls(**{each.name: tuple(form[each.name]) for each in fields(cls) if each.name in form})

    def to_json(self) -> dict[str, list[str]]:
        """What is narrowed."""
        every = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: list(patterns) for name, patterns in every.items() if patterns != _ANY}


EVERYTHING = Grants()


@dataclass(frozen=True)
class Shares:
    """How much a caller may take beside others; 0 = no bound of its own.

    weight: of its share where several wait in one class · rows_per_s: over some seconds · queued_rows,
    queued_bytes: waiting, in all functions together · uploads: of datasets at a time · epochs: of training
    at a time · row_class: the highest class that its rows may claim · priority: the most urgent that they
    may name, 1 being the highest; 0 = none at all
    """

    weight: float = 1.0
    rows_per_s: float = 0.0
    queued_rows: int = 0
    queued_bytes: int = 0
    uploads: int = 0
    epochs: int = 0
    row_class: RowClassName = "interactive"
    priority: int = 1

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Shares:
        """As `to_json` wrote it."""
        return cls(**{each.name: form[each.name] for each in fields(cls) if each.name in form})

    def to_json(self) -> dict[str, Any]:
        """What differs from the defaults."""
        every = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in every.items() if value != getattr(DEFAULT_SHARES, name)}


DEFAULT_SHARES = Shares()


@dataclass(frozen=True)
class Caller:
    """Who sent a request.

    token: its name; "" where the server has no tokens, and everybody on this machine may do everything
    is_shared: the token is that of a file, which several hold: these are told apart by their address
    user, database: what the SQL side says of itself, by the word of the token; "" for nothing
    digest: the token's own, as another may have its name later
    session: of the browser that is logged in with it; "" for programs
    """

    token: str = ""
    address: str = ""
    scopes: frozenset[Scope] = frozenset(SCOPES)
    grants: Grants = EVERYTHING
    shares: Shares = DEFAULT_SHARES
    is_shared: bool = True
    user: str = ""
    database: str = ""
    digest: str = field(default="", repr=False, compare=False)
    session: str = field(default="", repr=False, compare=False)

    @cached_property
    def key(self) -> str:
        """What tells callers apart who share something."""
        return f"{self.token}@{self.address}" if self.is_shared else self.token

    @cached_property
    def in_name_of(self) -> str:
        """Whom the SQL side names: `ana of food`, a user and a database; "" for nobody."""
        return f"{self.user} of {self.database}" if self.user and self.database else self.user

    def may(self, scope: Scope) -> bool:
        """Whether their token has this scope, or one that implies it."""
        return scope in self.scopes

    @property
    def is_admin(self) -> bool:
        """Whether nothing is kept from them."""
        return "admin" in self.scopes

    @property
    def bulk_only(self) -> bool:
        """Whether their rows are bulk, and may not say `interactive`."""
        return self.shares.row_class == "bulk"

    @property
    def most_urgent(self) -> int:
        """The least `priority` that their rows may name (1 is the most urgent); 0 = none at all."""
        return self.shares.priority


NOBODY = Caller()  # in particular: all that a caller may
