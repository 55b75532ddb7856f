"""How answered pages come into a store that gathers them: what waits, for how long, and what is lost when."""

from __future__ import annotations

import signal
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from ml_udf.client.statement import Outcome
from ml_udf.errors import InputInvalid, MlUdfError, WrongType
from ml_udf.scoring import Page
from ml_udf.scoring import writing as writing_module
from ml_udf.scoring.pages import Key
from ml_udf.scoring.writing import Writing, writing_into


class Gathering:
    """A store that keeps what is written; its writes wait for `open`."""

    gathers = True

    def __init__(self, *, is_open: bool = True, fault: MlUdfError | None = None) -> None:
        self.writes: list[list[Key]] = []
        self.open = threading.Event()
        self.fault = fault
        if is_open:
            self.open.set()

    def due_rows(self, row_limit: int | None) -> int:
        return 0

    def page(self, after: Key | None, rows: int) -> Page:
        return Page()

    def write(self, page: Page, answers: Sequence[Outcome], version: str) -> int:
        if not self.open.wait(10):
            raise TimeoutError
        if self.fault is not None:
            raise self.fault
        assert len(page) == len(answers)
        self.writes.append(list(page.keys))
        return len(page)

    def stop_writing(self) -> None:
        self.fault = InputInvalid("interrupted")
        self.open.set()


def page_of(*keys: int) -> tuple[Page, list[Outcome]]:
    return Page([(str(key),) for key in keys], [f"h{key}" for key in keys], ["x"] * len(keys)), [
        Outcome("pizza") for _ in keys
    ]


@contextmanager
def writing(
    store: Gathering, written: list[int], on_wait: Callable[[], None] | None = None
) -> Iterator[Writing]:
    made = writing_into(store, "1", lambda answers, stored: written.append(stored), on_wait)
    try:
        yield made
    finally:
        made.drop()


def look_until(made: Writing, done: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 10
    while not done():
        assert time.monotonic() < end_s
        made.look()
        time.sleep(0.002)


def test_an_answer_waits_for_no_other():
    written: list[int] = []
    with writing(Gathering(), written) as made:
        made.add(*page_of(1))
        look_until(made, lambda: written == [1])


def test_what_comes_during_a_write_is_one_transaction_after_it():
    store, written = Gathering(is_open=False), list[int]()
    with writing(store, written) as made:
        for key in range(20):
            made.add(*page_of(key))
        assert not written
        store.open.set()
        made.finish()
    assert [len(keys) for keys in store.writes] == written == [1, 19]
    assert [key for keys in store.writes for key in keys] == [(str(key),) for key in range(20)]


def test_pages_wait_until_writing_takes_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writing_module, "WRITING_SHARE", 0.01)
    store, written = Gathering(is_open=False), list[int]()
    with writing(store, written) as made:
        made.add(*page_of(0))
        time.sleep(0.01)
        store.open.set()
        look_until(made, lambda: bool(written))
        made.add(*page_of(1))  # a row took 10 ms: the next one's write begins a second later
        end_s = time.monotonic() + 0.05
        while time.monotonic() < end_s:
            made.look()
        assert store.writes == [[("0",)]]
        made.finish()  # or at the end
        assert store.writes == [[("0",)], [("1",)]]


def test_answers_that_come_faster_than_they_can_be_stored_at_a_small_share_fill_their_room(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(writing_module, "ROOM_ROWS", 60)
    store = Gathering()
    with writing(store, []) as made:
        made.add(*page_of(0))
        look_until(made, lambda: bool(store.writes))
        monkeypatch.setattr(writing_module, "WRITING_SHARE", 1e-9)
        for key in range(1, 63):
            made.add(*page_of(key))
        made.finish()
    assert [len(keys) for keys in store.writes] == [1, 60, 2]


def test_no_answer_waits_longer_than_promised(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writing_module, "WRITING_SHARE", 1e-9)
    monkeypatch.setattr(writing_module, "MAX_WAIT_S", 0.05)
    store = Gathering()
    with writing(store, []) as made:
        made.add(*page_of(0))
        look_until(made, lambda: bool(store.writes))
        made.add(*page_of(1))
        look_until(made, lambda: len(store.writes) == 2)


@pytest.mark.parametrize(("room", "size"), [("ROOM_ROWS", 4), ("ROOM_BYTES", 4 * 1000)])
def test_no_more_is_held_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch, room: str, size: int):
    monkeypatch.setattr(writing_module, room, size)
    store = Gathering(is_open=False)
    waits: list[int] = []

    def on_wait() -> None:
        waits.append(1)
        store.open.set()

    with writing(store, [], on_wait) as made:
        made.add(*page_of(0))
        made.add(*page_of(1))
        assert not waits, "there is room"
        page, _ = page_of(2, 3, 4, 5)
        made.add(page, [Outcome(array("f", range(256)))] * 4)
        assert waits, "it waited for the write under way"
        made.finish()
    assert sum(map(len, store.writes)) == 6


def test_what_writing_raises_is_raised_once_and_then_nothing_is_written():
    store = Gathering(fault=WrongType("a vector is no number"))
    with writing(store, []) as made:
        made.add(*page_of(0))
        with pytest.raises(WrongType):
            made.finish()
        store.fault = None
        made.finish()
    assert not store.writes


def test_a_run_that_ends_tells_the_store_to_stop_and_forgets_what_waits():
    store, written = Gathering(is_open=False), list[int]()
    with writing(store, written) as made:
        made.add(*page_of(0))
        made.add(*page_of(1))
    assert not store.writes
    assert not written


def test_ctrl_c_ends_the_wait_for_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writing_module, "ROOM_ROWS", 1)
    store = Gathering(is_open=False)

    def on_wait() -> None:
        raise KeyboardInterrupt

    with writing(store, [], on_wait) as made:
        made.add(*page_of(0))
        with pytest.raises(KeyboardInterrupt):
            made.add(*page_of(1))


def test_a_store_that_does_not_gather_has_a_transaction_per_page():
    store, written = Gathering(), list[int]()
    store.gathers = False
    with writing(store, written) as made:
        for key in range(3):
            made.add(*page_of(key))
        made.add(*page_of())
        made.finish()
    assert written == [1, 1, 1]


def test_ctrl_c_comes_to_the_main_thread():
    blocked: list[bool] = []

    class Looking(Gathering):
        def write(self, page: Page, answers: Sequence[Outcome], version: str) -> int:
            blocked.append(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))
            return super().write(page, answers, version)

    with writing(Looking(), []) as made:
        made.add(*page_of(0))
        made.finish()
    assert blocked == [True]
