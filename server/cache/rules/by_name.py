"""The rules by their names."""

from __future__ import annotations

from collections.abc import Mapping

from server.cache.rule import MakeRule
from server.cache.rules.clock import Clock
from server.cache.rules.lru import LeastRecentlyUsed
from server.cache.rules.s3fifo import S3Fifo
from server.cache.rules.sieve import Sieve
from server.cache.rules.tinylfu import TinyLfu

__all__ = ["RULES"]

RULES: Mapping[str, MakeRule] = {
    "clock": Clock,
    "lru": LeastRecentlyUsed,
    "sieve": Sieve,
    "s3-fifo": S3Fifo,
    "w-tinylfu": TinyLfu,
}
