"""Turns on a worker: whoever has used least is next."""

from __future__ import annotations

import asyncio

from server.training.jobs.turns import Turns
from tests.unit.training.training_house import on_a_loop


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def used(turns: Turns, clock: Clock, job: int, epoch_s: float, epochs: int, order: list[int]) -> None:
    turns.join(job)
    for _ in range(epochs):
        async with turns.turn(job):
            order.append(job)
            await asyncio.sleep(0)
            clock.now_s += epoch_s
        await asyncio.sleep(0.001)  # its report
    turns.leave(job)


@on_a_loop
async def test_short_epochs_are_not_held_up_by_long_ones_after_each() -> None:
    clock, order = Clock(), list[int]()
    turns = Turns(clock)
    await asyncio.gather(used(turns, clock, 1, 3.0, 8, order), used(turns, clock, 2, 0.1, 50, order))
    last = len(order) - 1 - order[::-1].index(2)
    assert order[: last + 1].count(1) <= 3, "50 epochs of 0.1 s are worth two of 3 s"


@on_a_loop
async def test_a_job_that_comes_later_neither_owes_nor_is_owed() -> None:
    clock, order = Clock(), list[int]()
    turns = Turns(clock)
    await used(turns, clock, 1, 1.0, 100, order)
    order.clear()
    await asyncio.gather(used(turns, clock, 2, 1.0, 20, order), used(turns, clock, 3, 1.0, 20, order))
    assert abs(order[:20].count(2) - 10) <= 1


@on_a_loop
async def test_a_turn_that_nobody_takes_any_more_goes_to_the_next() -> None:
    clock = Clock()
    turns = Turns(clock)
    turns.join(1)
    turns.join(2)
    taken = asyncio.Event()

    async def take(job: int) -> None:
        async with turns.turn(job):
            taken.set()

    async with turns.turn(1):
        waiting = asyncio.create_task(take(2))
        await asyncio.sleep(0)
        waiting.cancel()
    async with asyncio.timeout(2), turns.turn(2):
        pass
    assert not taken.is_set()


@on_a_loop
async def test_a_job_that_leaves_is_not_waited_for() -> None:
    clock = Clock()
    turns = Turns(clock)
    for job in (1, 2):
        turns.join(job)
    async with turns.turn(2):
        clock.now_s += 5.0
    async with turns.turn(1):
        other = asyncio.create_task(used(turns, clock, 2, 1.0, 1, []))
        await asyncio.sleep(0)
    turns.leave(1)
    await asyncio.wait_for(other, 0.2)
