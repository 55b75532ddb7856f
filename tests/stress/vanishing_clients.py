"""Clients that ask for rows and vanish at every stage of it, in waves, on a thread of their own.

Of each wave some say nothing, some leave within the head, some after the whole request, with or without a
reset, some in the middle of the reply; and many begin large bodies together, more than may be held of all of
them. What they are answered is not looked at.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["VanishingClients"]

_OF_A_WAVE = 48
_STEPS = 4  # in which a client sends what it does send
_STEP_S = 0.05
_TIMEOUT_S = 10.0
_LARGE_BYTES = (200_000, 1_400_000)  # the front takes bodies of up to 1 MiB by itself
_RESET = struct.pack("ii", 1, 0)  # of SO_LINGER: closing throws away what was not sent, and says so


@dataclass
class _Client:
    """One that sends a part of a request, and goes.

    share: of the request that is sent · reads: waits for the first bytes of the reply · resets: its end is a
    reset
    """

    connection: socket.socket
    request: bytes
    share: float
    reads: bool
    resets: bool

    def send(self, step: int) -> None:
        """Its next piece."""
        most = int(len(self.request) * self.share)
        with contextlib.suppress(OSError):  # refused, which it does not care for
            self.connection.sendall(self.request[most * step // _STEPS : most * (step + 1) // _STEPS])

    def vanish(self) -> None:
        with contextlib.suppress(OSError):
            if self.reads:
                self.connection.recv(20)
            if self.resets:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.connection.close()


class VanishingClients:
    """So many a second, until the block ends. `request` makes the whole request for a body."""

    def __init__(
        self, port: int, request: Callable[[bytes], bytes], *, per_second: float, seed: int = 0
    ) -> None:
        self.count = 0
        self._port = port
        self._request = request
        self._per_second = per_second
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vanishing clients", daemon=True)

    def __enter__(self) -> VanishingClients:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        began_s = time.monotonic()
        while not self._over.wait(max(0.0, began_s + self.count / self._per_second - time.monotonic())):
            self._wave()

    def _wave(self) -> None:
        clients = [client for _ in range(_OF_A_WAVE) if (client := self._client()) is not None]
        for step in range(_STEPS):
            for client in clients:
                client.send(step)
            time.sleep(_STEP_S)  # bodies of all of them are held meanwhile
        self._random.shuffle(clients)
        for client in clients:
            client.vanish()
        self.count += len(clients)

    def _client(self) -> _Client | None:
        """None: it found no way in."""
        random_ = self._random
        is_large = random_.random() < 0.5
        size = random_.randint(*_LARGE_BYTES) if is_large else random_.randint(1, 2000)
        share = random_.choice([0.5, 0.9, 1.0]) if is_large else random_.choice([0.0, 0.05, 0.6, 1.0, 1.0])
        try:
            connection = socket.create_connection(("127.0.0.1", self._port), timeout=_TIMEOUT_S)
        except OSError:
            return None
        reads = share == 1.0 and random_.random() < 0.5
        return _Client(
            connection, self._request(random_.randbytes(size)), share, reads, random_.random() < 0.3
        )
