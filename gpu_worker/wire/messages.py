"""The messages of the worker protocol (`wire.protocol` says which answers which, and how they travel).

Standard library only: the server reads them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gpu_worker.wire.columns import Column

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
]


Row = bytes | memoryview


@dataclass(slots=True)
class Message:
    """Base of all messages."""

    kind: ClassVar[str] = ""
    id: int


@dataclass(slots=True)
class Load(Message):
    """Make the model version stored in `directory` resident under `model` (its key on this worker).

    Nothing leaves for it: where there is no room it is refused, with what it needs.
    """

    kind: ClassVar[str] = "load"
    model: str
    directory: str


@dataclass(slots=True)
class Read(Message):
    """Bring the model version into the host's memory, where that is a tier of its own, and no further.

    So that a later Load of it has only the link to wait for. `Cancel` gives it up.
    """

    kind: ClassVar[str] = "read"
    model: str
    directory: str


@dataclass(slots=True)
class Unload(Message):
    """Drop `model` from the device; batches under way finish first."""

    kind: ClassVar[str] = "unload"
    model: str


@dataclass(slots=True)
class AskStep:
    """Which model rows are asked of next that `answered` have answered: a bit mask, by place in the batch.

    How sure they are of a row: the largest of softmax(Σ weight · log max(p, 1e-4)), p what each says of its
    classes; weights: by place, 0 for one that has not answered. edges: where bins of that end, ascending;
    next: by bin, the place of the model to ask, −1 where it is enough. Of the rows that nobody has answered
    there is one bin.
    """

    answered: int
    weights: list[float]
    edges: list[float]
    next: list[int]


@dataclass(slots=True)
class BatchPart:
    """Of a batch of several parts: so many rows, of which one model is asked alone.

    task, outputs: as in `Infer`.
    """

    rows: int
    outputs: list[str] = field(default_factory=list)
    task: str = ""


@dataclass(slots=True)
class WantPiece(Message):
    """Asked by a worker that does not see the server's files, under an id of its own, below 0.

    At most `nbytes` from byte `at` on of `file`, of the model that the message `target` names; with
    `beside`, "NAME/VERSION", of another that lies beside it. Of a message of training `file` may also be a
    path that it names. nbytes: 0 = the file's hash is asked for, and nothing of it.
    is_picture: `file` is the path that a row of that message has, or of its snapshot, below the media roots.
    known: the hash of what the worker has of it; then none of it is sent again.
    """

    kind: ClassVar[str] = "want_piece"
    target: int
    file: str
    at: int
    nbytes: int
    beside: str = ""
    is_picture: bool = False
    known: str = ""


@dataclass(slots=True)
class FilePiece(Message):
    """What a `WantPiece` asked for: one byte string, less of it at the file's end, and the size of the file.

    error: why it cannot be had; "" where it can. sha256: of the whole file, where that was asked for, and
    with a picture's first piece; size −1 where there is none. code: of a row's error, where that is at fault.
    """

    kind: ClassVar[str] = "file_piece"
    data: list[bytes]
    size: int
    error: str = ""
    sha256: str = ""
    code: str = ""


@dataclass(slots=True)
class GivePiece(Message):
    """Given by a worker that does not see the server's files, under an id of its own, below 0.

    The bytes from `at` on of `file`, which the message `target` has it store. size, sha256: of the whole
    file. Its pieces come in order, each after the answer to the one before; the last makes it whole.
    """

    kind: ClassVar[str] = "give_piece"
    data: list[bytes]
    target: int
    file: str
    at: int
    size: int
    sha256: str


@dataclass(slots=True)
class PieceTaken(Message):
    """A `GivePiece` is stored, and with the last one the file. error: why it is not; code: of that error."""

    kind: ClassVar[str] = "piece_taken"
    error: str = ""
    code: str = ""


@dataclass(slots=True)
class Infer(Message):
    """Run `rows` (one input column) through every model of `models`; all must be resident.

    `form` says what a row is: "path" (UTF-8 path under the media roots), "image" (encoded image bytes),
    "text" (UTF-8), "tensor" (raw float32 of the model's input shape, one row each).
    `task` is what is asked of the models, "" for what each was made for; `outputs` name the columns of its
    answer that are wanted, none for those that an answer has by default (`gpu_worker.tasks`).
    `steps`: by which rows are asked of one model after the other; none = every row is asked of every model.
    patience_s: after which nobody wants the answer any more; 0 = not known.
    rows: to a worker they may be views (each is a `Row`) of memory that it shares with the server, which is
    the server's again once it has the reply.
    narrowed: from a row on, the folders below which paths must lie beside `media_roots`; None for none.
    parts: of each model, in their order, the rows that it alone is asked of, one part after the other; its
    `MemberAnswer` has these alone. None = every model is asked of every row. With parts there are no `steps`,
    and `task` and `outputs` are theirs.
    """

    kind: ClassVar[str] = "infer"
    models: list[str]
    form: str
    rows: list[bytes]
    outputs: list[str] = field(default_factory=list)
    media_roots: list[str] | None = None  # folders, beside the worker's own, below which paths must lie
    task: str = ""
    steps: list[AskStep] = field(default_factory=list)
    patience_s: float = 0.0
    narrowed: Sequence[tuple[int, Sequence[str] | None]] = field(default_factory=list)
    parts: list[BatchPart] = field(default_factory=list)


@dataclass(slots=True)
class Crop(Message):
    """Cut `boxes` out of the pictures at `rows`: of each row a list of [x0, y0, x1, y1], in pixels of the
    picture, upright.

    margin: by what part of its width and height a box grows to each side first; it never leaves its picture.
    `form` ("path" or "image"), `media_roots`, `narrowed` and `patience_s` are those of `Infer`.
    """

    kind: ClassVar[str] = "crop"
    rows: list[bytes]
    form: str
    boxes: list[list[list[float]]]
    margin: float = 0.0
    media_roots: list[str] | None = None
    narrowed: Sequence[tuple[int, Sequence[str] | None]] = field(default_factory=list)
    patience_s: float = 0.0


@dataclass(slots=True)
class Cropped(Message):
    """The pieces as PNG, row after row, each row's in the order of its boxes; of a row at fault none.

    later: rows whose pieces found no room beside the others, to be asked for again; never all of them.
    """

    kind: ClassVar[str] = "cropped"
    crops: list[bytes]
    counts: list[int]  # by row
    errors: list[dict[str, Any]]  # fields of RowError
    work_s: float = 0.0
    later: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Cancel(Message):
    """Stop the Infer, the Crop, the Load, the Read or the TrainEpoch of id `target`; it has no reply of its
    own.

    What it stops is answered as ever, once it is over: `Failed("cancelled")`, or what it was if that came
    first. A Load is over within 50 ms, and nothing of it is on the device then; but a pass of its warm-up may
    still run, and a later load that needs its room waits for it.
    """

    kind: ClassVar[str] = "cancel"
    target: int


@dataclass(slots=True)
class Ping(Message):
    """Ask for a sign of life."""

    kind: ClassVar[str] = "ping"


@dataclass(slots=True)
class ListResidents(Message):
    """Ask which models are where on the worker; answered at once, beside whatever is under way."""

    kind: ClassVar[str] = "list_residents"


@dataclass(slots=True)
class ResidentsListed(Message):
    """What the worker holds at this moment.

    device: key → bytes, of what may be asked of it. host: the same, of what lies ready in the host's memory.
    loading: keys that are on their way.
    """

    kind: ClassVar[str] = "residents_listed"
    device: dict[str, int]
    host: dict[str, int] = field(default_factory=dict)
    loading: list[str] = field(default_factory=list)


@dataclass(slots=True)
class RowError:
    """The input at `index` of the batch is at fault; `code` is a wire code of `ml_udf.errors`."""

    index: int
    code: str
    message: str


@dataclass(slots=True)
class MemberAnswer:
    """One model's answers as columns of one row per row asked; rows with an error hold "" or 0."""

    model: str
    columns: list[Column]

    def __getitem__(self, name: str) -> Column:
        """The column of that name. Raises KeyError."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)


@dataclass(slots=True)
class Answer(Message):
    """The batch's answers, by member in the order asked, and its rows' errors."""

    kind: ClassVar[str] = "answer"
    members: list[MemberAnswer]
    errors: list[RowError]
    decode_s: float = 0.0  # from receipt to the last row decoded
    forward_s: float = 0.0  # all members' forward passes
    work_s: float = 0.0  # of the worker's time, its own: what batches beside it took is left out
    stay_s: float = 0.0  # from receipt to this answer
    # by member, of work_s: its own passes; and what they need and others may share, such as the decoding
    members_s: list[list[float]] = field(default_factory=list)
    # by row, which members answered it (a bit mask, by place); none: every row was asked of all
    answered: list[int] = field(default_factory=list)
    spared_rows: int = 0  # decoded, or passed by a backbone, before: they count in work_s as if not


@dataclass(slots=True)
class Loaded(Message):
    """The model is resident and warm.

    features: numbers that it can give for a row beside its classes; 0 where it cannot. load_s: from receipt.
    read_s, prepare_s, copy_s, make_s, warm_up_s: what it went into (`gpu_worker.tiers.loads.LoadTimes`): from
    the disk; hashing, folding and laying out, once; over the link; the network; its first passes. What is
    left of load_s was spent waiting for other loads. again_s: what loading it again here should take, where
    what was done once is done; 0 = not known.
    precision: in which it computes, with what was measured beside float32; "" where nothing was to choose.
    fetch_s: of load_s, what a worker took that does not see the server's files, to have them on its own disk.
    """

    kind: ClassVar[str] = "loaded"
    resident_bytes: int
    load_s: float
    features: int = 0
    read_s: float = 0.0
    prepare_s: float = 0.0
    copy_s: float = 0.0
    make_s: float = 0.0
    warm_up_s: float = 0.0
    again_s: float = 0.0
    precision: str = ""
    fetch_s: float = 0.0


@dataclass(slots=True)
class Done(Message):
    """The request was carried out."""

    kind: ClassVar[str] = "done"


@dataclass(slots=True)
class Pong(Message):
    """The worker lives; what it runs on.

    resident: the models that may be asked. loading: those on their way. used_bytes: what these take of
    capacity_bytes, with those that leave.
    """

    kind: ClassVar[str] = "pong"
    device: str  # "cuda:0", "cpu", "sim:2GiB,2.5"
    device_name: str
    capacity_bytes: int
    resident: list[str] = field(default_factory=list)
    loading: list[str] = field(default_factory=list)
    used_bytes: int = 0


@dataclass(slots=True)
class Failed(Message):
    """The request as a whole failed; `code` is a wire code of `ml_udf.errors`.

    Of an Infer: nothing of it is in the worker any more, and work_s and stay_s are as in `Answer`.
    Of a Load: wanted_bytes is what the model needs, where that is known by now and there was no room for it.
    Of an Infer: above 0 where the device had no memory for its pass; with one model less there, it may.
    missing: of the models that it asked, those that are not resident.
    """

    kind: ClassVar[str] = "failed"
    code: str
    message: str
    work_s: float = 0.0
    stay_s: float = 0.0
    wanted_bytes: int = 0
    missing: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Inspect(Message):
    """Read and decode the images at `rows` (UTF-8 paths under the media roots), as a training would.

    media_roots: as those of `Infer`.
    """

    kind: ClassVar[str] = "inspect"
    rows: list[bytes]
    media_roots: list[str] | None = None


@dataclass(slots=True)
class Inspected(Message):
    """SHA-256 of every row's file, in hexadecimal; "" for the rows that have an error. sizes: [width, height]
    of every picture, the right way up; [0, 0] for those rows.
    """

    kind: ClassVar[str] = "inspected"
    digests: list[str]
    errors: list[dict[str, Any]]  # fields of RowError
    sizes: list[list[int]] = field(default_factory=list)


@dataclass(slots=True)
class TrainEpoch(Message):
    """Run one epoch of `trial`: the one after `start_epoch` begins it, a later one finds it on the worker.

    spec: fields of `gpu_worker.train.TrainSpec` by name. snapshot: Parquet file with the columns input,
    target, split. start: checkpoint file whose tensors of the same name and shape the trial begins with, or
    "". With a `start_epoch` above 0 it is the trial's own, with its optimiser's state. task: by name. metric:
    of the score; "" = the task's first. class_weight: `none`, or `balanced`, by which rare classes weigh as
    much as frequent ones. refits: the validation rows are taught as well, so that the score is of known rows.
    """

    kind: ClassVar[str] = "train_epoch"
    trial: str
    spec: dict[str, Any]
    snapshot: str
    classes: list[str]
    start: str
    start_epoch: int
    epoch: int  # start_epoch + 1 for the first
    task: str = ""
    metric: str = ""
    class_weight: str = "none"
    refits: bool = False


@dataclass(slots=True)
class EpochTrained(Message):
    """The epoch is over. loss: on the training rows. score: of the validation rows, by `metric`; score_loss:
    the mean loss of the same rows, where it was asked after. converged: further epochs would bring the same.
    """

    kind: ClassVar[str] = "epoch_trained"
    epoch: int
    loss: float
    score: float
    took_s: float
    skipped: int = 0  # rows that could no longer be read or decoded
    metric: str = "accuracy"
    score_loss: float | None = None
    converged: bool = False


@dataclass(slots=True)
class StoreCheckpoint(Message):
    """Store weights of `trial` in `directory`, under their own SHA-256.

    best: those of its best epoch on this worker, else those of now. paused: with the optimiser's state
    beside them, so that the trial can go on.
    """

    kind: ClassVar[str] = "store_checkpoint"
    trial: str
    directory: str
    best: bool = False
    paused: bool = False


@dataclass(slots=True)
class CheckpointStored(Message):
    """The file is `directory`/`checkpoint`.safetensors, flushed to the disk."""

    kind: ClassVar[str] = "checkpoint_stored"
    checkpoint: str
    nbytes: int


@dataclass(slots=True)
class ForgetTrial(Message):
    """Forget `trial`."""

    kind: ClassVar[str] = "forget_trial"
    trial: str


@dataclass(slots=True)
class ProbeTraining(Message):
    """Ask how far the training process is; it answers in the middle of an epoch too."""

    kind: ClassVar[str] = "probe_training"


@dataclass(slots=True)
class TrainingProbed(Message):
    """steps: that the training process has done since it began, whatever for; it works while they rise. Below
    0 while files are on their way that it does not see: pieces, which become more. on: the id of the message
    that it is on; 0 = none.
    """

    kind: ClassVar[str] = "training_probed"
    steps: int
    on: int = 0


@dataclass(slots=True)
class EndTraining(Message):
    """End the training process, which hangs: what it was doing fails as `worker_lost`. Serving goes on."""

    kind: ClassVar[str] = "end_training"


@dataclass(slots=True)
class Evaluate(Message):
    """Run the checkpoint file `start` on the rows of `split`; the other fields are those of TrainEpoch."""

    kind: ClassVar[str] = "evaluate"
    spec: dict[str, Any]
    snapshot: str
    classes: list[str]
    start: str
    split: str
    task: str = ""


@dataclass(slots=True)
class Evaluated(Message):
    """What the network gives, float32 [n, width], and what was to be said, in the snapshot's order.

    targets: of each row an index into the classes (−1 = none of them), the list of the indices of its labels,
    a number, or its boxes: x0, y0, x1, y1 in pixels of the network's input, index into the classes.
    """

    kind: ClassVar[str] = "evaluated"
    predictions: list[bytes]  # one row's vector each
    targets: list[Any]
    row_s: float  # time of a forward pass, per row


@dataclass(slots=True)
class MakeVariant(Message):
    """Make another way to run the model stored in `directory`: a folder `target`, as the model `name`.

    recipe: as `gpu_worker.variants.making` has it. snapshot: Parquet file with the columns input, target,
    split, whose training rows calibrate int8, and by whose rows of `split` it is judged; "" = none is given.
    """

    kind: ClassVar[str] = "make_variant"
    directory: str
    target: str
    name: str
    recipe: str
    threads: int = 1
    snapshot: str = ""
    split: str = ""
    calibration_rows: int = 0
    held_out_rows: int = 0


@dataclass(slots=True)
class VariantMade(Message):
    """It lies in its folder, whole.

    right, original_right: of each held-out row 1 or 0, whether it and its original name the row's class; −1
    of a row that can no longer be read. agreed: of how many both name the same. difference: of an export,
    the largest between its numbers and the original's; None where nothing was exported. calibrated: rows.
    """

    kind: ClassVar[str] = "variant_made"
    runtime: str
    precision: str
    nbytes: int
    took_s: float
    right: list[int] = field(default_factory=list)
    original_right: list[int] = field(default_factory=list)
    agreed: int = 0
    difference: float | None = None
    calibrated: int = 0
