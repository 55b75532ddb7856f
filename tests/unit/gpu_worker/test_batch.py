"""One batch: cut in order, answered once, and never with what decoding did not make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gpu_worker.engine import Engine
from gpu_worker.errors import Cancelled
from gpu_worker.model_cache import Resident
from gpu_worker.model_files.manifest import InputSpec, Manifest
from gpu_worker.model_files.preprocess import Frame
from gpu_worker.networks.network import Floats, Inputs, IsCancelled
from gpu_worker.pipeline import intake as intake_module
from gpu_worker.pipeline.batch import Batch
from gpu_worker.pipeline.decode import decode_picture
from gpu_worker.wire.protocol import RowError
from tests.answers import SCORED, confidences_of, labels_of, scores_of
from tests.unit.gpu_worker.pictures import noise

CLASSES = ("a", "b")
MANIFEST = Manifest("/m", "m", 1, "text-classification", "torch", "", CLASSES, InputSpec())


class Echo:
    """Says "b" to rows that begin with b; counts its passes."""

    forms = frozenset(("text",))
    pixels: tuple[int, int] | None = None
    cuttable = True
    resident_bytes = 1

    def __init__(self) -> None:
        self.passes = 0

    def warm_up(self, rows: int) -> Floats:
        return np.zeros((rows, 2), np.float32)

    def scores(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        self.passes += 1
        return np.array([[row[:1] != b"b", row[:1] == b"b"] for row in inputs], np.float32)


def batch(rows: list[bytes], piece_rows: int, network: Echo | None = None) -> Batch:
    resident = Resident("m/1", MANIFEST, network or Echo())
    return Batch(7, [resident], "text", rows, outputs=SCORED, piece_rows=piece_rows)


def run_all(made: Batch) -> int:
    pieces = 0
    over = False
    while (piece := made.cut()) is not None:
        made.run(piece)
        over = made.piece_over(piece)
        pieces += 1
    assert over
    return pieces


def test_rows_are_cut_in_order_and_answered_in_their_places() -> None:
    rows = [b"b" if index % 3 == 0 else b"a" for index in range(10)]
    made = batch(rows, 4)
    assert run_all(made) == 3
    made.finish()
    (member,) = made.answer.result(0).members
    assert labels_of(member) == [row.decode() for row in rows]
    assert confidences_of(member) == [1.0] * 10
    assert np.frombuffer(scores_of(member), np.float32).reshape(10, 2)[:, 1].tolist() == [
        float(row == b"b") for row in rows
    ]


def test_a_batch_is_run_in_one_piece_after_another_where_a_network_cannot_be_cut() -> None:
    whole = Echo()
    whole.cuttable = False
    assert [batch([b"a"], 1, network).serial for network in (Echo(), whole)] == [False, True]


def test_an_answer_says_how_long_the_batch_was_here_and_when_its_last_row_was_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now_s[0])
    monkeypatch.setattr("gpu_worker.pipeline.batch.time", clock)
    made = batch([b"a", b"b", b"a"], 1)
    pieces = [piece for piece in (made.cut(), made.cut(), made.cut()) if piece is not None]
    for piece, decoded_s in zip(pieces, (100.5, 102.0, 101.0), strict=True):
        piece.decoded_s = decoded_s
        made.run(piece)
        made.piece_over(piece)
    now_s[0] = 105.0
    assert made.stay_s() == pytest.approx(5.0)
    made.finish()
    answer = made.answer.result(0)
    assert (answer.decode_s, answer.stay_s) == pytest.approx((2.0, 5.0))


def test_a_bug_in_decoding_fails_the_batch_and_no_network_sees_its_piece() -> None:
    network = Echo()
    made = batch([b"a"] * 4, 4, network)
    piece = made.cut()
    assert piece is not None
    piece.bug = ZeroDivisionError("a bug")
    made.run(piece)
    made.finish()
    with pytest.raises(ZeroDivisionError):
        made.answer.result(0)
    assert network.passes == 0


def test_after_a_failure_nothing_more_is_cut_or_run() -> None:
    network = Echo()
    made = batch([b"a"] * 8, 2, network)
    first, second = made.cut(), made.cut()
    assert first is not None
    assert second is not None
    made.fail(ValueError("no"))
    assert made.cut() is None
    made.run(first)
    assert network.passes == 0
    assert not made.piece_over(first)
    assert made.piece_over(second)


def test_a_cancelled_batch_is_closed_at_once_and_over_when_its_last_piece_is() -> None:
    made = batch([b"a"] * 4, 2)
    piece = made.cut()
    assert piece is not None
    made.cancel()
    assert made.is_closed()
    with pytest.raises(Cancelled):
        made.answer.result(0)
    assert made.piece_over(piece)
    made.finish()  # too late: the answer stays as it is
    with pytest.raises(Cancelled):
        made.answer.result(0)


def test_errors_come_in_the_order_of_the_rows() -> None:
    made = batch([b"a"] * 4, 2)
    pieces = [made.cut(), made.cut()]
    for piece in reversed(pieces):
        assert piece is not None
        piece.faults = [RowError(piece.start + at, "input_invalid", "no") for at in reversed(range(2))]
        made.run(piece)
        made.piece_over(piece)
    made.finish()
    assert [error.index for error in made.answer.result(0).errors] == [0, 1, 2, 3]


@pytest.mark.parametrize("row", [0, 9, 17])
def test_a_bug_in_decoding_is_never_answered_from_what_a_buffer_held(
    engines: Callable[..., Engine], squeezenet: Path, monkeypatch: pytest.MonkeyPatch, row: int
) -> None:
    images = [noise(seed) for seed in range(18)]
    decode = decode_picture

    def break_on_one(data: bytes, frame: Frame, *, max_pixels: int) -> np.ndarray:
        if data == images[row]:
            raise ZeroDivisionError("a bug")
        return decode(data, frame, max_pixels=max_pixels)

    monkeypatch.setattr(intake_module, "decode_picture", break_on_one)
    engine = engines(threads=2)
    engine.load("m", str(squeezenet))
    with pytest.raises(ZeroDivisionError):
        engine.infer(["m"], "image", images)
