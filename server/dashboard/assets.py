"""Style sheets, scripts and pictures of the pages, read once.

All share one digest in their URLs, `assets/DIGEST/NAME`, so that scripts may import each other by name and
browsers may keep them for good: what changes has another URL.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

__all__ = ["Asset", "Assets"]

_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file as it is sent."""

    content: bytes
    media_type: str


class Assets:
    """By name. digest: of all of them together."""

    def __init__(self, found: Iterable[Traversable] | None = None) -> None:
        """found: the files; those of this package if none are named."""
        listed = files(__package__).joinpath("assets").iterdir() if found is None else found
        read = {each.name: each.read_bytes() for each in listed if _ending(each.name) in _TYPES}
        self._assets = {name: Asset(content, _TYPES[_ending(name)]) for name, content in sorted(read.items())}
        digest = hashlib.sha256()
        for name, asset in self._assets.items():
            digest.update(f"{name}\0{len(asset.content)}\0".encode() + asset.content)
        self.digest = digest.hexdigest()[:12]

    def get(self, name: str) -> Asset | None:
        """One of them; None if there is none of that name."""
        return self._assets.get(name)

    def path(self, name: str) -> str:
        """Its path below the server's root. Raises KeyError."""
        if name not in self._assets:
            raise KeyError(name)
        return f"assets/{self.digest}/{name}"


def _ending(name: str) -> str:
    return name.rpartition(".")[2]
