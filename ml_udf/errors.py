"""Every error that ml_udf raises, and what each means to a database.

    MlUdfError
    ├── ServerUnreachable        08001  nothing answers at the endpoint
    ├── TlsFailed                08001  the two sides do not trust each other, or one speaks plain text
    ├── ConnectionLost           08006  the connection broke, or answers are not protocol
    ├── Unauthorized             28000  the token is missing or wrong
    ├── Forbidden                28000  the token is known, and may not do that
    ├── UnknownFunction          42704  no such function or model on the server
    ├── VersionGone              42704  the version that this statement began with is gone
    ├── BadOption                22023  an option or a request that the server cannot accept
    ├── Overloaded               53400  the queue is full; retry after a while
    │   ├── QuotaExceeded        53400  the token has all that it may have at a time
    │   └── BulkHeld             53400  the bulk job is paused, or has had its rows of this second
    ├── NoSpace                  53100  the server's disk is full; nothing was changed
    ├── RemoteUnavailable        58030  a model behind another server cannot be asked
    ├── DeadlineExceeded         57014  the answer cannot come, or did not come, in time
    ├── Cancelled                57014  the statement was cancelled
    ├── UnknownTable             42P01  no such table or view
    ├── UnknownColumn            42703  no such column
    ├── WrongType                42804  a column cannot hold what it should
    ├── NoKey                    42P10  nothing tells the rows of a table apart
    ├── AlreadyRunning           55P03  another run scores into the same place
    ├── InsideTransaction        25001  it commits, and so cannot be part of a transaction
    ├── ReadOnly                 25006  a standby, or a transaction that may not write
    ├── ServerFault              58000  the server failed inside
    │   └── WorkerLost           58000  the worker died twice under these rows
    └── InputError                      one row's input is at fault
        ├── InputNotFound        58P01  the file does not exist
        ├── InputForbidden       42501  the path is outside the media roots
        ├── InputUndecodable     22P03  the bytes are not an image of a known format
        ├── InputTooLarge        54000  more bytes or pixels than the limit
        ├── InputInvalid         22P02  the value is not of the function's input type
        ├── RemoteInvalid        22000  what a model behind another server said of the row cannot be used
        ├── UnknownLabel         22023  a label is none of the function's classes
        └── NoConfidentAnswer    P0002  no answer above the function's confidence threshold

Each class knows its `code` (the word on the wire), its SQLSTATE, whether trying again helps, and its usual
hint: what to do, in words that hold on every engine, where whoever raises it knows nothing better to say.
"""

from __future__ import annotations

__all__ = [
    "SKIPS_ROWS",
    "AlreadyRunning",
    "BadOption",
    "BulkHeld",
    "Cancelled",
    "ConnectionLost",
    "DeadlineExceeded",
    "Forbidden",
    "InputError",
    "InputForbidden",
    "InputInvalid",
    "InputNotFound",
    "InputTooLarge",
    "InputUndecodable",
    "InsideTransaction",
    "MlUdfError",
    "NoConfidentAnswer",
    "NoKey",
    "NoSpace",
    "Overloaded",
    "QuotaExceeded",
    "ReadOnly",
    "RemoteInvalid",
    "RemoteUnavailable",
    "ServerFault",
    "ServerUnreachable",
    "TlsFailed",
    "Unauthorized",
    "UnknownColumn",
    "UnknownFunction",
    "UnknownLabel",
    "UnknownTable",
    "VersionGone",
    "WorkerLost",
    "WrongType",
    "error_classes",
    "error_from_code",
]

SKIPS_ROWS = "ml_udf.on_error = 'null' (ml_udf_on_error in DuckDB)"
"""What one says in SQL so that rows at fault are NULL; a command has an option of that name."""


class MlUdfError(Exception):
    """Base of all. `message` says what happened to what; `hint` says what to do."""

    code = "internal"
    sqlstate = "58000"
    retryable = False
    usual_hint = "the inference server's log says why"

    def __init__(self, message: str, *, hint: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.usual_hint
        self.detail = detail

    def report(self) -> str:
        """Everything in one text, for databases that keep an exception's text and drop the rest."""
        parts = [f"{self.message} [{self.sqlstate} {self.code}]"]
        parts += [f"DETAIL: {self.detail}"] if self.detail else []
        parts += [f"HINT: {self.hint}"] if self.hint else []
        return "\n".join(parts)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows in place of all frames: IPython asks for it by this name."""
        hint = [f"HINT: {self.hint}"] if self.hint else []
        return [f"{type(self).__name__}: {self.message}", *hint]


class ServerUnreachable(MlUdfError):
    """Nothing answers at the endpoint; the rows were not computed, a retry is safe."""

    code = "unreachable"
    sqlstate = "08001"
    retryable = True
    usual_hint = "start the server (ml-udf serve) or check the url; ml-udf doctor tests each link"


class TlsFailed(MlUdfError):
    """No TLS: one side's certificate is not trusted by the other, or one side speaks plain text."""

    code = "tls_failed"
    sqlstate = "08001"
    usual_hint = "the message says which side's certificate is at fault; docs/tls.md has the whole set-up"


class ConnectionLost(MlUdfError):
    """The connection broke in the middle, or the other side does not speak the protocol."""

    code = "connection_lost"
    sqlstate = "08006"
    retryable = True
    usual_hint = "run the statement again; the inference server's log says what broke"


class Unauthorized(MlUdfError):
    """The server wants a token, and the one sent is missing or wrong."""

    code = "unauthorized"
    sqlstate = "28000"
    usual_hint = (
        "give the token: CREATE USER MAPPING … OPTIONS (token '…') in "
        "PostgreSQL, register(…, token='…') in DuckDB, --token-file FILE on a command line"
    )


class Forbidden(MlUdfError):
    """The server knows the token, and it may not do that; or the server has none, and this is a web page."""

    code = "forbidden"
    sqlstate = "28000"
    usual_hint = "ask with a token that may (the one of --token-file may do everything)"


class UnknownFunction(MlUdfError):
    """The server knows no function or model of this name."""

    code = "unknown_function"
    sqlstate = "42704"
    usual_hint = (
        "SELECT name FROM ml_udf.functions lists those there are; so do ml_udf.models, datasets and jobs"
    )


class VersionGone(MlUdfError):
    """The version with which the statement began is no longer served; run the statement again."""

    code = "version_gone"
    sqlstate = "42704"
    usual_hint = "run the statement again: it begins with the version of now"


class BadOption(MlUdfError):
    """An option has a value that cannot be used, or the request is malformed."""

    code = "bad_option"
    sqlstate = "22023"
    usual_hint = "the message names what cannot be used; docs/ and --help list the options and their bounds"


class Overloaded(MlUdfError):
    """The queue is full. `retry_after_s` is the server's own estimate."""

    code = "overloaded"
    sqlstate = "53400"
    retryable = True
    usual_hint = "wait longer (ml_udf.timeout_ms; ml_udf_timeout_ms in DuckDB), or add workers to the server"

    def __init__(
        self, message: str, *, hint: str = "", detail: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, hint=hint, detail=detail)
        self.retry_after_s = retry_after_s


class QuotaExceeded(Overloaded):
    """The token has all the rows, a second or waiting, that it may have; they are asked again in time."""

    code = "quota_exceeded"
    usual_hint = "wait longer, send fewer rows at a time, or have the token's caps raised (ml-udf token)"


class BulkHeld(Overloaded):
    """The bulk job that the rows are a part of is paused or capped; SQL waits until it goes on."""

    code = "bulk_held"
    usual_hint = (
        "ml_udf.resume_bulk(id) lets it go on, ml_udf.cap_bulk(id, NULL) takes its cap away; "
        "ml_udf.bulk_jobs lists what there is"
    )


class NoSpace(MlUdfError):
    """The disk of the server's home folder or registry is full; nothing was changed."""

    code = "no_space"
    sqlstate = "53100"
    usual_hint = "free some space on the server's disk, and try again"


class RemoteUnavailable(MlUdfError):
    """A model behind another server cannot be asked: nothing listens there, it is too busy, or it refuses."""

    code = "remote_unavailable"
    sqlstate = "58030"
    usual_hint = (
        "start or mend what the message names and run the statement again: it is looked for all the time; "
        "SELECT * FROM ml_udf.models says which models are there"
    )


class DeadlineExceeded(MlUdfError):
    """The deadline has passed, or the server predicts that it cannot be met."""

    code = "deadline_exceeded"
    sqlstate = "57014"
    usual_hint = "raise ml_udf.timeout_ms (ml_udf_timeout_ms in DuckDB) or statement_timeout, or add workers"


class Cancelled(MlUdfError):
    """The caller cancelled; the server drops the rows."""

    code = "cancelled"
    sqlstate = "57014"
    usual_hint = "run the statement again if that was not meant"


class UnknownTable(MlUdfError):
    """There is no table or view of this name that the caller can see."""

    code = "unknown_table"
    sqlstate = "42P01"
    usual_hint = "write its schema too, or mend the name"


class UnknownColumn(MlUdfError):
    """The table has no column of this name; the hint says how to add it, or which there are."""

    code = "unknown_column"
    sqlstate = "42703"
    usual_hint = "mend the name, or ALTER TABLE … ADD COLUMN"


class WrongType(MlUdfError):
    """A column's type does not fit: the function does not take it, or the answers are no values of it."""

    code = "wrong_type"
    sqlstate = "42804"
    usual_hint = "name another column, or change its type with ALTER TABLE"


class NoKey(MlUdfError):
    """Nothing tells the rows of the table apart, so no row can be said to be done."""

    code = "no_key"
    sqlstate = "42P10"
    usual_hint = "give the table a primary key, or name the columns that tell its rows apart"


class AlreadyRunning(MlUdfError):
    """Another run scores into the same place; wait for it, or end it."""

    code = "already_running"
    sqlstate = "55P03"
    usual_hint = "wait for the other run, or end it"


class InsideTransaction(MlUdfError):
    """What commits as it goes was called inside a transaction; call it by itself."""

    code = "inside_transaction"
    sqlstate = "25001"
    usual_hint = "call it by itself, in autocommit, outside BEGIN"


class ReadOnly(MlUdfError):
    """What would be stored cannot be: this is a standby, or a transaction that may not write."""

    code = "read_only"
    sqlstate = "25006"
    usual_hint = "connect to the primary; target_session_attrs=read-write finds it among several hosts"


class ServerFault(MlUdfError):
    """The server failed inside; its log holds the cause."""

    code = "internal"
    sqlstate = "58000"


class WorkerLost(ServerFault):
    """The inference worker died under these rows, was restarted, and died under them again."""

    code = "worker_lost"
    usual_hint = (
        "its input may be what the worker died of: ask for the rows one by one, and see the server's log"
    )


class InputError(MlUdfError):
    """One row's input is at fault; other rows are not concerned."""

    code = "input_error"
    sqlstate = "22000"
    usual_hint = f"{SKIPS_ROWS} makes such rows NULL"


class InputNotFound(InputError):
    """The file does not exist on the inference host."""

    code = "input_not_found"
    sqlstate = "58P01"
    usual_hint = (
        "the path is one of the inference server's host, a relative one below its media roots (ml-udf serve "
        f"--media-root); {SKIPS_ROWS} skips such rows"
    )


class InputForbidden(InputError):
    """The path, symlinks resolved, lies outside the media roots."""

    code = "input_forbidden"
    sqlstate = "42501"
    usual_hint = "the server reads files below its media roots alone (ml-udf serve --media-root)"


class InputUndecodable(InputError):
    """The bytes are not an image that can be decoded."""

    code = "input_undecodable"
    sqlstate = "22P03"
    usual_hint = (
        "give a JPEG or PNG that is whole (its bytes, not its path, where the function takes bytes: "
        f"docs/using.md); {SKIPS_ROWS} skips such rows"
    )


class InputTooLarge(InputError):
    """The value has more bytes, or the image more pixels, than the limit."""

    code = "input_too_large"
    sqlstate = "54000"
    usual_hint = "make it smaller, or raise the server's limit (ml-udf serve --help)"


class InputInvalid(InputError):
    """The value is not of the function's input type (an empty path, bytes that are not UTF-8, …)."""

    code = "input_invalid"
    sqlstate = "22P02"
    usual_hint = f"give a value of the function's input type; {SKIPS_ROWS} skips such rows"


class RemoteInvalid(InputError):
    """What a model behind another server answered for the row cannot be used: no schema kept, no number."""

    code = "remote_invalid"
    sqlstate = "22000"
    usual_hint = (
        "the message says what was wrong with the answer: mend the model there, its prompt or its schema; "
        f"{SKIPS_ROWS} skips such rows"
    )


class UnknownLabel(InputError):
    """A row's label is none of the function's classes: of feedback, or whose probability is asked for."""

    code = "unknown_label"
    sqlstate = "22023"
    usual_hint = (
        "give one of the function's classes, or NULL where the label is not known; ml_udf.on_error = "
        "'null' (ml_udf_on_error in DuckDB) skips such rows"
    )


class UnknownPrediction(InputError):
    """Feedback names a prediction that is none of the function's, or one of a deployment that has gone."""

    code = "unknown_prediction"
    sqlstate = "22023"
    usual_hint = "give the input and its label instead: ml_udf.feedback(function, input, label)"


class NoConfidentAnswer(InputError):
    """No answer reached the function's confidence threshold, and it has no default answer."""

    code = "no_confident_answer"
    sqlstate = "P0002"
    usual_hint = "give the function a default answer, or lower its min_confidence"


def _tree(root: type[MlUdfError]) -> tuple[type[MlUdfError], ...]:
    return (root, *(leaf for child in root.__subclasses__() for leaf in _tree(child)))


_CLASSES = _tree(MlUdfError)
# ServerFault shares "internal" with the base; the later, more specific class wins.
_BY_CODE: dict[str, type[MlUdfError]] = {cls.code: cls for cls in _CLASSES}


def error_classes() -> tuple[type[MlUdfError], ...]:
    """All classes of this module, bases before what is derived from them."""
    return _CLASSES


def error_from_code(code: str, message: str, *, hint: str = "", detail: str = "") -> MlUdfError:
    """The error that a wire code stands for; an unknown code becomes `ServerFault`."""
    return _BY_CODE.get(code, ServerFault)(message, hint=hint, detail=detail)
