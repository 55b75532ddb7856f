"""What whoever asks for a token says of it, and how a token is shown: JSON both ways. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

from server.access.audit_entry import SERVER
from server.access.caller import DEFAULT_SHARES, SCOPES, Grants, RowClassName, Scope, Shares
from server.access.token import Token
from server.errors import BadOption

__all__ = ["RESERVED", "TokenAsked", "asked_token", "told_grants", "told_shares", "told_token"]

RESERVED = {
    "admin": "the token of --token-file",
    "ask": "the token of --ask-token-file",
    SERVER: "what the server does by itself",
}

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
_SPAN = re.compile(r"([1-9][0-9]{0,5}) ?([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_MOST_PATTERNS, _LONGEST_PATTERN = 100, 200
_MOST_SHARE = 1e15
_GRANTS = tuple(each.name for each in fields(Grants))
_SHARES = tuple(each.name for each in fields(Shares))
_FIELDS = ("name", "scopes", *_GRANTS, "shares", "users", "expires")


@dataclass(frozen=True, slots=True)
class TokenAsked:
    """A token to be. scopes: as asked for, in their order."""

    name: str
    scopes: tuple[Scope, ...]
    grants: Grants
    shares: Shares
    users: tuple[str, ...]
    expires_at: datetime | None


def asked_token(form: Mapping[str, Any], now: datetime) -> TokenAsked:
    """What a form asks for. Raises `BadOption`."""
    unknown = sorted(form.keys() - set(_FIELDS))
    if unknown:
        raise BadOption(f"a token has no field {unknown[0][:100]!r}; there are {', '.join(_FIELDS)}")
    name = form.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadOption(
            "a token's 'name' is 1 to 100 letters, digits and ._@-, and begins with a letter or digit"
        )
    if name in RESERVED:
        raise BadOption(f"the name {name!r} is that of {RESERVED[name]}; choose another one")
    scopes = _scopes(form.get("scopes"))
    grants = Grants(**{each: _patterns(each, form[each]) for each in _GRANTS if form.get(each)})
    if "admin" in scopes and grants != Grants():
        raise BadOption("an admin sees everything, and patterns do not narrow that: leave them out")
    users = _patterns("users", form["users"]) if form.get("users") else ()
    shares = _shares(form.get("shares") or {})
    return TokenAsked(name, scopes, grants, shares, users, _expiry(form.get("expires"), now))


def told_token(token: Token) -> dict[str, Any]:
    """What is shown of one, whatever may be added."""
    return {
        "name": token.name,
        "scopes": [scope for scope in SCOPES if scope in token.scopes],
        **told_grants(token.grants),
        "shares": told_shares(token.shares),
        "users": list(token.users),
    }


def told_grants(grants: Grants) -> dict[str, list[str]]:
    """All patterns, `*` too."""
    return {name: list(getattr(grants, name)) for name in _GRANTS}


def told_shares(shares: Shares) -> dict[str, Any]:
    """All of them."""
    return {name: getattr(shares, name) for name in _SHARES}


def _scopes(given: object) -> tuple[Scope, ...]:
    asked = _texts(given)
    if not asked:
        raise BadOption(f"a token needs 'scopes', a list of {', '.join(SCOPES)}")
    for each in asked:
        if each not in SCOPES:
            raise BadOption(f"there is no scope {each[:100]!r}; there are {', '.join(SCOPES)}")
    return tuple(scope for scope in SCOPES if scope in asked)


def _patterns(name: str, given: object) -> tuple[str, ...]:
    found = _texts(given)
    if found is None or len(found) > _MOST_PATTERNS or not all(_is_pattern(each) for each in found):
        raise BadOption(
            f"{name!r} must be a list of up to {_MOST_PATTERNS} patterns, such as 'udf_food_*', "
            f"each of up to {_LONGEST_PATTERN} characters"
        )
    return tuple(found)


def _is_pattern(text: str) -> bool:
    return 0 < len(text) <= _LONGEST_PATTERN and text.isprintable()


def _texts(given: object) -> list[str] | None:
    """A list of texts, or one text with commas; None for anything else."""
    if isinstance(given, str):
        return [part.strip() for part in given.split(",") if part.strip()]
    if isinstance(given, list) and all(isinstance(each, str) for each in given):
        return given
    return None


def _shares(given: object) -> Shares:
    if not isinstance(given, Mapping):
        raise BadOption("'shares' must be an object, such as {\"rows_per_s\": 100}")
    unknown = sorted(given.keys() - set(_SHARES))
    if unknown:
        raise BadOption(f"there is no share {unknown[0][:100]!r}; there are {', '.join(_SHARES)}")
    return Shares(**{name: _share(name, value) for name, value in given.items()})


def _share(name: str, value: object) -> Any:  # noqa: ANN401  # of the field's type
    default = getattr(DEFAULT_SHARES, name)
    if isinstance(default, str):
        if value not in get_args(RowClassName):
            raise BadOption(f"the share {name!r} must be {' or '.join(get_args(RowClassName))}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadOption(f"the share {name!r} must be a number")
    if not 0 <= value <= _MOST_SHARE or (name == "weight" and not value):
        raise BadOption(f"the share {name!r} cannot be {value!s:.40}: {_MOST_SHARE:g} is the most")
    if isinstance(default, int):
        if value != int(value):
            raise BadOption(f"the share {name!r} must be a whole number, not {value}")
        return int(value)
    return float(value)


def _expiry(given: object, now: datetime) -> datetime | None:
    if given is None or given == "":
        return None
    said = BadOption("'expires' must be a span such as '90d', '12h' or '8w', or a time such as 2027-01-31")
    if not isinstance(given, str):
        raise said
    span = _SPAN.fullmatch(given.strip())
    try:
        if span:
            return now + timedelta(**{_UNITS[span[2]]: int(span[1])})
        at = datetime.fromisoformat(given.strip())
    except (ValueError, OverflowError):
        raise said from None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    if at <= now:
        raise BadOption(f"'expires' lies in the past: {at.isoformat()}")
    return at
