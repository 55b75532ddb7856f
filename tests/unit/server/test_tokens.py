"""Tokens: made, listed, used, revoked and expired; on one server and on several of one registry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from server.access.caller import SCOPES, Caller, Grants, Shares
from server.access.failed_logins import FailedLogins
from server.access.sessions import Sessions
from server.access.token import PREFIX, Token, digest_of
from server.access.token_form import RESERVED, asked_token
from server.access.token_registry import MARK
from server.access.tokens import Tokens
from server.administration.tokens import TokenService
from server.app import create_app
from server.errors import BadOption, UnknownFunction
from server.settings import Settings
from server.storage import StartError
from server.store.database import migrate, open_database
from server.store.tokens import TokenRepository
from tests.unit.server.test_plans import runs
from tests.waiting import until

pytestmark = pytest.mark.security

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
HERE = Caller("", "127.0.0.1")
FOREVER: dict[str, Any] = {"name": "root", "scopes": ["admin"]}


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now

    def unix_s(self) -> float:
        return self.now.timestamp()


class Site:
    """One server's part of a registry."""

    def __init__(self, database: Engine, clock: Clock, of_files: tuple[Token, ...] = ()) -> None:
        self.tokens = Tokens(of_files, clock.unix_s)
        self.service = TokenService(TokenRepository(database), self.tokens, clock=clock)

    def lets_in(self, secret: str) -> bool:
        return self.tokens.caller(secret.encode(), "127.0.0.1") is not None

    async def make(self, **form: Any) -> str:
        return (await self.service.create(form, HERE))[1]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def site(database: Engine, clock: Clock) -> Site:
    return Site(database, clock)


@runs
async def test_a_token_lets_in_whoever_has_its_secret_and_outlives_the_server(
    site: Site, database: Engine, clock: Clock
) -> None:
    told, secret = await site.service.create(
        {
            "name": "app",
            "scopes": ["infer", "admin"],
            "shares": {"rows_per_s": 50, "row_class": "bulk"},
            "users": ["web_*"],
            "expires": "90d",
        },
        HERE,
    )
    assert secret.startswith(PREFIX)
    assert told["expires_at"] == (NOW + timedelta(days=90)).isoformat(timespec="seconds")
    again = Site(database, clock)
    await again.service.refresh()
    caller = again.tokens.caller(secret.encode(), "10.0.0.1", "web_shop", "shop")
    assert caller is not None
    assert caller.shares == Shares(rows_per_s=50.0, row_class="bulk")
    assert (caller.token, caller.user, caller.key) == ("app", "web_shop", "app")
    assert caller.scopes == frozenset(SCOPES)


@runs
async def test_the_registry_holds_a_hash_and_no_list_holds_either(site: Site, database: Engine) -> None:
    secret = await site.make(**FOREVER)
    with database.connect() as connection:
        kept = [str(row) for row in connection.execute(text("SELECT * FROM tokens"))]
    assert secret not in str(kept)
    assert digest_of(secret.encode()) in str(kept)
    listed = str(await site.service.all())
    assert secret not in listed
    assert digest_of(secret.encode()) not in listed


@runs
async def test_what_is_revoked_counts_no_more_at_once_and_its_name_is_free(site: Site) -> None:
    await site.make(**FOREVER)
    secret = await site.make(name="app", scopes="infer")
    caller = site.tokens.caller(secret.encode(), "127.0.0.1")
    assert caller is not None
    assert site.service.counts(caller)
    await site.service.revoke("app")
    assert not site.lets_in(secret)
    assert not site.service.counts(caller)
    other = await site.make(name="app", scopes="infer")
    assert site.lets_in(other)
    assert not site.lets_in(secret)
    assert not site.service.counts(caller)
    states = [(each["name"], each["state"]) for each in await site.service.all()]
    assert states == [("root", "valid"), ("app", "revoked"), ("app", "valid")]


@runs
async def test_a_token_expires_without_anybody_asking(site: Site, clock: Clock) -> None:
    await site.make(**FOREVER)
    secret = await site.make(name="app", scopes="infer", expires="1h")
    clock.now += timedelta(minutes=59)
    assert site.lets_in(secret)
    clock.now += timedelta(minutes=1)
    assert not site.lets_in(secret)
    assert [each["state"] for each in await site.service.all()] == ["valid", "expired"]


@runs
async def test_another_server_of_the_registry_learns_of_it(
    site: Site, database: Engine, clock: Clock
) -> None:
    other = Site(database, clock)
    secret = await site.make(**FOREVER)
    more = await site.make(name="app", scopes="infer")
    assert not other.lets_in(more)
    await other.service.refresh()
    assert other.lets_in(more)
    await site.service.revoke("app")
    await other.service.refresh()
    assert not other.lets_in(more)
    assert other.lets_in(secret)


@runs
async def test_the_first_token_is_an_admins_and_closes_the_server(site: Site) -> None:
    assert site.tokens.is_open
    with pytest.raises(BadOption, match="first token must have the scope admin"):
        await site.make(name="app", scopes="infer")
    assert site.tokens.is_open
    await site.make(**FOREVER)
    assert not site.tokens.is_open
    assert not site.service.counts(HERE)


@runs
async def test_the_last_valid_admin_stays(site: Site, clock: Clock) -> None:
    await site.make(**FOREVER)
    await site.make(name="brief", scopes="admin", expires="1h")
    clock.now += timedelta(hours=2)
    with pytest.raises(BadOption, match="last valid token with the scope admin"):
        await site.service.revoke("root")
    await site.make(name="next", scopes="admin")
    await site.service.revoke("root")
    await site.service.revoke("brief")
    with pytest.raises(UnknownFunction):
        await site.service.revoke("root")


@runs
async def test_two_servers_that_revoke_an_admin_each_at_once_leave_one(
    site: Site, database: Engine, clock: Clock
) -> None:
    other = Site(database, clock)
    await site.make(**FOREVER)
    await site.make(name="second", scopes="admin")
    found = await asyncio.gather(
        site.service.revoke("root"), other.service.revoke("second"), return_exceptions=True
    )
    assert sorted(type(each).__name__ for each in found) == ["BadOption", "NoneType"]


@runs
async def test_with_a_token_file_every_other_admin_may_go(database: Engine, clock: Clock) -> None:
    of_file = Token("admin", digest_of(b"a-word-of-a-file"), frozenset(SCOPES), is_shared=True)
    site = Site(database, clock, (of_file,))
    await site.make(name="app", scopes="infer")
    await site.make(**FOREVER)
    await site.service.revoke("root")
    with pytest.raises(BadOption, match="is in a file"):
        await site.service.revoke("admin")
    assert (await site.service.all())[0]["created_by"] == "file"


@runs
async def test_revoking_all_does_not_open_the_server_again(
    site: Site, database: Engine, clock: Clock
) -> None:
    await site.make(name="brief", scopes="admin", expires="1h")
    clock.now += timedelta(hours=2)
    await site.service.revoke("brief")
    again = Site(database, clock)
    await again.service.refresh()
    assert not again.tokens.is_open


@runs
async def test_when_a_token_was_used_is_written_once_in_a_while_and_at_the_end(
    site: Site, clock: Clock
) -> None:
    secret = await site.make(**FOREVER)
    for _ in range(1000):
        assert site.lets_in(secret)
    assert (await site.service.all())[0]["last_used_at"] is None
    await site.service.close()
    assert (await site.service.all())[0]["last_used_at"] == NOW.isoformat(timespec="seconds")


async def _ticks() -> AsyncIterator[int]:
    number = 0
    while True:
        yield number
        number += 1
        await asyncio.sleep(3600 if number > 2 else 0)


@pytest.mark.parametrize("how", ["revoked", "expired", "revoked elsewhere"])
@runs
async def test_a_stream_ends_with_its_token(site: Site, database: Engine, clock: Clock, how: str) -> None:
    await site.make(**FOREVER)
    secret = await site.make(name="app", scopes="read", expires="1h")
    caller = site.tokens.caller(secret.encode(), "127.0.0.1")
    assert caller is not None
    seen: list[int] = []

    async def read() -> None:
        async for event in site.service.endings.stream(caller, _ticks()):
            seen.append(event)

    reading = asyncio.create_task(read())
    await until(lambda: len(seen) == 3)
    site.service.endings.look()
    assert not reading.done()
    if how == "revoked":
        await site.service.revoke("app")
    elif how == "expired":
        clock.now += timedelta(hours=2)
        site.service.endings.look()
    else:
        await Site(database, clock).service.revoke("app")
        await site.service.refresh()
    async with asyncio.timeout(30):
        await reading
    assert seen == [0, 1, 2]


@runs
async def test_a_stream_that_its_reader_leaves_is_forgotten(site: Site) -> None:
    stream = site.service.endings.stream(HERE, _ticks())
    assert await anext(stream) == 0
    assert site.service.endings.waiting == 1
    await stream.aclose()
    assert site.service.endings.waiting == 0


@runs
async def test_a_million_wrong_secrets_are_not_remembered(site: Site) -> None:
    await site.make(**FOREVER)
    before = site.tokens.remembered
    for number in range(1_000_000):
        assert site.tokens.caller(b"mludf_%d" % number, "127.0.0.1") is None
    assert site.tokens.remembered == before


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            " ",
            "a b",
            "../x",
            "a/b",
            "<script>",
            "a\nb",
            "a\x00b",
            "-a",
            ".a",
            "x" * 101,
            "ä",
            "a,b",
            "a'b",
        ),
        *RESERVED,
    ],
)
def test_a_name_that_means_something_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(BadOption):
        asked_token({"name": name, "scopes": ["infer"]}, NOW)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({}, "scopes"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["root"]}, "no scope 'root'"),
        ({"scopes": 3}, "scopes"),
        ({"scopes": ["infer"], "color": "red"}, "no field 'color'"),
        ({"scopes": ["infer"], "functions": [3]}, "functions"),
        ({"scopes": ["infer"], "functions": ["x" * 201]}, "functions"),
        ({"scopes": ["infer"], "functions": ["a\nb"]}, "functions"),
        ({"scopes": ["infer"], "functions": ["a"] * 101}, "functions"),
        ({"scopes": ["admin"], "functions": ["a"]}, "do not narrow"),
        ({"scopes": ["infer"], "shares": 3}, "shares"),
        ({"scopes": ["infer"], "shares": {"gold": 3}}, "no share 'gold'"),
        ({"scopes": ["infer"], "shares": {"weight": 0}}, "weight"),
        ({"scopes": ["infer"], "shares": {"weight": float("nan")}}, "weight"),
        ({"scopes": ["infer"], "shares": {"weight": 10**400}}, "weight"),
        ({"scopes": ["infer"], "shares": {"rows_per_s": float("inf")}}, "rows_per_s"),
        ({"scopes": ["infer"], "shares": {"rows_per_s": -1}}, "rows_per_s"),
        ({"scopes": ["infer"], "shares": {"queued_rows": 1.5}}, "whole number"),
        ({"scopes": ["infer"], "shares": {"queued_rows": True}}, "must be a number"),
        ({"scopes": ["infer"], "shares": {"row_class": "first"}}, "row_class"),
        ({"scopes": ["infer"], "expires": "soon"}, "expires"),
        ({"scopes": ["infer"], "expires": 90}, "expires"),
        ({"scopes": ["infer"], "expires": "2020-01-01"}, "past"),
        ({"scopes": ["infer"], "expires": "999999w"}, "expires"),
    ],
)
def test_what_a_token_cannot_be_is_named(form: dict[str, Any], said: str) -> None:
    with pytest.raises(BadOption, match=said):
        asked_token({"name": "app", **form}, NOW)


def test_patterns_and_scopes_may_be_one_text_with_commas() -> None:
    asked = asked_token({"name": "app", "scopes": "train, infer", "functions": "udf_food_*,udf_x"}, NOW)
    assert asked.scopes == ("infer", "train")
    assert asked.grants == Grants(functions=("udf_food_*", "udf_x"))


@pytest.mark.parametrize(
    ("said", "is_at"),
    [
        ("90d", NOW + timedelta(days=90)),
        ("12h", NOW + timedelta(hours=12)),
        ("8w", NOW + timedelta(weeks=8)),
        ("2027-01-31", datetime(2027, 1, 31, tzinfo=UTC)),
        ("2027-01-31T12:00:00+02:00", datetime(2027, 1, 31, 10, tzinfo=UTC)),
        (None, None),
        ("", None),
    ],
)
def test_an_end_is_a_span_or_a_time(said: str | None, is_at: datetime | None) -> None:
    assert asked_token({"name": "app", "scopes": "infer", "expires": said}, NOW).expires_at == is_at


def test_beyond_loopback_a_server_starts_with_an_admins_token_in_its_registry(tmp_path: Path) -> None:
    settings = Settings(host="0.0.0.0", home=tmp_path)
    with pytest.raises(StartError, match="ml-udf token create NAME --scope admin"):
        create_app(settings)
    engine = open_database(f"sqlite:///{tmp_path / 'registry.db'}")
    service = TokenService(TokenRepository(engine), Tokens())
    asyncio.run(service.create({"name": "brief", "scopes": ["admin"], "expires": "2999-01-01"}, HERE))
    create_app(settings)
    with engine.begin() as connection:
        connection.execute(text("UPDATE tokens SET expires_at = '2001-01-01 00:00:00'"))
    with pytest.raises(StartError, match="without a token"):
        create_app(settings)
    engine.dispose()


def test_wrong_secrets_from_everywhere_take_bounded_memory_and_each_place_waits_for_itself() -> None:
    failed = FailedLogins()
    for number in range(100_000):
        failed.note(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", number / 1e6)
    assert len(failed) <= 10_000
    assert [failed.note("192.168.0.1", 5.0) for _ in range(11)] == [0.0] * 10 + [60.0]
    assert failed.note("192.168.0.2", 5.0) == 0.0
    assert failed.note("192.168.0.1", 66.0) == 0.0
    for host in range(10):
        failed.note(f"2001:db8::{host}", 5.0)
    assert failed.note("2001:db8::ffff", 6.0) == 59.0
    assert failed.note("2001:db8:0:1::1", 6.0) == 0.0


def test_who_makes_many_login_links_takes_away_only_their_own() -> None:
    held = [Token(name, digest_of(name.encode()), frozenset(("read",))) for name in ("root", "reader")]
    sessions = Sessions(Tokens(held), b"a key")
    of_root = sessions.link(held[0])
    few = [sessions.link(held[1]) for _ in range(10)]
    assert all(sessions.linked(code) == held[1] for code in few)
    many = [sessions.link(held[1]) for _ in range(200)]
    assert sessions.linked(of_root) == held[0]
    assert [code for code in (*few, *many) if sessions.linked(code)] == many[-10:]


@runs
async def test_a_server_whose_registry_was_lost_is_closed_as_one_whose_tokens_are_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mark = tmp_path / MARK

    async def opened(name: str) -> Tokens:
        engine = open_database(f"sqlite:///{tmp_path / name}")
        migrate(engine)
        tokens = Tokens()
        service = TokenService(TokenRepository(engine), tokens, mark=mark)
        await service.refresh()
        if name == "first":
            assert (tokens.is_open, mark.exists()) == (True, False)
            await service.create(FOREVER, HERE)
        engine.dispose()
        return tokens

    assert not (await opened("first")).is_open
    assert "tokens were made here" not in caplog.text
    assert not (await opened("new")).is_open
    assert "was it lost? Put a copy in its place, or start with --token-file and make new ones" in caplog.text
    mark.unlink()
    assert (await opened("another")).is_open
