"""A bulk job's control as it is stored. Immutable; knows no tables and no calls."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from server.scheduling.bulk_jobs import BulkControl, BulkTag, BulkWhose, JobKey

__all__ = ["StoredControl"]


@dataclass(frozen=True, slots=True)
class StoredControl:
    """A control, with what a list shows of its job."""

    key: JobKey
    tag: BulkTag
    whose: BulkWhose
    function: str
    control: BulkControl
    set_at: datetime
