"""`python mortal_worker_process.py FD KIND WHEN MARK`: a worker that dies once, at its first KIND message.

before: as it has read it · middle: with half of its reply written · after: with all of it written
MARK is a file that says that it has happened. It answers everything; a row `slow` once it is cancelled. The
file `slow` beside MARK says that it has that row.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from dataclasses import fields
from pathlib import Path

from gpu_worker.wire.frames import receive
from gpu_worker.wire.protocol import (
    Answer,
    Cancel,
    CheckpointStored,
    Done,
    EndTraining,
    EpochTrained,
    Evaluate,
    Evaluated,
    Failed,
    Infer,
    Inspect,
    Inspected,
    Load,
    Loaded,
    Message,
    Ping,
    Pong,
    ProbeTraining,
    StoreCheckpoint,
    TrainEpoch,
    TrainingProbed,
    encode,
)
from tests.answers import classified

REPLIES: dict[type[Message], type[Message]] = {
    TrainEpoch: EpochTrained,
    StoreCheckpoint: CheckpointStored,
    Evaluate: Evaluated,
    Inspect: Inspected,
    ProbeTraining: TrainingProbed,
    EndTraining: Done,
}
EMPTY = {"int": 0, "float": 0.0, "str": "", "bool": False}


class Worker:
    def __init__(self, connection: socket.socket, kind: str, when: str, mark: Path) -> None:
        self._connection = connection
        self._kind = kind
        self._when = when
        self._mark = mark
        self._resident: list[str] = []

    def serve(self) -> None:
        while (message := receive(self._connection)) is not None:
            doomed = message.kind == self._kind and not self._mark.exists()
            if doomed:
                self._mark.touch()
                if self._when == "before":
                    _die()
            if not self._is_answered(message):
                self._mark.with_name("slow").touch()
            frame = encode(self._reply(message)) if self._is_answered(message) else b""
            self._connection.sendall(frame[: len(frame) // 2] if doomed and self._when == "middle" else frame)
            if doomed:
                _die()

    def _is_answered(self, message: Message) -> bool:
        return not (isinstance(message, Infer) and b"slow" in message.rows)

    def _reply(self, message: Message) -> Message:
        if isinstance(message, Ping):
            return Pong(message.id, "cpu", "fake", 1000, list(self._resident))
        if isinstance(message, Load):
            self._resident.append(message.model)
            return Loaded(message.id, 10, 0.001)
        if isinstance(message, Cancel):
            return Failed(message.target, "cancelled", "the request was cancelled")
        if isinstance(message, Infer):
            labels = [row.decode() for row in message.rows]
            members = [classified(model, labels, [1.0] * len(labels)) for model in message.models]
            return Answer(message.id, members, [])
        kind = REPLIES.get(type(message), Done)
        if kind is Done and message.kind == "unload":
            self._resident.remove(message.model)  # type: ignore[attr-defined]  # an Unload
        values = {item.name: EMPTY.get(str(item.type), []) for item in fields(kind) if item.name != "id"}
        return kind(message.id, **values)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    Worker(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[3], Path(sys.argv[4])).serve()
