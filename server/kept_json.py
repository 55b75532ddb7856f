"""JSON that is kept, and shown to others later."""

from __future__ import annotations

from gpu_worker.model_files.plain_json import check_plain
from server.errors import BadOption

__all__ = ["check_kept"]


def check_kept(content: object, what: str) -> None:
    """Raises `BadOption` for what not everybody could read of it. what: what it is, for the message."""
    try:
        check_plain(content)
    except ValueError as exc:
        raise BadOption(f"{what} cannot be kept: {exc}") from exc
