"""Pieces go through a device's three streams in order, and nobody waits but for his own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gpu_worker.networks.graph_sizes import GRAPH_SIZES, graph_size
from gpu_worker.networks.lane import Lane
from gpu_worker.networks.network import Floats


class Back:
    """What is on its way until the device has let it go."""

    def __init__(self, found: np.ndarray, gone: threading.Event) -> None:
        self._found, self._gone = found, gone

    def wait(self) -> Floats:
        assert self._gone.wait(30)
        return self._found

    def computed_s(self) -> float:
        return 0.25


class FakeStreams:
    """Notes what is sent off; a piece is back once its event is set."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.let_go: dict[int, threading.Event] = {number: threading.Event() for number in range(3)}
        self.came = threading.Semaphore(0)

    def copy_in(self, inputs: np.ndarray) -> np.ndarray:
        self.sent.append(f"in {inputs[0]:.0f}")
        return inputs

    def compute(self, run: Callable[[np.ndarray], np.ndarray], batch: np.ndarray) -> np.ndarray:
        self.sent.append(f"compute {batch[0]:.0f}")
        return run(batch)

    def copy_out(self, found: np.ndarray) -> Back:
        number = int(found[0])
        self.sent.append(f"out {number}")
        self.came.release()
        return Back(found, self.let_go[number])


def same(batch: np.ndarray) -> np.ndarray:
    return batch


def test_pieces_are_sent_off_before_the_first_is_back_and_each_as_one() -> None:
    streams = FakeStreams()
    lane = Lane(streams)
    with ThreadPoolExecutor(3) as threads:
        passes = [threads.submit(lane.run, same, np.full(2, n, np.float32)) for n in range(3)]
        for _ in range(3):
            assert streams.came.acquire(timeout=30)
        assert not any(one.done() for one in passes)
        streams.let_go[1].set()
        found, computed_s = passes[1].result(30)
        assert (found.tolist(), computed_s) == ([1.0, 1.0], 0.25)
        assert not passes[0].done()
        streams.let_go[0].set()
        streams.let_go[2].set()
    in_order = [streams.sent[start : start + 3] for start in (0, 3, 6)]
    numbers = [steps[0][-1] for steps in in_order]
    assert in_order == [[f"in {n}", f"compute {n}", f"out {n}"] for n in numbers]
    assert sorted(numbers) == ["0", "1", "2"]


def test_a_pass_that_fails_lets_the_next_one_through() -> None:
    streams = FakeStreams()
    lane = Lane(streams)

    def fails(batch: np.ndarray) -> np.ndarray:
        raise RuntimeError("CUDA error: out of memory")

    with pytest.raises(RuntimeError):
        lane.run(fails, np.zeros(1, np.float32))
    streams.let_go[0].set()
    assert lane.run(same, np.zeros(1, np.float32))[0].tolist() == [0.0]


@pytest.mark.parametrize(
    ("rows", "size"), [(1, 1), (2, 2), (3, 4), (5, 8), (33, 64), (63, 64), (64, 64), (65, None)]
)
def test_a_batch_runs_in_the_next_larger_graph(rows: int, size: int | None) -> None:
    assert graph_size(rows, GRAPH_SIZES) == size


def test_a_graph_that_half_of_were_padding_is_not_used() -> None:
    assert graph_size(3, (1, 16)) is None
    assert graph_size(9, (1, 16)) == 16
    assert graph_size(8, (16,)) is None
    assert graph_size(1, ()) is None
