"""What the answer cache did for one version of one function: plain numbers, cheap to add to."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CacheCounts"]


@dataclass(slots=True)
class CacheCounts:
    """Since the server started. `FunctionStats.cache` holds one; whoever shows figures reads it there.

    Rows of calls that asked the cache, of which each is counted once:

    hits        were answered by what was kept
    coalesced   were answered with a row that somebody else had under way, or that stood twice in their call
    misses      were computed

    and of these, `stored` were kept; the others had an error, a default answer, an answer of fewer members
    than were chosen, or a file that changed meanwhile. Rows that did not ask the cache (off, or of what is
    never kept) are in none of them: hits + coalesced + misses may be less than the function's rows.

    entries, nbytes: what is kept now · evictions: what left for want of room.
    hit_calls, hit_s: calls all of whose rows were hits, and the seconds from their coming to their answer.
    miss_calls, miss_s: the other calls that asked, and the seconds that asking and keeping took.
    """

    hits: int = 0
    misses: int = 0
    coalesced: int = 0
    stored: int = 0
    evictions: int = 0
    entries: int = 0
    nbytes: int = 0
    hit_calls: int = 0
    hit_s: float = 0.0
    miss_calls: int = 0
    miss_s: float = 0.0

    @property
    def asked(self) -> int:
        """Rows that asked the cache."""
        return self.hits + self.coalesced + self.misses
