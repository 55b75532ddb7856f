"""What it must gain to ask members one after the other, and not all at once.

One after the other spares a row the members that it does not need. All at once spares what they would each do
again (an input is read and decoded once), batches, and waiting. Pure: who weighs what, and by which l̂, is the
caller.
"""

from __future__ import annotations

__all__ = [
    "CHANCE",
    "GIVEN_UP",
    "TOLD_APART_S",
    "is_worth_batches",
    "is_worth_it_alone",
    "is_worth_telling_apart",
    "may_ask_all",
]

GIVEN_UP = 0.001  # accuracy, of the richest plan's, that rows without a goal may lose for time
CHANCE = 0.01  # accuracy: what a member gains less than, by what was counted, may be chance
TOLD_APART_S = 1e-5  # a row, that who answered which is found, told, and combined apart

_BATCHES = 0.9  # batches of their own for each member cost their senders
_WITHIN = 0.95  # passes of few rows cost the worker
_REST = 0.5  # of a worker's time, and of a goal: what is left is for the rows that come next


def is_worth_batches(taken_s: float, together_s: float) -> bool:
    """Whether rows are asked in a batch of its own for each member. together_s: of all members at once."""
    return taken_s < _BATCHES * together_s


def is_worth_telling_apart(taken_s: float, together_s: float) -> bool:
    """Whether a worker asks its members one after the other within a batch. taken_s: with `TOLD_APART_S`."""
    return taken_s < _WITHIN * together_s


def may_ask_all(all_s: float, spare_s: float) -> bool:
    """Whether time is worth so little that all members are asked. spare_s: until rows come, or the goal."""
    return all_s <= _REST * spare_s


def is_worth_it_alone(asked: float, members: int, *, decodes: bool) -> bool:
    """Whether the only caller of so many members, who waits, is answered sooner by asking `asked` of them.

    decodes: whether an input is read and decoded, which each does again, and takes about as long as a member.
    """
    return asked <= ((members + 1) / 2 if decodes else _BATCHES * members)
