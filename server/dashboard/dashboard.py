"""What pages share as long as the server runs. `app.py` alone makes one."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from server.dashboard.assets import Assets
from server.dashboard.confusions import Confusions
from server.dashboard.contents_cache import ContentsCache
from server.dashboard.live import Live
from server.dashboard.renderer import Renderer
from server.dashboard.thumbnails import Thumbnails

__all__ = ["Dashboard"]


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "renderer", Renderer(self.assets))

    async def close(self) -> None:
        """End every stream, and what pages have begun."""
        await self.live.close()
        await self.confusions.close()
