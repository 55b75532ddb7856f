"""Pieces of a batch are collected into one answer, whatever their order."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest

from gpu_worker.errors import Cancelled
from gpu_worker.model_cache import Resident
from gpu_worker.model_files.manifest import InputSpec, Manifest
from gpu_worker.networks.network import Floats, Inputs, IsCancelled, check, softmax
from gpu_worker.networks.piece_sizes import PieceSizes
from gpu_worker.pipeline.buffers import Buffers
from gpu_worker.pipeline.forward import Tally
from gpu_worker.pipeline.piece import Piece
from gpu_worker.wire.protocol import RowError
from tests.answers import SCORED, confidences_of, labels_of, scores_of

CLASSES = ("a", "b", "c")


class Numbers:
    """A row is a number: its class, or "nan" for an answer that is none."""

    pixels: tuple[int, int] | None = None
    forms = frozenset(("text",))
    cuttable = True
    resident_bytes = 0

    def __init__(self) -> None:
        self.seen: list[list[bytes]] = []

    def warm_up(self, rows: int) -> Floats:
        return np.zeros((rows, len(CLASSES)), np.float32)

    def scores(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        check(is_cancelled)
        assert not isinstance(inputs, np.ndarray)
        self.seen.append(list(inputs))
        scores = np.full((len(inputs), len(CLASSES)), 0.1, np.float32)
        for index, row in enumerate(inputs):
            scores[index, int(row) if row != b"nan" else 0] = 0.8 if row != b"nan" else np.nan
        return scores


def resident() -> tuple[Resident, Numbers]:
    network = Numbers()
    manifest = Manifest("/m", "m", 1, "text-classification", "torch", "x", CLASSES, InputSpec("text"))
    return Resident("m", manifest, network), network


def piece(start: int, rows: Sequence[bytes], *faults: int) -> Piece:
    made = Piece(start, rows)
    made.faults = [RowError(index, "input_invalid", "bad") for index in faults]
    return made


def test_pieces_may_come_in_any_order_and_faults_never_reach_the_network() -> None:
    model, network = resident()
    tally = Tally([model], 5, outputs=SCORED)
    tally.add(piece(3, [b"2", b"0"]), lambda: False)
    tally.add(piece(0, [b"1", b"bad", b"1"], 1), lambda: False)
    (member,) = tally.members()
    assert labels_of(member) == ["b", "", "b", "c", "a"]
    assert confidences_of(member) == pytest.approx([0.8, 0, 0.8, 0.8, 0.8])
    scores = np.frombuffer(scores_of(member), np.float32).reshape(5, 3)
    assert not scores[1].any()
    assert scores.argmax(axis=1).tolist() == [1, 0, 1, 2, 0]
    assert [error.index for error in tally.errors] == [1]
    assert network.seen == [[b"2", b"0"], [b"1", b"1"]]
    assert model.row_s > 0


def test_what_a_pass_waits_for_cores_says_nothing_of_how_large_pieces_should_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[int, float]] = []
    monkeypatch.setattr(PieceSizes, "observe", lambda _, rows, core_s: told.append((rows, core_s)))
    model, network = resident()
    scores = network.scores

    def kept_waiting(inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        time.sleep(0.1)
        return scores(inputs, is_cancelled)

    monkeypatch.setattr(network, "scores", kept_waiting)
    Tally([model], 2).add(piece(0, [b"1", b"2"]), lambda: False)
    ((rows, core_s),) = told
    assert rows == 2
    assert core_s < 0.05
    assert 2 * model.row_s > 0.09, "but callers wait for it"


def test_an_answer_that_is_no_number_is_its_rows_error() -> None:
    model, _ = resident()
    tally = Tally([model], 3)
    tally.add(piece(0, [b"1", b"nan", b"2"]), lambda: False)
    assert labels_of(tally.members()[0]) == ["b", "", "c"]
    (error,) = tally.errors
    assert (error.index, error.code) == (1, "internal")
    assert "'m'" in error.message


class Reader(Numbers):
    """Reads "nan?" as the caller's fault."""

    def scores(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        assert not isinstance(inputs, np.ndarray)
        return super().scores([row.rstrip(b"?") for row in inputs], is_cancelled)

    def fault_of(self, row: bytes) -> str | None:
        return f"{row.decode()} is no class" if row.endswith(b"?") else None


def test_a_row_that_the_network_cannot_read_is_its_callers_fault_and_a_wrong_answer_is_not() -> None:
    model, _ = resident()
    tally = Tally([Resident("m", model.manifest, Reader())], 5)
    tally.add(piece(2, [b"1", b"nan?", b"nan"]), lambda: False)
    assert [(error.index, error.code) for error in tally.errors] == [(3, "input_invalid"), (4, "internal")]
    assert tally.errors[0].message == "nan? is no class"


def test_a_cancel_is_seen_between_two_members() -> None:
    (first, network), (second, unused) = resident(), resident()
    looks = iter([False, True])
    with pytest.raises(Cancelled):
        Tally([first, second], 1).add(piece(0, [b"1"]), lambda: next(looks))
    assert len(network.seen) == 1
    assert unused.seen == []


def test_softmax_is_right_where_exponentials_overflow() -> None:
    scores = softmax(np.array([[1000, 1000, -1000], [0, np.log(2), 0]], np.float32))
    np.testing.assert_allclose(scores, [[0.5, 0.5, 0], [0.25, 0.5, 0.25]], atol=1e-6)


def test_buffers_are_reused_by_size_and_bounded_by_bytes() -> None:
    buffers = Buffers(max_bytes=2 * 4 * 8 * 8 * 3)
    one = buffers.take(4, 8, 8)
    other = buffers.take(4, 8, 8)
    third = buffers.take(4, 8, 8)
    assert one.shape == (4, 8, 8, 3)
    for buffer in (one, other, third):
        buffers.give(buffer)
    assert buffers.take(3, 8, 8) is one, "a longer one will do"
    assert buffers.take(5, 8, 8).shape == (5, 8, 8, 3), "a shorter one will not"
    assert buffers.take(4, 8, 8) is other
    assert buffers.take(4, 8, 8) is not third, "it was over the bound and let go"
