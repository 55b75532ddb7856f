"""A pass finds its way through a device that is short of memory, and ends where the device is lost."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_worker.errors import Cancelled, DeviceLost, NoRoom
from gpu_worker.networks.network import Floats, Inputs
from gpu_worker.networks.parts import in_parts_that_fit

ROWS = np.arange(13, dtype=np.float32).reshape(13, 1)
OUT_OF_MEMORY = RuntimeError("CUDA error: out of memory")


class Device:
    """Holds `rows` rows at once; `make_room` gives it `gains` more, once."""

    def __init__(self, rows: int, gains: int = 0) -> None:
        self.rows, self.gains, self.sizes = rows, gains, list[int]()

    def run(self, rows: Inputs) -> Floats:
        self.sizes.append(len(rows))
        if len(rows) > self.rows:
            raise OUT_OF_MEMORY
        return np.asarray(rows, np.float32) * 2

    def make_room(self) -> None:
        self.rows, self.gains = self.rows + self.gains, 0


def never() -> bool:
    return False


def test_a_pass_is_tried_again_once_there_is_room() -> None:
    device = Device(4, gains=9)
    assert (in_parts_that_fit(device.run, ROWS, never, "cuda:0", device.make_room) == ROWS * 2).all()
    assert device.sizes == [13, 13]


def test_where_that_does_not_help_it_runs_in_halves_in_order() -> None:
    device = Device(4)
    assert (in_parts_that_fit(device.run, ROWS, never, "cuda:0", device.make_room) == ROWS * 2).all()


def test_a_row_that_does_not_fit_alone_is_refused_with_what_to_do() -> None:
    device = Device(0)
    with pytest.raises(NoRoom, match=r"cuda:0 has no memory left for a single row.*--resident-bytes"):
        in_parts_that_fit(device.run, ROWS, never, "cuda:0", device.make_room)
    assert device.sizes[-2:] == [1, 1], "once more after room was made, and then no more"


def test_a_poisoned_device_is_not_tried_again() -> None:
    tries = []

    def poisoned(rows: Inputs) -> Floats:
        tries.append(len(rows))
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(DeviceLost, match="cuda:1 failed: CUDA error: an illegal memory access"):
        in_parts_that_fit(poisoned, ROWS, never, "cuda:1")
    assert tries == [13]


def test_other_errors_are_left_as_they_are() -> None:
    def wrong(rows: Inputs) -> Floats:
        raise ValueError("shapes do not match")

    with pytest.raises(ValueError, match="shapes do not match"):
        in_parts_that_fit(wrong, ROWS, never, "cuda:0")


def test_a_cancelled_batch_does_not_begin() -> None:
    device = Device(99)
    with pytest.raises(Cancelled):
        in_parts_that_fit(device.run, ROWS, lambda: True, "cuda:0")
    assert device.sizes == []
