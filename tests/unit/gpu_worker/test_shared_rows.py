"""Rows lie where they were put until they are freed, in memory that the worker sees and cannot write."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Iterator

import pytest

from gpu_worker.wire.protocol import FrameError, Infer, decode, encode_parts
from gpu_worker.wire.shared_rows import SharedRows, seen

_ROOM = 1 << 20


@pytest.fixture
def shared() -> Iterator[SharedRows]:
    made = SharedRows(_ROOM)
    yield made
    made.close()


def _photos(chance: random.Random, count: int, nbytes: int = 10_000) -> list[bytes]:
    return [chance.randbytes(chance.randrange(nbytes, 2 * nbytes)) for _ in range(count)]


def test_what_lies_there_is_seen_as_it_is_however_places_come_and_go(shared: SharedRows) -> None:
    chance = random.Random(0)
    memory = seen(os.dup(shared.fd))
    lying: dict[int, list[bytes]] = {}
    refused = 0
    for _ in range(2_000):
        if lying and chance.random() < 0.5:
            place = chance.choice(list(lying))
            del lying[place]
            shared.free(place)
        else:
            rows = _photos(chance, chance.randrange(1, 12))
            put = shared.put(rows)
            if put is None:
                refused += 1
            else:
                lying[put] = rows
        assert shared.taken_bytes == sum(len(row) for rows in lying.values() for row in rows)
        for place, rows in lying.items():
            whole = b"".join(rows)
            assert memory[place : place + len(whole)] == whole
    assert 0 < refused < 1_000


def test_the_lowest_place_that_is_free_is_taken_so_that_little_memory_is_touched(shared: SharedRows) -> None:
    rows = [bytes(10_000)]
    first, second, third = (shared.put(rows) for _ in range(3))
    assert first == 0
    assert second is not None
    assert third is not None
    shared.free(second)
    shared.free(first)
    assert shared.put(rows) == first
    assert shared.put(rows) == second
    assert shared.put(rows) not in (first, second, third)


@pytest.mark.parametrize("rows", [[], [b""], [b"laksa"] * 5_000, [bytes(8_000)], [bytes(_ROOM + 1)]])
def test_small_rows_and_those_without_room_are_left_to_the_socket(
    shared: SharedRows, rows: list[bytes]
) -> None:
    assert shared.put(rows) is None
    assert shared.taken_bytes == 0


def test_a_batch_that_would_keep_the_event_loop_goes_by_the_socket() -> None:
    shared = SharedRows()
    assert shared.put([bytes(1 << 20)] * 4) is not None
    assert shared.put([bytes(1 << 20)] * 5) is None
    shared.close()


def test_a_worker_cannot_write(shared: SharedRows) -> None:
    shared.put([b"x" * 10_000])
    memory = seen(os.dup(shared.fd))
    assert memory.readonly
    with pytest.raises(TypeError):
        memory[0] = 0
    with pytest.raises(PermissionError):  # nor by the descriptor
        mmap.mmap(shared.fd, _ROOM)
    with pytest.raises(PermissionError):
        os.truncate(shared.fd, 1)


def test_once_its_worker_is_gone_nothing_is_put(shared: SharedRows) -> None:
    memory = seen(os.dup(shared.fd))
    place = shared.put([b"x" * 10_000])
    assert place is not None
    shared.close()
    assert shared.put([b"y" * 10_000]) is None
    shared.free(place)
    shared.close()
    assert memory[4] == ord("x")  # for the worker it stays until it ends


@pytest.mark.parametrize("form", ["image", "tensor", "text", "path"])
def test_a_message_of_shared_rows_comes_out_as_it_went_in(shared: SharedRows, form: str) -> None:
    message = Infer(1, ["m"], form, _photos(random.Random(1), 3))
    place = shared.put(message.rows)
    assert place is not None
    frame = b"".join(encode_parts(message, place))
    assert len(frame) < 1_000
    memory = seen(os.dup(shared.fd))
    told = decode(frame, memory)
    assert told == message
    assert isinstance(told, Infer)
    kept = list(map(bytes, told.rows))
    shared.free(place)
    shared.put([b"\0" * 40_000])
    assert kept == message.rows
    # Who decodes a picture copies it himself; a text is the model's own.
    assert (told.rows == message.rows) == (form in ("text", "path"))


@pytest.mark.parametrize("rows_at", [-1, _ROOM - 9_999, 1 << 70, "0", 0.5])
def test_rows_that_do_not_lie_there_are_no_message(shared: SharedRows, rows_at: int) -> None:
    frame = b"".join(encode_parts(Infer(1, ["m"], "image", [bytes(10_000)]), rows_at))
    with pytest.raises(FrameError):
        decode(frame, seen(os.dup(shared.fd)))


def test_without_such_memory_they_are_no_message_either(shared: SharedRows) -> None:
    frame = b"".join(encode_parts(Infer(1, ["m"], "image", [bytes(10_000)]), 0))
    with pytest.raises(FrameError):
        decode(frame)
    with pytest.raises(FrameError):  # nor where the rows are in both
        decode(
            b"".join(encode_parts(Infer(1, ["m"], "image", [bytes(10_000)]), 0)) + b"x",
            seen(os.dup(shared.fd)),
        )
