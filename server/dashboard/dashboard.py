"""What pages share as long as the server runs. `app.py` alone makes one."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from server.dashboard.assets import Assets
from server.dashboard.live import Live
from server.dashboard.renderer import Renderer

__all__ = ["Dashboard"]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """run: names this life of the server, so that a page notices that it was started again."""

    live: Live
    assets: Assets = field(default_factory=Assets)
    renderer: Renderer = field(init=False)
    run: str = field(default_factory=lambda: secrets.token_hex(8))

    def __post_init__(self) -> None:
        object.__setattr__(self, "renderer", Renderer(self.assets))

    async def close(self) -> None:
        """End every stream."""
        await self.live.close()
