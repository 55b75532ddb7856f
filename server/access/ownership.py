"""Things get owners, and change hands: the registry and `Things` in step. The shell around `permissions`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, get_args

from sqlalchemy.exc import SQLAlchemyError

from server.access.caller import Kind
from server.access.permissions import VISIBILITIES, Thing, Visibility
from server.access.things import Things
from server.access.view import View
from server.errors import BadOption, Forbidden, ServiceError
from server.store.things import StoredThing, ThingRepository
from server.supervision import Tasks

__all__ = ["Ownership"]

log = logging.getLogger("ml_udf.server.access")

_FOLLOW_S = 1.0
_MOST_SHARED = 1000
_LONGEST_NAME = 100


class Ownership:
    """default_visibility: of functions and models; datasets are private, as they show rows.

    repository: None = nothing is kept: for what runs without a registry.
    """

    def __init__(
        self,
        repository: ThingRepository | None = None,
        things: Things | None = None,
        default_visibility: Visibility = "public",
        tasks: Tasks | None = None,
    ) -> None:
        self._repository = repository
        self._things = things or Things()
        self._default = default_visibility
        self._tasks = tasks or Tasks()
        self._changes = asyncio.Lock()

    async def start(self) -> None:
        """Know what the registry has, and follow it: servers that share it change it too."""
        await self._refresh()
        self._tasks.always("owners", self._follow)

    async def close(self) -> None:
        """Follow it no longer."""
        await self._tasks.close()

    def check(self, view: View, kind: Kind, name: str, *, exists: bool) -> None:
        """Whether a caller may make a thing of this name, or make it anew. Raises `Forbidden`.

        exists: whether there is one, be it seen or not.
        """
        view.check_reaches(kind, name)
        if exists or self._things.is_claimed(kind, name):
            view.check_changes(kind, name)

    @contextlib.asynccontextmanager
    async def making(
        self, view: View, kind: Kind, name: str, *, exists: bool, function: str = ""
    ) -> AsyncIterator[None]:
        """Make a thing within: a new one is the caller's before anybody sees it, and nobody's if that fails.

        function: for which it is made: where that is there, whoever sees it sees the new thing too, and
        nobody else. Raises as `check`.
        """
        self.check(view, kind, name, exists=exists)
        is_new = not exists and not self._things.is_claimed(kind, name)
        if is_new:
            await self._claim(view, kind, name, function)
        try:
            yield
        except BaseException:
            if is_new:
                await asyncio.shield(self._release(kind, name))
            raise

    async def found(self, kind: Kind, name: str) -> None:
        """A new thing that nobody made here is nobody's, and as visible as any new one."""
        if not self._things.is_claimed(kind, name):
            await self._keep_new(StoredThing(kind, name, "", self._default))

    async def share(self, view: View, kind: Kind, name: str, form: Mapping[str, Any]) -> None:
        """Change who sees a thing, and whose it is, as a request says. Raises `Forbidden`, `BadOption`.

        The caller sees the thing, which is there.
        """
        view.check_changes(kind, name)
        async with self._changes:
            thing = _changed(self._things.of(kind, name), form)
            if "owner" in form and not view.is_admin:
                raise Forbidden("only an admin's token gives a thing to another owner")
            if self._repository is not None:
                await asyncio.to_thread(self._repository.put, _stored(thing))
            self._things.keep(thing)
        log.info("visibility %s=%s is=%s owner=%r", kind, name, thing.visibility, thing.owner)

    def forget(self, kind: Kind, name: str) -> None:
        """A thing is gone, in the registry too: whoever makes the next one of its name owns that."""
        self._things.forget(kind, name)

    async def _release(self, kind: Kind, name: str) -> None:
        """A claim on what was not made. What was, in spite of an error, keeps its owner."""
        async with self._changes:
            is_gone = True
            if self._repository is not None:
                try:
                    is_gone = await asyncio.to_thread(self._repository.release, kind, name)
                except (SQLAlchemyError, OSError, ServiceError) as error:
                    log.warning("claim not released %s=%s reason=%r", kind, name, str(error))
                    return
            if is_gone:
                self._things.forget(kind, name)

    async def _claim(self, view: View, kind: Kind, name: str, function: str) -> None:
        visibility: Visibility = "private" if kind == "dataset" else self._default
        shared_with: tuple[str, ...] = ()
        if function and self._things.is_claimed("function", function):
            like = self._things.of("function", function)
            visibility, shared_with = like.visibility, tuple(sorted(like.shared_with))
        thing = StoredThing(kind, name, view.caller.token, visibility, shared_with)
        if await self._keep_new(thing) != thing:  # another server's caller was there first
            view.check_changes(kind, name)

    async def _keep_new(self, thing: StoredThing) -> StoredThing:
        """The one that is kept: another's, where that came first."""
        async with self._changes:
            kept = thing
            if self._repository is not None:
                kept = await asyncio.to_thread(self._repository.add, thing)
            self._things.keep(_thing(kept))
        return kept

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_FOLLOW_S)
            try:
                await self._refresh()
            except (SQLAlchemyError, OSError, ServiceError) as error:  # what is known goes on to count
                log.warning("owners not read reason=%r", str(error))

    async def _refresh(self) -> None:
        if self._repository is not None:
            async with self._changes:
                self._things.replace(map(_thing, await asyncio.to_thread(self._repository.all)))


def _changed(thing: Thing, form: Mapping[str, Any]) -> Thing:
    unknown = sorted(form.keys() - {"visibility", "shared_with", "owner"})
    if unknown:
        raise BadOption(f"there is no field {unknown[0][:100]!r}; there are owner, shared_with, visibility")
    shared = form.get("shared_with")
    visibility = form.get("visibility") or (thing.visibility if shared is None else "shared")
    if visibility not in VISIBILITIES:
        raise BadOption(f"'visibility' must be one of {', '.join(VISIBILITIES)}, not {visibility!r:.100}")
    owner = form.get("owner", thing.owner)
    names = sorted(thing.shared_with) if shared is None else shared
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise BadOption("'shared_with' must be a list of the names of tokens")
    if len(names) > _MOST_SHARED:
        raise BadOption(f"'shared_with' names {len(names)} tokens, and the most are {_MOST_SHARED}")
    if not isinstance(owner, str) or any(len(each) > _LONGEST_NAME for each in (owner, *names)):
        raise BadOption(
            f"'owner' must be the name of a token, of {_LONGEST_NAME} characters at most, as others"
        )
    if not all(each.isprintable() for each in (owner, *names)):
        raise BadOption("'owner' and 'shared_with' must be the names of tokens, without control characters")
    if visibility == "shared" and not names:
        raise BadOption("'shared_with' must name the tokens that a shared thing is shared with")
    return Thing(
        thing.kind, thing.name, owner, visibility, frozenset(names if visibility == "shared" else ())
    )


def _stored(thing: Thing) -> StoredThing:
    return StoredThing(
        thing.kind, thing.name, thing.owner, thing.visibility, tuple(sorted(thing.shared_with))
    )


def _thing(stored: StoredThing) -> Thing:
    kind, name, owner, visibility, shared_with = stored
    assert kind in get_args(Kind)
    assert visibility in VISIBILITIES
    return Thing(kind, name, owner, visibility, frozenset(shared_with))  # type: ignore[arg-type]  # just looked at
