"""The worker protocol: what a server says to a worker process, and what comes back.

One message is `u32 total | u32 header | header (JSON) | blobs`, little-endian, over a stream socket;
a blob is a column of byte strings (`u32 length | bytes` each) or of raw numbers; columns of texts stand in
the header. The rows of an Infer may lie in memory that both sides share instead (`shared_rows.py`): its blob
is their lengths then, and `rows_at` in the header says where they begin. Requests carry an `id`, every reply
repeats it; replies come in any order. Standard library only: the server imports this module.

    Load   → Loaded | Failed
    Unload → Done   | Failed
    Read   → Done   | Failed          into the host's memory, ahead of a Load
    Infer  → Answer | Failed          one batch through one or several models, decoded once
    Crop   → Cropped | Failed        pieces of pictures, for whoever is asked of each
    Cancel → (nothing; the Infer or Load it names answers Failed(code="cancelled"), or already has)
    Ping   → Pong
    ListResidents → ResidentsListed

A worker that does not see the server's files asks for them while it carries out a message that names some,
and gives those that it was to store before it answers; these alone go the other way:

    WantPiece → FilePiece
    GivePiece → PieceTaken

Loads and evictions of one model are carried out in the order in which they came, those of several beside
each other and beside batches. A reply to an Infer says that it is over: none of its rows is anywhere in the
worker. So a pass that hangs is never answered, cancelled or not, and a worker that answers works.

Training goes beside that, one message an epoch, so that whoever drives it decides after each:

    Inspect         → Inspected        | Failed  which rows can be decoded, and which are the same
    TrainEpoch      → EpochTrained     | Failed  one epoch of one trial; Cancel stops it before its next step
    StoreCheckpoint → CheckpointStored | Failed  a trial's weights, into the parameter store
    Evaluate        → Evaluated        | Failed  a checkpoint's probabilities for the rows of one split
    ForgetTrial     → Done                       its weights are no longer wanted
    MakeVariant     → VariantMade      | Failed  another way to run a model, and how it answers held-out rows
    ProbeTraining   → TrainingProbed   | Failed  whether it still takes steps
    EndTraining     → Done                       end a training process that hangs
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any

from gpu_worker.wire.messages import (
    Answer,
    AskStep,
    BatchPart,
    Cancel,
    CheckpointStored,
    Column,
    Crop,
    Cropped,
    Done,
    EndTraining,
    EpochTrained,
    Evaluate,
    Evaluated,
    Failed,
    FilePiece,
    ForgetTrial,
    GivePiece,
    Infer,
    Inspect,
    Inspected,
    ListResidents,
    Load,
    Loaded,
    MakeVariant,
    MemberAnswer,
    Message,
    PieceTaken,
    Ping,
    Pong,
    ProbeTraining,
    Read,
    ResidentsListed,
    Row,
    RowError,
    StoreCheckpoint,
    TrainEpoch,
    TrainingProbed,
    Unload,
    VariantMade,
    WantPiece,
)

__all__ = [
    "Answer",
    "AskStep",
    "BatchPart",
    "Cancel",
    "CheckpointStored",
    "Column",
    "Crop",
    "Cropped",
    "Done",
    "EndTraining",
    "EpochTrained",
    "Evaluate",
    "Evaluated",
    "Failed",
    "FilePiece",
    "ForgetTrial",
    "FrameError",
    "GivePiece",
    "Infer",
    "Inspect",
    "Inspected",
    "ListResidents",
    "Load",
    "Loaded",
    "MakeVariant",
    "MemberAnswer",
    "Message",
    "PieceTaken",
    "Ping",
    "Pong",
    "ProbeTraining",
    "Read",
    "ResidentsListed",
    "Row",
    "RowError",
    "StoreCheckpoint",
    "TrainEpoch",
    "TrainingProbed",
    "Unload",
    "VariantMade",
    "WantPiece",
    "decode",
    "encode",
    "encode_parts",
    "frame_length",
    "reply_frame",
]

MAX_FRAME_BYTES = 1 << 30
_PREFIX = struct.Struct("<II")
PREFIX_BYTES = _PREFIX.size
_as_json = json.JSONEncoder(separators=(",", ":")).encode  # `dumps` would make an encoder for each message


class FrameError(ValueError):
    """The bytes are not a message of the protocol; the connection is of no further use."""


_KINDS: dict[str, type[Message]] = {cls.kind: cls for cls in Message.__subclasses__()}
_FIELDS = {cls: tuple(item.name for item in fields(cls)) for cls in _KINDS.values()}
_COLUMN: dict[type[Message], str] = {
    Infer: "rows",
    Crop: "rows",
    Cropped: "crops",
    Inspect: "rows",
    Evaluated: "predictions",
    FilePiece: "data",
    GivePiece: "data",
}


# Forms of rows that whoever decodes them copies himself, or never.
_SEEN_WHERE_THEY_LIE = frozenset(("image", "tensor"))


def encode(message: Message) -> bytes:
    """The frame of a message. Raises `FrameError` for one that is too large."""
    return b"".join(encode_parts(message))


def encode_parts(message: Message, rows_at: int | None = None) -> list[bytes | bytearray]:
    """The frame in parts, to be written one after the other; rows and numbers are not copied.

    rows_at: where the rows of an Infer lie in the memory that is shared with its worker; None = they go with
    the frame. Raises as `encode`.
    """
    head: dict[str, Any] = {"kind": message.kind}
    blobs: list[bytes | bytearray] = []
    for name in _FIELDS[type(message)]:
        head[name] = getattr(message, name)
    if isinstance(message, Answer):
        head["members"] = [
            {"model": member.model, "columns": [_column_head(column, blobs) for column in member.columns]}
            for member in message.members
        ]
        head["errors"] = [asdict(error) for error in message.errors]
    elif (name := _COLUMN.get(type(message), "")) != "":
        if isinstance(message, Infer):
            head["steps"] = [asdict(step) for step in message.steps]
            head["parts"] = [asdict(part) for part in message.parts]
        rows = head[name]
        head[name] = len(rows)
        blobs.append(struct.pack(f"<{len(rows)}I", *map(len, rows)))
        if rows_at is None:
            blobs += rows
        else:
            head["rows_at"] = rows_at
    text = _as_json(head).encode()
    total = PREFIX_BYTES + len(text) + sum(map(len, blobs))
    if total > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {total} bytes is over the limit of {MAX_FRAME_BYTES}")
    return [_PREFIX.pack(total, len(text)) + text, *blobs]


def reply_frame(reply: Message) -> bytes:
    """The frame of a reply; of a `Failed` under its id where the reply cannot be a frame.

    Whoever waits hears of it, and who writes frames goes on with the next.
    """
    try:
        return encode(reply)
    except FrameError as exc:
        return encode(Failed(reply.id, "bad_option", f"the reply is too large, ask for fewer rows: {exc}"))
    except Exception as exc:  # a value that is none of the protocol's: a bug, told like any other
        return encode(Failed(reply.id, "internal", f"the reply cannot be sent: {type(exc).__name__}"))


def frame_length(prefix: bytes | bytearray) -> int:
    """Bytes of the frame that starts with `prefix` (`PREFIX_BYTES` of it). Raises `FrameError`."""
    total, head = _PREFIX.unpack(prefix)
    if not PREFIX_BYTES + head <= total <= MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {total} bytes with a header of {head} cannot be")
    return int(total)


def decode(frame: bytes | bytearray | memoryview, shared: memoryview | None = None) -> Message:
    """The message of one whole frame, of which it keeps nothing. Raises `FrameError`.

    shared: the memory that rows may lie in. Those of pictures and tensors are parts of it, others are copied.
    """
    if len(frame) < PREFIX_BYTES:
        raise FrameError(f"a frame of {len(frame)} bytes has no prefix")
    total, head_bytes = _PREFIX.unpack_from(frame)
    if total != len(frame):
        raise FrameError(f"a frame of {len(frame)} bytes says that it has {total}")
    try:
        head: dict[str, Any] = json.loads(str(frame[PREFIX_BYTES : PREFIX_BYTES + head_bytes], "utf-8"))
        cls = _KINDS[head.pop("kind")]
        at = PREFIX_BYTES + head_bytes
        if (column := _COLUMN.get(cls)) is not None:
            rows_at = head.pop("rows_at", None) if cls is Infer else None
            if rows_at is None:
                head[column] = _rows(frame, at, head[column])
            else:
                head[column] = _shared_rows(frame, at, head[column], shared, rows_at)
                if head["form"] not in _SEEN_WHERE_THEY_LIE:
                    head[column] = list(map(bytes, head[column]))
            if cls is Infer:
                head["steps"] = [AskStep(**step) for step in head.get("steps", ())]
                head["parts"] = [BatchPart(**part) for part in head.get("parts", ())]
        elif cls is Answer:
            head["members"] = list(_members(frame, at, head["members"]))
            head["errors"] = [RowError(**error) for error in head["errors"]]
        return cls(**head)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as exc:
        raise FrameError(f"not a message of the worker protocol: {exc!r}") from exc


def _shared_rows(
    frame: bytes | bytearray | memoryview, at: int, count: int, shared: memoryview | None, rows_at: int
) -> list[memoryview]:
    sizes = struct.unpack_from(f"<{count}I", frame, at)
    if shared is None or at + 4 * count != len(frame) or not 0 <= rows_at <= len(shared) - sum(sizes):
        raise FrameError("the rows do not lie in memory that is shared")
    rows = []
    for size in sizes:
        rows.append(shared[rows_at : rows_at + size])
        rows_at += size
    return rows


def _rows(frame: bytes | bytearray | memoryview, at: int, count: int) -> list[bytes]:
    sizes = struct.unpack_from(f"<{count}I", frame, at)
    at += 4 * count
    if at + sum(sizes) != len(frame):
        raise FrameError("the rows do not fill their frame")
    rows = []
    view = memoryview(frame)
    for size in sizes:
        rows.append(bytes(view[at : at + size]))
        at += size
    return rows


def _column_head(column: Column, blobs: list[bytes | bytearray]) -> dict[str, Any]:
    """What a column is; its data, if not in the head, is put behind the `blobs`."""
    head: dict[str, Any] = {"name": column.name, "datatype": column.datatype, "shape": column.shape}
    if column.content:
        head["content"] = column.content
    data = column.data
    if isinstance(data, list):
        head["data"] = data
    else:
        head["bytes"] = len(data)
        blobs.append(data)
    return head


def _members(
    frame: bytes | bytearray | memoryview, at: int, heads: list[dict[str, Any]]
) -> Iterator[MemberAnswer]:
    view = memoryview(frame)
    for head in heads:
        columns = []
        for told in head["columns"]:
            data = told.get("data")
            if data is None:
                size = told["bytes"]
                data = bytes(view[at : at + size])
                at += size
            shape, content = tuple(told["shape"]), told.get("content", "")
            columns.append(Column(told["name"], told["datatype"], shape, data, content))
        yield MemberAnswer(head["model"], columns)
