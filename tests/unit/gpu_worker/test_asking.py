"""Rows of a batch are asked of one model after the other, as the table says that came with it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gpu_worker.errors import BadRequest
from gpu_worker.model_cache import Resident
from gpu_worker.networks.network import Floats, Inputs, IsCancelled
from gpu_worker.pipeline.asking import ENOUGH, AskPlan, log_floored
from gpu_worker.pipeline.forward import Tally
from gpu_worker.wire.protocol import AskStep
from tests.answers import confidences_of, labels_of
from tests.unit.gpu_worker.test_forward import CLASSES, Numbers, piece, resident

# Of every row the second model first; where it is not sure, the first; where both are not, the third.
STEPS = [
    AskStep(0, [], [], [1]),
    AskStep(0b010, [0.0, 1.0, 0.0], [0.6], [0, ENOUGH]),
    AskStep(0b011, [1.0, 1.0, 0.0], [0.9], [2, ENOUGH]),
]


class Sure(Numbers):
    """A row is how sure each of three models is of the class "b", in tenths: "359"."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self._place = place

    def scores(self, inputs: Inputs, is_cancelled: IsCancelled) -> Floats:
        assert not isinstance(inputs, np.ndarray)
        self.seen.append(list(inputs))
        tops = np.array([int(row[self._place : self._place + 1]) / 10 for row in inputs], np.float32)
        tops[tops == 0] = np.nan
        return np.stack([(1 - tops) / 2, tops, (1 - tops) / 2], axis=1)


def models() -> tuple[list[Resident], list[Sure]]:
    networks = [Sure(place) for place in range(3)]
    manifest = resident()[0].manifest
    return [Resident(f"m{place}", manifest, each) for place, each in enumerate(networks)], networks


def followed(*pieces: Sequence[bytes], faults: Sequence[int] = ()) -> tuple[Tally, list[Sure]]:
    residents, networks = models()
    tally = Tally(residents, sum(map(len, pieces)), plan=AskPlan(STEPS, 3))
    start = 0
    for rows in pieces:
        tally.add(
            piece(start, rows, *(row for row in faults if start <= row < start + len(rows))), lambda: False
        )
        start += len(rows)
    return tally, networks


def test_a_row_goes_on_to_the_next_model_where_those_before_are_not_sure() -> None:
    tally, networks = followed([b"991", b"949", b"449"], [b"445"])
    assert tally.answered() == [0b010, 0b011, 0b111, 0b111]
    assert [each.seen for each in networks] == [
        [[b"949", b"449"], [b"445"]],
        [[b"991", b"949", b"449"], [b"445"]],
        [[b"449"], [b"445"]],
    ]
    first, second, third = tally.members()
    assert labels_of(second) == ["b"] * 4
    assert labels_of(first) == ["", "b", "b", "b"], "nobody asked it of the first row"
    assert confidences_of(third) == pytest.approx([0, 0, 0.9, 0.5])


def test_a_row_at_fault_is_asked_of_nobody_and_one_without_an_answer_of_nobody_else() -> None:
    tally, networks = followed([b"bad", b"404", b"999"], faults=[0])
    assert tally.answered() == [0, 0, 0b010]
    assert sorted((error.index, error.code) for error in tally.errors) == [
        (0, "input_invalid"),
        (1, "internal"),
    ]
    assert not networks[0].seen


def test_without_a_plan_it_is_not_said_who_answered() -> None:
    residents, _ = models()
    tally = Tally(residents, 1)
    tally.add(piece(0, [b"999"]), lambda: False)
    assert tally.answered() == []


def test_how_sure_models_are_is_the_top_of_their_pool() -> None:
    random = np.random.default_rng(0)
    told = random.dirichlet(np.ones(len(CLASSES)), size=(2, 50)).astype(np.float32)
    pool = np.exp(1.0 * np.log(told[0]) + 0.5 * np.log(told[1]))
    sure = pool.max(axis=1) / pool.sum(axis=1)
    step = AskStep(0b101, [1.0, 0.0, 0.5], [0.5, 0.8], [1, ENOUGH, 1])
    found = AskPlan([AskStep(0, [], [], [0]), step], 3).following(
        0b101, {0: log_floored(told[0]), 2: log_floored(told[1])}
    )
    assert found.tolist() == [ENOUGH if 0.5 <= each < 0.8 else 1 for each in sure.tolist()]


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [AskStep(0, [], [], [ENOUGH])],
        [AskStep(0, [], [], [3])],
        [AskStep(0, [], [0.5], [0, 1])],
        [*STEPS, AskStep(0b100, [0.0, 0.0, 1.0], [], [2])],
        [*STEPS, AskStep(0b100, [0.0, 1.0, 0.0], [], [0])],
        [*STEPS, AskStep(0b100, [0.0, 0.0, 1.0], [0.5], [0])],
        [*STEPS, AskStep(0b100, [0.0, 0.0, 1.0], [0.5, 0.4], [0, 1, 1])],
        [*STEPS, AskStep(0b1000, [1.0], [], [0])],
    ],
)
def test_steps_that_cannot_be_taken_are_the_callers_fault(steps: list[AskStep]) -> None:
    with pytest.raises(BadRequest):
        AskPlan(steps, 3)
