"""`static`: what is there stays there."""

from __future__ import annotations

from server.capacity.policy import Decision, Fleet, State

__all__ = ["Static"]


class Static:
    """Nothing is ever done: as many workers and copies as the server was started with."""

    name = "static"
    every_s = 2.0

    def decide(self, fleet: Fleet, state: State) -> Decision:
        """Nothing."""
        return Decision((), state)
