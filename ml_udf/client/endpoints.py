"""Which of several endpoints is asked next: a pure decision of what is known of them, and the clock.

    'http://a:8080,http://b:8080' ─→ endpoints_of ─→ Standing: order(now) · failed(place, now) · answered

The first that is named is preferred. Who answered last is asked first, until it fails; one that failed is
asked last for a while, which doubles with each failure in a row, and is then looked at, for it may be back.
Knows no HTTP and no threads.
"""

from __future__ import annotations

from ml_udf.errors import BadOption

__all__ = ["MOST_ENDPOINTS", "Standing", "endpoints_of"]

MOST_ENDPOINTS = 16
_FIRST_PAUSE_S = 10.0
_MOST_PAUSE_S = 300.0
_LOCAL = "local:"


def endpoints_of(text: str) -> tuple[str, ...]:
    """The endpoints of an option: one, or several between commas, the preferred one first.

    A comma within the path of `local:` is a part of it. Raises `BadOption`.
    """
    if text.startswith(_LOCAL):
        return (text,)
    parts = tuple(part.strip() for part in text.split(","))
    if len(parts) == 1:
        return (text,)
    if "" in parts:
        raise BadOption(
            "a list of endpoints has an empty place",
            hint="write one comma between two, as in http://a:8080,http://b:8080",
        )
    if any(part.startswith(_LOCAL) for part in parts):
        raise BadOption("local: is no server, and stands alone", hint="name http:// and https:// alone")
    if len(set(parts)) < len(parts):
        raise BadOption("a list of endpoints names one of them twice", hint="name each once")
    if len(parts) > MOST_ENDPOINTS:
        raise BadOption(f"a list of endpoints has {MOST_ENDPOINTS} at the most, not {len(parts)}")
    return parts


class Standing:
    """What is known of `count` endpoints, by their places. Times are of one clock that never goes back."""

    def __init__(self, count: int) -> None:
        self._good = 0
        self._rests_until_s = [0.0] * count
        self._pause_s = [0.0] * count  # of the last failure; 0 = none since it answered

    @property
    def good(self) -> int:
        """The one that is asked first."""
        return self._good

    def order(self, now_s: float) -> list[int]:
        """Every one, in the order in which they are to be asked; those that failed of late at the end."""
        places = range(len(self._rests_until_s))
        return sorted(places, key=lambda place: (self._rests(place, now_s), place != self._good, place))

    def due(self, now_s: float) -> int | None:
        """One that is preferred to the one that is asked, failed, and has rested: is it back?"""
        return next((place for place in range(self._good) if not self._rests(place, now_s)), None)

    def answered(self, place: int) -> None:
        """It is asked first from now on."""
        self._good, self._pause_s[place], self._rests_until_s[place] = place, 0.0, 0.0

    def failed(self, place: int, now_s: float) -> None:
        """It does not answer: it is asked last for a while. Of failures at the same time one counts."""
        if self._rests(place, now_s):
            return
        pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s[place]), _MOST_PAUSE_S)
        self._pause_s[place], self._rests_until_s[place] = pause_s, now_s + pause_s

    def _rests(self, place: int, now_s: float) -> bool:
        return now_s < self._rests_until_s[place]
