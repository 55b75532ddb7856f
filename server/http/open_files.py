"""Room in this process for the clients that it may have: each is an open file.

Knows the operating system's limits; nothing of connections.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource

__all__ = ["make_room"]

log = logging.getLogger("ml_udf.server")

_OWN = 1024  # the registry, workers, logs, models; clients that were turned away and are not closed yet


def make_room(connections: int) -> int:
    """Allow so many connections beside this process's own files, and have the kernel make room for them now.

    Returns how many open files there may be, which is fewer where the hard limit says so; that is logged.
    The kernel's table of open files doubles as it fills, and in a process with threads each time waits for
    every CPU (`synchronize_rcu` in `expand_fdtable`, fs/file.c): 10 to 30 ms, in the middle of the burst of
    clients that filled it.
    """
    wanted = connections + _OWN
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _is_below(soft, wanted):
        soft = hard if _is_below(hard, wanted) else wanted
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if _is_below(soft, wanted):
        log.warning(
            "this process may open %d files, which is too few for %d connections; raise the hard limit "
            "(ulimit -Hn, or LimitNOFILE= of its unit) or set fewer --max-connections",
            soft,
            connections,
        )
    last = (soft if _is_below(soft, wanted) else wanted) - 1
    with contextlib.suppress(OSError):
        os.fstat(last)
        return soft  # somebody has that one: there is room
    with open(os.devnull, "rb") as any_file, contextlib.suppress(OSError):
        os.close(os.dup2(any_file.fileno(), last))
    return soft


def _is_below(limit: int, wanted: int) -> bool:
    return limit != resource.RLIM_INFINITY and limit < wanted
