"""Pieces on a device that works beside the decoders are as large as lets the whole batch be over soonest."""

from __future__ import annotations

import pytest

from gpu_worker.networks.overlapped_pieces import OverlappedPieces


def taught(fixed_s: float, row_s: float, decode_row_s: float) -> OverlappedPieces:
    pieces = OverlappedPieces()
    for rows in (16, 64, 256, 512, 16, 64):
        pieces.passed(rows, fixed_s + row_s * rows)
        pieces.decoded(rows, decode_row_s * rows)
    return pieces


def over_s(size: int, rows: int, fixed_s: float, row_s: float, decode_s: float) -> float:
    """The same, piece by piece."""
    decoded_s = passed_s = 0.0
    for start in range(0, rows, size):
        each = min(size, rows - start)
        decoded_s += each * decode_s
        passed_s = max(decoded_s, passed_s) + fixed_s + each * row_s
    return passed_s


def test_what_passes_and_decoding_take_is_learned_apart() -> None:
    pieces = taught(0.002, 0.0001, 0.0004)
    assert pieces.pass_line() == pytest.approx((0.002, 0.0001), rel=1e-6)
    assert pieces.decode_row_s == pytest.approx(0.0004)


def test_launches_that_cost_much_make_large_pieces_and_cheap_ones_small() -> None:
    dear, cheap = taught(0.02, 0.0001, 0.0004), taught(0.0001, 0.0001, 0.0004)
    assert dear.rows(1024, 8) > cheap.rows(1024, 8)


def test_while_nothing_is_known_a_batch_is_cut_into_pieces_of_256() -> None:
    assert OverlappedPieces().rows(1000, 4) == 256


def test_after_one_size_alone_a_pass_counts_as_proportional() -> None:
    pieces = OverlappedPieces()
    pieces.passed(64, 0.0064)
    assert pieces.pass_line() == pytest.approx((0.0, 0.0001))


@pytest.mark.parametrize("rows", [1, 7, 64, 300, 1000, 4096])
@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("fixed_s", [0.0002, 0.005])
@pytest.mark.parametrize("decode_row_s", [0.00002, 0.0004])
def test_the_batch_is_over_nearly_as_soon_as_with_the_best_pieces(
    rows: int, threads: int, fixed_s: float, decode_row_s: float
) -> None:
    size = taught(fixed_s, 0.0001, decode_row_s).rows(rows, threads)
    figures = (rows, fixed_s, 0.0001, decode_row_s / threads)
    best_s = min(over_s(2**power, *figures) for power in range(4, 11))
    assert 1 <= size <= 1024
    assert over_s(size, *figures) <= 1.1 * best_s
