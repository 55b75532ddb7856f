"""Everything the worker expects to go wrong, by who gets the error.

    WorkerError                          a request as a whole fails; becomes Failed(code, message)
    ├── BadRequest       bad_option        the request cannot be carried out as it stands
    ├── ModelUnusable    bad_option        a model's folder, manifest or weights are at fault
    ├── UnknownModel     unknown_function  the model is not resident here; load it, ask again
    ├── NoRoom           overloaded        a model does not fit beside others, or too many batches wait
    ├── NoSpace          no_space          a checkpoint finds no space; sent to the server, never on
    └── Cancelled        cancelled         the caller took the request back
    RowFault                             one row's input is at fault; becomes RowError(index, code, message)
    DeviceLost                           the device is of no further use: the process must end

Codes are wire codes of `ml_udf.errors`. Any other exception is a bug, or the machine's fault: it becomes
Failed("internal") and its traceback goes to the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

__all__ = [
    "BadRequest",
    "Cancelled",
    "DeviceLost",
    "ModelUnusable",
    "NoRoom",
    "NoSpace",
    "RowFault",
    "UnknownModel",
    "WorkerError",
]


class WorkerError(Exception):
    """Base of the expected failures of a whole request; `code` is its word on the wire.

    wanted_bytes: what a model that found no room needs of the device, once it is known; else 0.
    missing: models that were asked and are not resident.
    """

    code = "internal"

    def __init__(self, message: str, *, wanted_bytes: int = 0, missing: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.wanted_bytes = wanted_bytes
        self.missing = missing


class BadRequest(WorkerError):
    """The request cannot be carried out as it stands: a form the model does not take, no models, …"""

    code = "bad_option"


class ModelUnusable(WorkerError):
    """The model's folder cannot be served: the message names the file and what is wrong with it."""

    code = "bad_option"


class UnknownModel(WorkerError):
    """The model is not resident on this worker (never loaded, unloaded or evicted); load it, ask again."""

    code = "unknown_function"


class NoRoom(WorkerError):
    """The model does not fit beside those that are resident, or too many batches wait; try again later."""

    code = "overloaded"


class NoSpace(WorkerError):
    """The disk is full; the same request succeeds once it is not."""

    code = "no_space"


class Cancelled(WorkerError):
    """The caller took the request back before it was done.

    remains: done once nothing is left of it, where that comes later.
    """

    code = "cancelled"
    remains: Future[object] | None = None


class RowFault(Exception):
    """One row's input is at fault: `code` is an `input_…` wire code; the other rows are not concerned."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class DeviceLost(Exception):
    """The accelerator reported an error after which nothing more can run in this process."""
