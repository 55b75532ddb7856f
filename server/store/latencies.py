"""What was learned of models' speed on this machine: `latencies/NAME/VERSION.json` of the home folder.

It belongs to the machine and not to the registry, which other machines may share. Losing a file costs a few
slow batches, so what cannot be read is as good as not there. Blocking. Knows JSON, not what it says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["LatencyFiles"]


class LatencyFiles:
    """One JSON object per model version, by its key NAME/VERSION."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "latencies"

    def read(self, key: str) -> Mapping[str, Any] | None:
        """What was written for that key; None if nothing was, or nothing that can be read."""
        try:
            state = json.loads(self._path(key).read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        return state if isinstance(state, dict) else None

    def write(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace what was written for these keys, each whole or not at all. Raises OSError."""
        for key, state in states.items():
            path = self._path(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(".new")
            draft.write_text(json.dumps(state))
            os.replace(draft, path)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"
