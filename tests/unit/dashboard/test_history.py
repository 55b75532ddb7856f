"""The last hour and day: rings that a restart does not empty."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from server.observability.history import DAY, HOUR, History, Ring, RingSize, server_id
from server.observability.readings import Counts, Reading, Stretch
from server.store.database import migrate, open_database
from server.store.history import HistoryRepository

NOON = 1_800_000_000 // 300 * 300


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    made = open_database(f"sqlite:///{tmp_path / 'registry.db'}")
    migrate(made)
    return made


class Server:
    """A history over a clock and counters of the test's own."""

    def __init__(self, engine: Engine, name: str = "one", now_s: float = NOON) -> None:
        self.now_s, self.rows = now_s, 0
        self.repository = HistoryRepository(engine, name)
        self.history = History(self.repository, self.read, clock=lambda: self.now_s)

    def read(self) -> Reading:
        return Reading(self.now_s, {"f": Counts(rows=self.rows, requests=self.rows)})

    def begin(self) -> None:
        """As `History.start`, without its task."""
        for each in self.repository.all():
            self.history._restore(each)
        self.history._before, self.history._since_s = self.read(), self.now_s
        self.history._fold()

    def lives(self, seconds: int, rows_per_s: int = 1) -> None:
        """Slots of 10 s, and what of one is left."""
        whole, rest = divmod(seconds, 10)
        for step in [10] * whole + [rest] * bool(rest):
            self.now_s += step
            self.rows += step * rows_per_s
            self.history._take()
            self.history._fold()
        asyncio.run(self.history._write())


def rows_of(slots: object) -> list[int]:
    return [slot.stretch.of(["f"]).rows for slot in slots]  # type: ignore[attr-defined]


def test_each_slot_has_the_rows_of_its_ten_seconds(engine: Engine) -> None:
    server = Server(engine)
    server.begin()
    server.lives(60, rows_per_s=3)
    assert rows_of(server.history.last(HOUR)) == [30] * 6
    assert [slot.at_s for slot in server.history.last(HOUR)] == [NOON + 10 * place for place in range(6)]


def test_after_a_restart_everything_is_there_and_the_pause_is_a_gap(engine: Engine) -> None:
    first = Server(engine)
    first.begin()
    first.lives(605)
    again = Server(engine, now_s=NOON + 900)
    again.begin()
    assert rows_of(again.history.last(HOUR)) == [10] * 60 + [5]
    again.lives(300)
    assert sum(rows_of(again.history.last(HOUR))) == 905
    assert sum(rows_of(again.history.last(DAY))) == 905


def test_a_slot_in_which_the_server_was_started_again_has_the_rows_of_both_lives(engine: Engine) -> None:
    first = Server(engine)
    first.begin()
    first.lives(4)
    again = Server(engine, now_s=NOON + 6)
    again.begin()
    again.lives(3)
    assert rows_of(again.history.last(HOUR)) == [7]


def test_five_minutes_become_one_slot_of_the_day_and_the_running_one_is_shown_too(engine: Engine) -> None:
    server = Server(engine)
    server.begin()
    server.lives(320)
    assert rows_of(server.history.last(DAY)) == [300, 20]


def test_the_rings_are_written_over_and_grow_no_more(engine: Engine) -> None:
    server = Server(engine)
    server.begin()
    server.lives(2 * HOUR.span_s)
    with engine.connect() as connection:
        counted = connection.execute(text("SELECT ring, count(*) FROM history GROUP BY ring")).all()
        slots = {str(ring): int(count) for ring, count in counted}
    assert slots == {"hour": HOUR.slots, "day": 2 * HOUR.span_s // DAY.slot_s}
    assert len(server.history.last(HOUR)) in (HOUR.slots - 1, HOUR.slots)


def test_servers_that_share_a_registry_have_rings_of_their_own(engine: Engine) -> None:
    one, two = Server(engine, "one"), Server(engine, "two")
    for server, rows_per_s in ((one, 1), (two, 5)):
        server.begin()
        server.lives(20, rows_per_s)
    again = Server(engine, "two", NOON + 20)
    again.begin()
    assert rows_of(again.history.last(HOUR)) == [50, 50]


def test_a_server_that_is_gone_for_a_week_is_forgotten(engine: Engine) -> None:
    gone, here = Server(engine, "gone"), Server(engine, "here", NOON + 8 * 86_400)
    gone.begin()
    gone.lives(20)
    here.begin()
    here.lives(20)
    here.repository.forget_gone(here.now_s - 7 * 86_400)
    assert gone.repository.all() == []
    assert len(here.repository.all()) == 2


def test_what_another_version_wrote_is_as_good_as_not_there(engine: Engine) -> None:
    server = Server(engine)
    server.begin()
    server.lives(20)
    with engine.begin() as connection:
        connection.execute(text("""UPDATE history SET stretch = '{"other": 1}' WHERE slot % 2 = 0"""))
    again = Server(engine, now_s=NOON + 20)
    again.begin()
    assert rows_of(again.history.last(HOUR)) == [10]


def test_a_registry_that_cannot_be_written_loses_nothing_that_comes_later(engine: Engine) -> None:
    server = Server(engine)
    server.begin()
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE history RENAME TO elsewhere"))
    server.lives(20)
    assert rows_of(server.history.last(HOUR)) == [10, 10]
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE elsewhere RENAME TO history"))
    server.lives(10)
    assert len(server.repository.all()) == 3


def test_a_ring_forgets_the_oldest() -> None:
    ring = Ring(RingSize("small", 3, 10))
    for at_s in (0, 10, 20, 30):
        ring.add(at_s, Stretch(10.0))
    assert [slot.at_s for slot in ring.between(0, 100)] == [10, 20, 30]


def test_a_server_is_the_same_after_a_restart_and_another_port_is_another_one() -> None:
    assert server_id(Path("/srv"), 1) == server_id(Path("/srv"), 1)
    assert len({server_id(Path("/srv"), 1), server_id(Path("/srv"), 2), server_id(Path("/home"), 1)}) == 3
