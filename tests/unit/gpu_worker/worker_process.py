"""A real worker process at the other end of a socketpair, as the server starts it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_worker.wire.protocol import (
    PREFIX_BYTES,
    Infer,
    Load,
    Loaded,
    Message,
    decode,
    encode_parts,
    frame_length,
)
from gpu_worker.wire.shared_rows import SharedRows

REPOSITORY = Path(__file__).parents[3]
PATIENCE_S = 180.0  # trials are niced: on a machine that has other work they take their time
_END_S = 15.0


class WorkerProcess:
    def __init__(
        self, *flags: str, environment: Mapping[str, str] | None = None, shared: SharedRows | None = None
    ) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(PATIENCE_S)
        self._shared = shared
        if shared is not None:
            flags = (*flags, f"--rows-fd={shared.fd}")
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gpu_worker", "--fd", str(theirs.fileno()), "--device", "cpu", *flags],
                pass_fds=[theirs.fileno()] if shared is None else [theirs.fileno(), shared.fd],
                cwd=REPOSITORY,
                env=None if environment is None else {**os.environ, **environment},
                stderr=subprocess.PIPE,
            )

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        if self.process.poll() is None:
            try:
                self.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.communicate()

    def send(self, *messages: Message) -> None:
        for message in messages:
            place = None
            if self._shared is not None and isinstance(message, Infer):
                place = self._shared.put(message.rows)
            self.socket.sendall(b"".join(encode_parts(message, place)))

    def receive(self) -> Message | None:
        """The next reply, of whichever request; None at the end of the stream."""
        try:
            prefix = self._read(PREFIX_BYTES)
        except ConnectionResetError:  # it went with requests unread
            return None
        if len(prefix) < PREFIX_BYTES:
            return None
        return decode(prefix + self._read(frame_length(prefix) - PREFIX_BYTES))

    def ask(self, message: Message) -> Message:
        """The reply to `message`; nothing else may be under way."""
        self.send(message)
        reply = self.receive()
        assert reply is not None, f"the worker is gone: {self.errors()}"
        assert reply.id == message.id
        return reply

    def ask_beside(self, message: Message) -> Message | None:
        """The next reply after `message`, to whatever it is."""
        self.send(message)
        return self.receive()

    def load(self, **directories: Path) -> None:
        for number, (key, directory) in enumerate(directories.items()):
            reply = self.ask(Load(900 + number, key, str(directory)))
            assert isinstance(reply, Loaded), reply

    def wait(self) -> int:
        """The exit status, once it has ended."""
        return self.process.wait(PATIENCE_S)

    def errors(self) -> str:
        """What it wrote to stderr, once it has ended."""
        return self.process.communicate(timeout=PATIENCE_S)[1].decode()

    def peak_bytes(self) -> int:
        """The most memory that it held so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])

    def _read(self, size: int) -> bytes:
        pieces: list[bytes] = []
        while size and (piece := self.socket.recv(size)):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


def by_id(replies: Sequence[Message | None]) -> dict[int, Message]:
    return {reply.id: reply for reply in replies if reply is not None}
