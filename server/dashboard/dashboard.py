"""What pages share as long as the server runs. `app.py` alone makes one."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from markupsafe import Markup

from server.dashboard.assets import Assets
from server.dashboard.confusions import Confusions
from server.dashboard.contents_cache import ContentsCache
from server.dashboard.live import Live
from server.dashboard.renderer import Renderer
from server.dashboard.thumbnails import Thumbnails

__all__ = ["Dashboard"]

_MOST_KEPT = 64


@dataclass(frozen=True, slots=True)
class Dashboard:
    """run: names this life of the server, so that a page notices that it was started again."""

    live: Live
    assets: Assets = field(default_factory=Assets)
    confusions: Confusions = field(default_factory=Confusions)
    contents: ContentsCache = field(default_factory=ContentsCache)
    thumbnails: Thumbnails = field(default_factory=Thumbnails)
    renderer: Renderer = field(init=False)
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    _kept: dict[Hashable, tuple[Hashable, list[Markup]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "renderer", Renderer(self.assets))

    def kept(self, key: Hashable, stamp: Hashable, make: Callable[[], list[Markup]]) -> list[Markup]:
        """What was made last under that key, if it was made by the same stamp; else made now, and kept.

        For charts, which take tens of milliseconds and change seldom.
        """
        found = self._kept.get(key)
        if found is None or found[0] != stamp:
            while len(self._kept) >= _MOST_KEPT:
                self._kept.pop(next(iter(self._kept)), None)
            found = self._kept[key] = (stamp, make())
        return found[1]

    async def close(self) -> None:
        """End every stream, and what pages have begun."""
        await self.live.close()
        await self.confusions.close()
