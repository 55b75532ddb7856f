"""What became of rows, live or simulated, in the same words: right and in time, by how many members."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from server.scheduling.simulation.ensembles import EnsembleResult
from tests.benchmarks.load_generator import Outcome, request_bytes

__all__ = ["Asking", "Row", "Summary", "binned", "live_rows", "simulated_rows", "summary"]


@dataclass(frozen=True, slots=True)
class Row:
    """latency_s: inf for a row that was refused or lost · members: that its answer rests on."""

    at_s: float
    latency_s: float
    right: bool = False
    members: int = 0
    status: int = 200
    said: str = ""  # of a row that was refused


@dataclass(frozen=True, slots=True)
class Summary:
    """Of some rows. goodput: share right and in time · accuracy, members: of those that were answered

    longest_gap_s, gap_at_s: the longest time without an answer, and since when · slowest_s: the latest answer
    """

    rows: int
    goodput: float
    in_time: float
    accuracy: float
    members: float
    refused: float
    longest_gap_s: float
    gap_at_s: float
    slowest_s: float

    def to_json(self) -> dict[str, float]:
        """With as many digits as mean something; what is not known is left out."""
        told: dict[str, float] = asdict(self)
        return {name: round(value, 4) for name, value in told.items() if value == value}


@dataclass(frozen=True)
class Asking:
    """Requests of one photo each, to one function. timeout_s: then the server gives a row up."""

    url: str
    function: str
    input_name: str
    timeout_s: float | None = None

    @property
    def path(self) -> str:
        """Where rows are asked for."""
        return f"/v2/models/{self.function}/infer"

    def body(self, photo: str) -> bytes:
        """The body of a request."""
        parameters = {} if self.timeout_s is None else {"timeout": round(self.timeout_s * 1e6)}
        body = {
            "parameters": parameters,
            "inputs": [{"name": self.input_name, "shape": [1], "datatype": "BYTES", "data": [photo]}],
            "outputs": [{"name": "label"}, {"name": "answered_by"}],
        }
        return json.dumps(body).encode()

    def requests(self, photos: Sequence[str]) -> Callable[[int], bytes]:
        """Request number n, of photo n; they are made once."""
        made = {photo: request_bytes(self.url, self.path, self.body(photo)) for photo in set(photos)}
        return lambda number: made[photos[number % len(photos)]]


def live_rows(outcomes: Sequence[Outcome], labels: Sequence[str]) -> list[Row]:
    """labels: the truth, by row. A row that came back with an error counts as not answered."""
    rows = []
    for outcome, label in zip(outcomes, labels, strict=True):
        if outcome.status != 200:
            said = outcome.body.decode(errors="replace")[:300]
            rows.append(Row(outcome.at_s, math.inf, status=outcome.status, said=said))
            continue
        told: Mapping[str, Any] = {each["name"]: each["data"] for each in json.loads(outcome.body)["outputs"]}
        members = len(told["answered_by"][0].split(","))
        rows.append(Row(outcome.at_s, outcome.latency_s, told["label"][0] == label, members))
    return rows


def simulated_rows(result: EnsembleResult, members: int = 1) -> list[Row]:
    """members: of which each simulated one stands for so many."""
    rows = [
        Row(at_s, latency_s, right, members * count)
        for (at_s, latency_s, right), count in zip(result.answered_at, result.members_of, strict=True)
    ]
    rows += [Row(at_s, math.inf, status=504) for at_s in result.refused_at_s]
    return sorted(rows, key=lambda row: row.at_s)


def summary(rows: Sequence[Row], within_s: float) -> Summary:
    """within_s: the promise, from when a row was to leave."""
    answered = [row for row in rows if row.latency_s < math.inf]
    ends_s = sorted(row.at_s + row.latency_s for row in answered)
    gaps_s = [(after - before, before) for before, after in pairwise(ends_s)]
    gap_s, gap_at_s = max(gaps_s, default=(math.nan, math.nan))
    count = max(1, len(rows))
    return Summary(
        rows=len(rows),
        goodput=sum(row.right and row.latency_s <= within_s for row in answered) / count,
        in_time=sum(row.latency_s <= within_s for row in answered) / count,
        accuracy=sum(row.right for row in answered) / len(answered) if answered else math.nan,
        members=sum(row.members for row in answered) / len(answered) if answered else math.nan,
        refused=1 - len(answered) / count,
        longest_gap_s=gap_s,
        gap_at_s=gap_at_s,
        slowest_s=max((row.latency_s for row in answered), default=math.nan),
    )


def binned(rows: Sequence[Row], edges_s: Sequence[float]) -> list[list[Row]]:
    """By when they were to leave; one list less than edges."""
    bins: list[list[Row]] = [[] for _ in edges_s[1:]]
    for row in rows:
        for number, (first_s, end_s) in enumerate(pairwise(edges_s)):
            if first_s <= row.at_s < end_s:
                bins[number].append(row)
                break
    return bins
