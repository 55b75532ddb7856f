"""Why a model moves, in a few words, where a policy has not said it: read from the state that it decided on.

Pure.
"""

from __future__ import annotations

from server.placement.policy import Abort, Evict, PlacementAction, PlacementState

__all__ = ["reason_of"]

_AHEAD = 64  # visits


def reason_of(action: PlacementAction, load: str, state: PlacementState) -> tuple[str, str]:
    """The reason, and the model that it is about; load: what the same link is to bring. "" = none."""
    if action.reason:
        return action.reason, action.because_of
    if isinstance(action, Evict):
        return ("made room for", load) if load else ("was of least worth", "")
    if isinstance(action, Abort):
        return "rows waited for another", ""
    return _of_fetch(action.model, action.worker, state)


def _of_fetch(model: str, worker: str, state: PlacementState) -> tuple[str, str]:
    is_held = any(model in other.resident for name, other in state.workers.items() if name != worker)
    if any(model in wish.group and not wish.by_rows for wish in state.wishes):
        return "wanted", ""
    if any(model in group for group in state.waited_for):
        return ("second copy" if is_held else "rows waited"), ""
    if any(model in group for group in state.workers[worker].offers):
        return "there was room", ""
    if is_held:
        return "second copy", ""
    at = state.visits.last
    for _ in range(_AHEAD):
        after, _share = state.visits.next.get(at, ((), 0.0))
        if model in after:
            return "successor of", at[0]
        at = after
    return "rows expected", ""
