"""A call of a function whose requests have left and whose answers have not been waited for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ml_udf.client.column import InputColumn, SubBatch
from ml_udf.client.exchange import Exchange, Outcomes
from ml_udf.client.prediction import Prediction, spread
from ml_udf.client.request_pool import Underway

__all__ = ["PendingCall"]


@dataclass(frozen=True, slots=True)
class PendingCall:
    """What `Client.begin` has begun. Wait for it or drop it, once."""

    column: InputColumn
    exchange: Exchange
    underway: Underway[SubBatch, Outcomes]

    def wait(self, on_wait: Callable[[], None] | None = None) -> Prediction:
        """The answers, faults of rows reported in them. Raises what concerns the whole call.

        on_wait  called in this thread at least every 50 ms; what it raises aborts the call
        """
        answers = Outcomes.empty(len(self.column.distinct))
        batches = 0
        for batch, reply in self.underway.results(on_wait):
            answers.fill(batch, reply)
            batches += 1
        return spread(self.column, answers, self.exchange, batches=batches)

    def drop(self) -> None:
        """Nobody wants the answers: hang up, so that the server drops the rows."""
        self.underway.drop()
