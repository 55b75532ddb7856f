"""How large a piece is: what is cheapest per row is found by trying, and found again when it changes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from gpu_worker.networks.piece_sizes import LARGEST_PIECE_ROWS, PieceSizes, rows_that_fit

Costs = Callable[[int], float]  # seconds of a pass, by rows


def grows_out_of_its_caches(rows: int) -> float:
    return rows * (0.003 if rows <= 8 else 0.0033 if rows <= 16 else 0.0042)


def pays_for_each_pass(rows: int) -> float:
    return 0.0005 + 0.0001 * rows


def run(sizes: PieceSizes, costs: Costs, batches: int, rows: int = 64, disturbed: float = 0.0) -> int:
    """Runs batches in pieces; how large the last one's are."""
    random = Random(7)
    for _ in range(batches):
        left = rows
        while left:
            piece = min(left, sizes.rows(rows))
            sizes.observe(piece, costs(piece) * (3.0 if random.random() < disturbed else 1.0))
            left -= piece
    return sizes.rows(rows)


@pytest.mark.parametrize(
    ("costs", "cheapest"), [(grows_out_of_its_caches, 8), (pays_for_each_pass, 64), (lambda rows: 0.001, 64)]
)
def test_pieces_become_as_large_as_is_cheapest_per_row(costs: Costs, cheapest: int):
    assert run(PieceSizes(), costs, 20) == cheapest


def test_equal_costs_make_no_more_pieces_than_they_must():
    assert run(PieceSizes(), lambda rows: 0.01 * rows, 20) == 64


def test_passes_that_others_disturb_do_not_mislead():
    assert run(PieceSizes(), grows_out_of_its_caches, 40, disturbed=0.3) == 8
    assert run(PieceSizes(), pays_for_each_pass, 40, disturbed=0.3) == 64


@pytest.mark.parametrize("rows", [32, 12])
def test_batches_that_are_never_larger_find_it_too(rows: int):
    assert run(PieceSizes(), grows_out_of_its_caches, 40, rows=rows) == 8


def test_a_batch_is_never_cut_into_more_rows_than_it_has():
    sizes = PieceSizes()
    for most in (1, 2, 3, 5, 64, 1000):
        assert 1 <= sizes.rows(most) <= min(most, 64)
        sizes.observe(min(most, 64), 0.01)


def test_a_machine_that_changes_is_noticed():
    sizes = PieceSizes()
    assert run(sizes, grows_out_of_its_caches, 40) == 8
    assert run(sizes, pays_for_each_pass, 400) == 64


def test_single_rows_teach_nothing_about_pieces():
    sizes = PieceSizes()
    for _ in range(100):
        sizes.observe(1, 1e-6)
    assert sizes.rows(64) == 64


def test_the_pixels_of_a_piece_are_bounded_and_small_ones_are_not() -> None:
    assert rows_that_fit([(4096, 4096)], is_cuda=False) == 1
    assert rows_that_fit([(224, 224)], is_cuda=False) > LARGEST_PIECE_ROWS
    assert rows_that_fit([(224, 224)], is_cuda=True) > 1024
    assert rows_that_fit([(512, 512), (256, 256)], is_cuda=False) == (64 << 20) // (3 * (512**2 + 256**2))
    assert rows_that_fit([], is_cuda=False) > 1 << 40


def test_what_takes_many_rows_has_larger_pieces_where_these_are_cheaper() -> None:
    assert run(PieceSizes(256), pays_for_each_pass, 40, rows=1024) == 256
    assert run(PieceSizes(256), grows_out_of_its_caches, 80, rows=1024) == 8
    assert run(PieceSizes(256), pays_for_each_pass, 40, rows=100) == 64
