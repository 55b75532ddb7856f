"""What is combined of rows that lie scattered over batches is what is combined of each by itself."""

from __future__ import annotations

import random
import struct

import pytest

from gpu_worker.wire.protocol import Answer, MemberAnswer, RowError
from server.serving.evidence import Span
from server.serving.known import combine_known
from tests.answers import classified
from tests.unit.server.test_plans import planned

ROWS = 24


def _told(chance: random.Random, model: str, rows: int) -> MemberAnswer:
    tops = [chance.choice([0.4, 0.7, 0.99]) for _ in range(rows)]
    scores = b"".join(struct.pack("<3f", top, *[(1 - top) / 2] * 2) for top in tops)
    return classified(model, ["laksa"] * rows, tops, scores)


@pytest.mark.parametrize("seed", range(20))
def test_scattered_rows_are_combined_as_each_by_itself(seed: int) -> None:
    chance = random.Random(seed)
    served = planned()
    # The first member said it of all rows in one batch or in two; of which each row has its own place.
    places = chance.sample(range(ROWS), ROWS)
    batches = [_told(chance, "a/1", ROWS) for _ in range(chance.choice([1, 2]))]
    asked = sorted(chance.sample(range(ROWS), 11))
    reply = Answer(0, [_told(chance, "b/1", len(asked))], [])

    def spans() -> list[Span]:
        found = []
        for place, row in enumerate(asked):
            span = Span(row, 1, ("a/1", "b/1"))
            span.found["a/1"] = batches[row % len(batches)], places[row]
            span.found["b/1"] = reply.members[0], place
            if row % 7 == 3:
                span.errors[row] = RowError(row, "input_invalid", f"row {row}")
            found.append(span)
        return found

    together = spans()
    sure = combine_known(served, [(span, None) for span in together], reply, len(asked))
    for place, (span, alone) in enumerate(zip(together, spans(), strict=True)):
        apart = combine_known(served, [(alone, None)], reply, len(asked))
        assert sure[place] == pytest.approx(apart[place])
        assert span.known is not None
        assert alone.known is not None
        (found, at), (by_itself, first) = span.known, alone.known
        assert first == 0
        for name, column in by_itself.columns.items():
            mine, its = found.columns[name].part(at, 1), column.part(0, 1)
            assert list(mine.values) == pytest.approx(list(its.values)) if name != "label" else mine == its
        errors = [error.message for error in found.errors if error.index == at]
        assert errors == [error.message for error in by_itself.errors]
