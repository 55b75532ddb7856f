"""What stands in snapshots, read once each: they never change."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from server.catalog.jobs import Snapshot
from server.training.datasets.contents import Contents, contents_of
from server.training.datasets.datasets import Datasets
from server.training.recipes import recipe_for

__all__ = ["ContentsCache"]

_KEPT = 16


class ContentsCache:
    """The last ones that were looked at."""

    def __init__(self) -> None:
        self._read: OrderedDict[str, Contents] = OrderedDict()
        self._one = asyncio.Lock()  # a large file is read by one at a time

    async def of(self, datasets: Datasets, snapshot: Snapshot) -> Contents:
        """Raises OSError."""
        async with self._one:
            known = self._read.get(snapshot.id)
            if known is None:
                has_classes = recipe_for(snapshot.spec["task"]).target == "class"
                known = await asyncio.to_thread(
                    contents_of, datasets.file_of(snapshot), has_classes=has_classes
                )
                self._read[snapshot.id] = known
            self._read.move_to_end(snapshot.id)
            while len(self._read) > _KEPT:
                self._read.popitem(last=False)
            return known
