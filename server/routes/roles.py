"""The database roles in whose name a session asks, as a request names them."""

from __future__ import annotations

from server.errors import BadOption

__all__ = ["roles_of"]


def roles_of(given: object) -> list[str] | None:
    """The session's own first; None = the holder of the token in person. Raises `BadOption`."""
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(role, str) for role in given):
        raise BadOption("'roles' must be a list of the names of roles")
    return given
