"""Closed loop of `make bench-residency`: the most that any rule could reach that does not know what comes.

Rafiqi's experiment as in residency_rafiqi.py, for a few clients, each of whose rows is for a model drawn
anew. Whoever decides knows how popular each model is, what waits, and where the link is; it chooses what
runs, in batches of any size, and what is loaded, given up and evicted, freely. Rows answered at most until
the end of t steps of 2.5 ms are found for all t one after the other: backward induction over the waiting
rows and the link. The bounds are Odoni's: over a window of time the rows added lie, whatever the state,
below and above the rate of the best rule.

Nothing is left out that could help: a batch runs from beginning to end, so between two of its ends nothing
is learned, and a load that would begin within it may as well begin with it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.residency_rafiqi import LATENCY, MODELS, SWAP_S, popularity

__all__ = ["online_bounds"]

STEP_S = 0.0025
_LOAD = round(SWAP_S / STEP_S)
_WINDOW = 396  # steps; of loads and single runs a multiple, which repeat
_NEVER = -1e9

Link = tuple[int, int, int]  # model that is not there; the other that is not, or −1; steps of the load left
Floats = NDArray[np.float64]


def online_bounds(
    access: str, clients: int, most_steps: int = 4000, apart: float = 1e-4
) -> tuple[float, float]:
    """Rows per second that the best rule reaches at least, and at most."""
    shares = popularity(access)
    steps = _Steps(clients, [share / sum(shares) for share in shares])
    low, high = 0.0, math.inf
    for _ in range(0, most_steps, _WINDOW):
        low, high = steps.on(_WINDOW)
        if high - low < apart * high:
            break
    return low / STEP_S, high / STEP_S


def _run(rows: int) -> int:
    """Steps of a batch."""
    return round(LATENCY(rows) / STEP_S)


class _Steps:
    """Rows answered at most in t steps, from every state in which the device is idle: t after t."""

    def __init__(self, clients: int, shares: Sequence[float]) -> None:
        self._clients = clients
        self._shares = shares
        self._links = list(_links())
        self._at = {link: at for at, link in enumerate(self._links)}
        # Rows that wait, by model, of 0 to all clients.
        self._waiting = [list(_multisets(rows)) for rows in range(clients + 1)]
        places = [{one: at for at, one in enumerate(of)} for of in self._waiting]
        self._one_more = [
            [[places[rows + 1][_with(one, model)] for one in self._waiting[rows]] for model in range(MODELS)]
            for rows in range(clients)
        ]
        self._batches = [
            (model, rows, *self._batch(model, rows, places))
            for rows in range(1, clients + 1)
            for model in range(MODELS)
        ]
        self._waits = self._idling()
        # Of the last steps: by rows of the batch just over, what is expected once their clients ask again.
        self._past: deque[list[Floats]] = deque(maxlen=max(_run(clients), _LOAD) + 1)
        self._all: deque[Floats] = deque(maxlen=_WINDOW + max(_run(clients), _LOAD) + 1)
        self._keep(np.zeros((len(self._waiting[clients]), len(self._links))))

    def on(self, steps: int) -> tuple[float, float]:
        """So many more; rows a step at least and at most, by the last ones."""
        for _ in range(steps):
            self._keep(self._next())
        more = [
            (self._all[-1 - ago] - self._all[-1 - ago - _WINDOW]) / _WINDOW
            for ago in range(max(_run(self._clients), _LOAD))
            if ago + _WINDOW < len(self._all)
        ]
        return min(float(one.min()) for one in more), max(float(one.max()) for one in more)

    def _keep(self, rows: Floats) -> None:
        self._all.append(rows)
        expected = [rows]
        for asked in range(1, self._clients + 1):
            of = self._one_more[self._clients - asked]
            expected.append(
                sum(share * expected[-1][of[model]] for model, share in enumerate(self._shares))  # type: ignore[arg-type]
            )
        self._past.append(expected)

    def _ago(self, steps: int) -> list[Floats] | None:
        return self._past[-steps] if steps <= len(self._past) else None

    def _next(self) -> Floats:
        best = np.full((len(self._waiting[self._clients]), len(self._links)), 0.0)
        for _, rows, before, after, reached in self._batches:
            then = self._ago(_run(rows))
            if then is None:
                continue
            # One row more for what cannot be reached.
            found = np.full((len(after), len(self._links)), _NEVER)
            of = then[rows][after]
            for choice in reached:
                np.maximum(found, np.where(choice >= 0, of[:, choice], _NEVER), out=found)
            best[before] = np.maximum(best[before], found + rows)
        for steps, starts, ends in self._waits:
            then = self._ago(steps)
            if then is not None:
                best[:, starts] = np.maximum(best[:, starts], then[0][:, ends])
        return best

    def _batch(
        self, model: int, rows: int, places: list[dict[tuple[int, ...], int]]
    ) -> tuple[list[int], list[int], list[NDArray[np.int64]]]:
        """States before; what waits beside; by choice: link before → link when it is over, −1 = cannot be."""
        before, after = [], []
        for at, waiting in enumerate(self._waiting[self._clients]):
            if waiting[model] >= rows:
                before.append(at)
                left = tuple(n - rows * (one == model) for one, n in enumerate(waiting))
                after.append(places[self._clients - rows][left])
        outcomes = [
            [self._at[one] for one in dict.fromkeys(_meanwhile(link, model, _run(rows)))]
            for link in self._links
        ]
        most = max(map(len, outcomes))
        choices = [np.array([of[at] if at < len(of) else -1 for of in outcomes]) for at in range(most)]
        return before, after, choices

    def _idling(self) -> list[tuple[int, list[int], list[int]]]:
        """Nothing runs until the link is idle: (steps, links before, links then)."""
        by_steps: dict[int, list[tuple[int, int]]] = {}
        for link in self._links:
            for _, other, left in _begun(link, -1):
                if left:
                    end = self._at[other, -1, 0]
                    by_steps.setdefault(left, []).append((self._at[link], end))
        # Where two choices begin at one link they are told apart.
        found = []
        for steps, pairs in by_steps.items():
            while pairs:
                firsts = dict(reversed(pairs))
                found.append((steps, list(firsts), list(firsts.values())))
                pairs = [pair for pair in pairs if firsts[pair[0]] != pair[1]]
        return found


def _links() -> Iterator[Link]:
    for absent in range(MODELS):
        yield absent, -1, 0
    for loading in range(MODELS):
        for other in range(MODELS):
            if other != loading:
                yield from ((loading, other, left) for left in range(1, _LOAD))


def _begun(link: Link, running: int) -> Iterator[Link]:
    """What the link may do from now on, while that model runs."""
    yield link
    absent, other, left = link
    if left:
        yield other, absent, _LOAD  # it is given up, for what left
    else:
        yield from ((absent, victim, _LOAD) for victim in range(MODELS) if victim not in (absent, running))


def _meanwhile(link: Link, running: int, steps: int) -> Iterator[Link]:
    """Where the link may be when that batch is over; nothing where the model is not there."""
    if running in link[: 2 if link[2] else 1]:
        return
    for loading, other, left in _begun(link, running):
        if not left:
            yield loading, -1, 0
        elif left > steps:
            yield loading, other, left - steps
        else:
            for absent, victim, whole in _begun((other, -1, 0), running):
                yield (absent, victim, whole - (steps - left)) if whole and left < steps else (other, -1, 0)


def _multisets(rows: int) -> Iterator[tuple[int, ...]]:
    for drawn in combinations_with_replacement(range(MODELS), rows):
        yield tuple(drawn.count(model) for model in range(MODELS))


def _with(waiting: tuple[int, ...], model: int) -> tuple[int, ...]:
    return tuple(n + (one == model) for one, n in enumerate(waiting))
