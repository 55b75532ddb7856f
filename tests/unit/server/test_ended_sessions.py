"""Log-outs: on one server and on several of one registry, after a restart, and within bounded memory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine

from server.access.caller import Caller
from server.access.ended_sessions import EndedSessions
from server.access.sessions import Session, Sessions
from server.access.token import Token, digest_of, new_secret
from server.access.tokens import Tokens
from server.administration.endings import Endings
from server.administration.sessions import SessionService
from server.errors import NoSpace
from server.store.sessions import EndedSession, EndedSessionRepository
from tests.unit.server.test_plans import runs

pytestmark = pytest.mark.security

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
SECRETS = [new_secret(), new_secret()]


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now

    def unix_s(self) -> float:
        return self.now.timestamp()


class Site:
    """One server's part of a registry: two tokens, and browsers that log in with them."""

    def __init__(self, database: Engine, clock: Clock, most: int = 100) -> None:
        self.clock = clock
        self.repository = EndedSessionRepository(database, most)
        ended = EndedSessions()
        ended.replace(self.repository.all())
        scopes = frozenset(("read",))
        self.held = [
            Token(f"token {number}", digest_of(secret.encode()), scopes)  # type: ignore[arg-type]  # scopes
            for number, secret in enumerate(SECRETS)
        ]
        self.tokens = Tokens(self.held, clock.unix_s, ended)
        self.sessions = Sessions(self.tokens, b"a key", clock.unix_s)
        self.endings = Endings(self.tokens)
        self.service = SessionService(self.repository, ended, self.endings, clock=clock)

    def log_in(self, token: int = 0) -> str:
        self.clock.now += timedelta(seconds=1)
        return self.sessions.begin(self.held[token])[0]

    def session(self, cookie: str) -> Session | None:
        return self.sessions.of_cookie(cookie, "127.0.0.1")

    async def log_out(self, cookie: str) -> Caller:
        session = self.session(cookie)
        assert session is not None
        await self.service.end(session)
        return session.caller


@pytest.fixture
def clock() -> Clock:
    return Clock()


@runs
async def test_a_session_is_over_here_at_once_elsewhere_soon_and_after_a_restart(
    database: Engine, clock: Clock
) -> None:
    here, there = Site(database, clock), Site(database, clock)
    cookie, other = here.log_in(), here.log_in()
    caller = await here.log_out(cookie)
    assert here.session(cookie) is None
    assert not here.tokens.counts(caller)
    assert here.session(other) is not None
    await there.service.refresh()
    assert there.session(cookie) is None
    assert there.session(other) is not None
    assert Site(database, clock).session(cookie) is None


@runs
async def test_what_is_kept_is_bounded_and_no_session_that_was_ended_comes_back(
    database: Engine, clock: Clock
) -> None:
    site, elsewhere = Site(database, clock, most=20), Site(database, clock, most=20)
    quiet = site.log_in(1)
    gone = site.log_in(1)
    await site.log_out(gone)
    ended = []
    for _ in range(60):
        ended.append(site.log_in())
        await site.log_out(ended[-1])
        assert len(site.repository.all()) <= 21
        await elsewhere.service.refresh()
        assert elsewhere.session(ended[-1]) is None
    for known in (site, elsewhere, Site(database, clock)):
        assert len(known.tokens.ended) <= 22
        assert [each for each in (*ended, gone) if known.session(each) is not None] == []
        assert known.session(quiet) is not None, "only who has ended many has to log in again"
    assert site.session(site.log_in()) is not None


@runs
async def test_cookies_that_are_over_anyway_are_forgotten(database: Engine, clock: Clock) -> None:
    site = Site(database, clock)
    await site.log_out(site.log_in())
    clock.now += timedelta(days=31)
    await site.log_out(site.log_in())
    assert len(site.repository.all()) == 1


@runs
async def test_a_registry_that_cannot_be_written_is_told_later(database: Engine, clock: Clock) -> None:
    site = Site(database, clock)
    cookie = site.log_in()
    add = site.repository.add

    def full(ended: EndedSession, now: datetime) -> None:
        raise NoSpace("the disk is full")

    site.repository.add = full  # type: ignore[method-assign]
    await site.log_out(cookie)
    assert site.session(cookie) is None
    site.repository.add = add  # type: ignore[method-assign]
    await site.service.refresh()
    assert site.session(cookie) is None
    assert Site(database, clock).session(cookie) is None


@runs
async def test_a_stream_ends_with_the_session_that_opened_it(database: Engine, clock: Clock) -> None:
    site = Site(database, clock)
    cookie = site.log_in()
    session = site.session(cookie)
    assert session is not None
    other = site.session(site.log_in())
    assert other is not None
    await site.service.end(session)
    await site.endings.of(session.caller)  # at once
    assert site.tokens.counts(other.caller)


def test_a_cookie_of_another_form_is_none(database: Engine, clock: Clock) -> None:
    site = Site(database, clock)
    text, _, mac = site.log_in().partition(".")
    for cookie in (f"{text}.", f".{mac}", f"{text}x.{mac}", text, "", "é.é"):
        assert site.session(cookie) is None
