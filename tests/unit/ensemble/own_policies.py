"""Selection policies as a user might bring them."""

from __future__ import annotations

from server.ensemble.policies.fixed import Static
from server.ensemble.selection import Ensemble


def the_first_two(ensemble: Ensemble) -> Static:
    return Static(ensemble, 0b11)


def nothing_at_all(ensemble: Ensemble) -> object:
    return object()
