"""The worker protocol: what a server says to a worker process, and what comes back.

One message is `u32 total | u32 header | header (JSON) | blobs`, little-endian, over a stream socket;
a blob is a column of byte strings (`u32 length | bytes` each) or raw numbers. Requests carry an `id`,
every reply repeats it; replies come in any order. Standard library only: the server imports this module.

    Load   → Loaded | Failed
    Unload → Done   | Failed
    Infer  → Answer | Failed          one batch through one or several models, decoded once
    Cancel → (nothing; the Infer it names answers Failed(code="cancelled"), or already has)
    Ping   → Pong

Training goes beside that, one message an epoch, so that whoever drives it decides after each:

    Inspect  → Inspected | Failed     which rows can be decoded, and which are the same
    Train    → Trained   | Failed     one epoch of one trial; Cancel stops it before its next step
    Keep     → Kept      | Failed     a trial's weights, into the parameter store
    Evaluate → Evaluated | Failed     a checkpoint's probabilities for the rows of one split
    Drop     → Done                   forget a trial
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

__all__ = [
    "Answer",
    "Cancel",
    "Done",
    "Drop",
    "Evaluate",
    "Evaluated",
    "Failed",
    "FrameError",
    "Infer",
    "Inspect",
    "Inspected",
    "Keep",
    "Kept",
    "Load",
    "Loaded",
    "MemberAnswer",
    "Message",
    "Ping",
    "Pong",
    "RowError",
    "Train",
    "Trained",
    "Unload",
    "decode",
    "encode",
    "frame_length",
]

MAX_FRAME_BYTES = 1 << 30
_PREFIX = struct.Struct("<II")
PREFIX_BYTES = _PREFIX.size


class FrameError(ValueError):
    """The bytes are not a message of the protocol; the connection is of no further use."""


@dataclass(slots=True)
class Message:
    """Base of all messages."""

    kind: ClassVar[str] = ""
    id: int


@dataclass(slots=True)
class Load(Message):
    """Make the model version stored in `directory` resident under `model` (its key on this worker)."""

    kind: ClassVar[str] = "load"
    model: str
    directory: str


@dataclass(slots=True)
class Unload(Message):
    """Drop `model` from the device; batches under way finish first."""

    kind: ClassVar[str] = "unload"
    model: str


@dataclass(slots=True)
class Infer(Message):
    """Run `rows` (one input column) through every model of `models`; all must be resident.

    `form` says what a row is: "path" (UTF-8 path under the media roots), "image" (encoded image bytes),
    "text" (UTF-8), "tensor" (raw float32 of the model's input shape, one row each).
    """

    kind: ClassVar[str] = "infer"
    models: list[str]
    form: str
    rows: list[bytes]
    scores: bool = False  # whether each member's score vectors are wanted


@dataclass(slots=True)
class Cancel(Message):
    """Forget the Infer of id `target` if it has not started its forward pass; stop a Train."""

    kind: ClassVar[str] = "cancel"
    target: int


@dataclass(slots=True)
class Ping(Message):
    """Ask for a sign of life."""

    kind: ClassVar[str] = "ping"


@dataclass(slots=True)
class RowError:
    """The input at `index` of the batch is at fault; `code` is a wire code of `ml_udf.errors`."""

    index: int
    code: str
    message: str


@dataclass(slots=True)
class MemberAnswer:
    """One model's answers, one per row; rows with an error hold label "" and confidence 0.

    labels: n strings · confidences: n floats in [0, 1] · scores: n·classes float32, row-major, raw
    (empty unless asked for).
    """

    model: str
    labels: list[str]
    confidences: list[float]
    scores: bytes = b""


@dataclass(slots=True)
class Answer(Message):
    """The batch's answers, by member in the order asked, and its rows' errors."""

    kind: ClassVar[str] = "answer"
    members: list[MemberAnswer]
    errors: list[RowError]
    decode_s: float = 0.0  # from receipt to the last row decoded
    forward_s: float = 0.0  # all members' forward passes


@dataclass(slots=True)
class Loaded(Message):
    """The model is resident and warm; the models `evicted` had to leave for it."""

    kind: ClassVar[str] = "loaded"
    resident_bytes: int
    load_s: float
    evicted: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Done(Message):
    """The request was carried out."""

    kind: ClassVar[str] = "done"


@dataclass(slots=True)
class Pong(Message):
    """The worker lives; what it runs on."""

    kind: ClassVar[str] = "pong"
    device: str  # "cuda:0", "cpu"
    device_name: str
    capacity_bytes: int
    resident: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Failed(Message):
    """The request as a whole failed; `code` is a wire code of `ml_udf.errors`."""

    kind: ClassVar[str] = "failed"
    code: str
    message: str


@dataclass(slots=True)
class Inspect(Message):
    """Read and decode the images at `rows` (UTF-8 paths under the media roots), as a training would."""

    kind: ClassVar[str] = "inspect"
    rows: list[bytes]


@dataclass(slots=True)
class Inspected(Message):
    """SHA-256 of every row's file, in hexadecimal; "" for the rows that have an error."""

    kind: ClassVar[str] = "inspected"
    digests: list[str]
    errors: list[dict[str, Any]]  # fields of RowError


@dataclass(slots=True)
class Train(Message):
    """Run one epoch of `trial`: the one after `start_epoch` begins it, a later one finds it on the worker.

    spec: fields of `gpu_worker.train.TrainSpec` by name. snapshot: Parquet file with the columns input,
    target, split. start: checkpoint file whose tensors of the same name and shape the trial begins with, or
    "". With a `start_epoch` above 0 it is the trial's own, with its optimiser's state.
    """

    kind: ClassVar[str] = "train"
    trial: str
    spec: dict[str, Any]
    snapshot: str
    classes: list[str]
    start: str
    start_epoch: int
    epoch: int  # start_epoch + 1 for the first


@dataclass(slots=True)
class Trained(Message):
    """The epoch is over; `score` is the accuracy on the validation rows."""

    kind: ClassVar[str] = "trained"
    epoch: int
    loss: float
    score: float
    took_s: float
    skipped: int = 0  # rows that could no longer be read or decoded


@dataclass(slots=True)
class Keep(Message):
    """Store weights of `trial` in `directory`, under their own SHA-256.

    best: those of its best epoch on this worker, else those of now. paused: with the optimiser's state
    beside them, so that the trial can go on.
    """

    kind: ClassVar[str] = "keep"
    trial: str
    directory: str
    best: bool = False
    paused: bool = False


@dataclass(slots=True)
class Kept(Message):
    """The file is `directory`/`checkpoint`.safetensors, flushed to the disk."""

    kind: ClassVar[str] = "kept"
    checkpoint: str
    nbytes: int


@dataclass(slots=True)
class Drop(Message):
    """Forget `trial`."""

    kind: ClassVar[str] = "drop"
    trial: str


@dataclass(slots=True)
class Evaluate(Message):
    """Run the checkpoint file `start` on the rows of `split`; the other fields are those of Train."""

    kind: ClassVar[str] = "evaluate"
    spec: dict[str, Any]
    snapshot: str
    classes: list[str]
    start: str
    split: str


@dataclass(slots=True)
class Evaluated(Message):
    """probabilities: float32 [n, classes]; labels: n indices into the classes; in the snapshot's order."""

    kind: ClassVar[str] = "evaluated"
    probabilities: list[bytes]  # one row's vector each
    labels: list[int]
    row_s: float  # time of a forward pass, per row


_KINDS: dict[str, type[Message]] = {cls.kind: cls for cls in Message.__subclasses__()}
_COLUMN: dict[type[Message], str] = {Infer: "rows", Inspect: "rows", Evaluated: "probabilities"}


def encode(message: Message) -> bytes:
    """The frame of a message."""
    head: dict[str, Any] = {"kind": message.kind}
    blobs: list[bytes] = []
    for item in fields(message):
        value = getattr(message, item.name)
        if item.name == _COLUMN.get(type(message)):
            head[item.name] = len(value)
            blobs.extend(_columns(value))
        elif isinstance(message, Answer) and item.name == "members":
            head["members"] = [
                {"model": m.model, "labels": m.labels, "confidences": m.confidences, "scores": len(m.scores)}
                for m in message.members
            ]
            blobs.extend(m.scores for m in message.members)
        elif isinstance(message, Answer) and item.name == "errors":
            head["errors"] = [asdict(error) for error in message.errors]
        else:
            head[item.name] = value
    text = json.dumps(head, separators=(",", ":")).encode()
    total = PREFIX_BYTES + len(text) + sum(map(len, blobs))
    if total > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {total} bytes is over the limit of {MAX_FRAME_BYTES}")
    return b"".join([_PREFIX.pack(total, len(text)), text, *blobs])


def frame_length(prefix: bytes | bytearray) -> int:
    """Bytes of the frame that starts with `prefix` (`PREFIX_BYTES` of it). Raises `FrameError`."""
    total, head = _PREFIX.unpack(prefix)
    if not PREFIX_BYTES + head <= total <= MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {total} bytes with a header of {head} cannot be")
    return int(total)


def decode(frame: bytes | bytearray) -> Message:
    """The message of one whole frame. Raises `FrameError`."""
    if len(frame) < PREFIX_BYTES:
        raise FrameError(f"a frame of {len(frame)} bytes has no prefix")
    total, head_bytes = _PREFIX.unpack_from(frame)
    if total != len(frame):
        raise FrameError(f"a frame of {len(frame)} bytes says that it has {total}")
    try:
        head = json.loads(frame[PREFIX_BYTES : PREFIX_BYTES + head_bytes])
        cls = _KINDS[head.pop("kind")]
        at = PREFIX_BYTES + head_bytes
        if (column := _COLUMN.get(cls)) is not None:
            head[column] = _rows(frame, at, head[column])
        elif cls is Answer:
            head["members"] = list(_members(frame, at, head["members"]))
            head["errors"] = [RowError(**error) for error in head["errors"]]
        return cls(**head)
    except (ValueError, KeyError, TypeError, struct.error) as exc:
        raise FrameError(f"not a message of the worker protocol: {exc!r}") from exc


def _columns(rows: list[bytes]) -> Iterator[bytes]:
    yield struct.pack(f"<{len(rows)}I", *map(len, rows))
    yield from rows


def _rows(frame: bytes | bytearray, at: int, count: int) -> list[bytes]:
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


def _members(frame: bytes | bytearray, at: int, heads: list[dict[str, Any]]) -> Iterator[MemberAnswer]:
    for head in heads:
        size = head.pop("scores")
        yield MemberAnswer(**head, scores=bytes(frame[at : at + size]))
        at += size
