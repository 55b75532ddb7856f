"""A child process at the other end of a socketpair: it ends when its end of the socket closes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence

__all__ = ["start_child"]


async def start_child(
    command_for: Callable[[int], Sequence[str]],
    environment: Mapping[str, str] | None,
    pass_fds: Sequence[int] = (),
) -> tuple[asyncio.subprocess.Process, socket.socket]:
    """The process, and our end of its socket, which does not block. Raises `OSError`.

    command_for(fd): its command line, with its end of the socket. environment: its variables; None for this
    process's own. pass_fds: descriptors that it has under the same numbers.
    """
    ours, theirs = socket.socketpair()
    try:
        ours.setblocking(False)
        process = await asyncio.create_subprocess_exec(
            *command_for(theirs.fileno()),
            pass_fds=(theirs.fileno(), *pass_fds),
            stdin=asyncio.subprocess.DEVNULL,
            env=environment,
            # A terminal's Ctrl-C is the server's to handle: it lets its children finish first.
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours
