"""What the server refuses or fails at: a wire code, its HTTP status, a message.

The codes are those of docs/architecture.md; a route raises, and one place turns it into a reply.

    ServiceError             500 internal           a fault of the server itself
    ├── BadOption            400 bad_option         the request or an option cannot be accepted
    │   └── NoMembers                               no members keep the limits of a request
    ├── BadInput             400 input_…            a row is at fault, and no `error` output was asked for
    ├── WrongContentType     415 bad_option         the body is not of a type that the route takes
    ├── Unauthorized         401 unauthorized
    ├── LoginWanted          303 unauthorized       a page is asked for, and nobody is logged in
    ├── Forbidden            403 forbidden          this caller may not do that
    ├── UnknownFunction      404 unknown_function
    ├── VersionGone          410 version_gone
    ├── BodyTooLarge         413 input_too_large    the body as a whole
    ├── Unsupported          501 unsupported
    ├── Overloaded           503 overloaded         with Retry-After
    │   ├── ShuttingDown                            this server takes nothing more; another may
    │   └── QuotaExceeded    429 quota_exceeded     the caller's own cap, with Retry-After
    ├── RemoteUnavailable    503 remote_unavailable  the endpoint of a model elsewhere cannot be asked
    ├── NoSpace              507 no_space           the disk of the home folder or registry is full
    ├── DeadlineExceeded     504 deadline_exceeded
    └── WorkerLost           500 worker_lost        a worker died twice under these rows
"""

from __future__ import annotations

import math

__all__ = [
    "BadInput",
    "BadOption",
    "BodyTooLarge",
    "DeadlineExceeded",
    "Forbidden",
    "LeaseLost",
    "MethodNotAllowed",
    "NoMembers",
    "NoSpace",
    "Overloaded",
    "QuotaExceeded",
    "RemoteUnavailable",
    "ServiceError",
    "ShuttingDown",
    "Unauthorized",
    "UnknownFunction",
    "Unsupported",
    "VersionGone",
    "WorkerLost",
    "WrongContentType",
]


_LONGEST = 2000  # characters of a message: it may repeat what was sent


class ServiceError(Exception):
    """Base of all, and what a fault inside becomes; its cause stands in the log."""

    code = "internal"
    status = 500
    alike_s = 0.0  # for so long a request that differs in its rows alone would be refused as well

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    @property
    def wire_text(self) -> str:
        """`code: message`, as it stands in the reply's `error`."""
        return f"{self.code}: {self.message[:_LONGEST]}"

    def headers(self) -> dict[str, str]:
        """Headers that go with the reply."""
        return {}


class BadOption(ServiceError):
    """The request is malformed, or an option has a value that cannot be used."""

    code = "bad_option"
    status = 400


class NoMembers(BadOption):
    """No members of a function keep the limits of a request. It names members."""


class BadInput(ServiceError):
    """A row's input is at fault, and the caller did not ask for errors by row."""

    status = 400

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Unauthorized(ServiceError):
    """The server wants a token, and the one sent is missing or wrong."""

    code = "unauthorized"
    status = 401

    def headers(self) -> dict[str, str]:
        """The challenge that RFC 6750 asks for."""
        return {"WWW-Authenticate": "Bearer"}


class LoginWanted(ServiceError):
    """A browser asks for a page, and nobody is logged in there. `where`: to log in, relative to the page."""

    code = "unauthorized"
    status = 303

    def __init__(self, where: str) -> None:
        super().__init__("log in first")
        self.where = where

    def headers(self) -> dict[str, str]:
        """Where the browser goes."""
        return {"Location": self.where, "Cache-Control": "no-store"}


class Forbidden(ServiceError):
    """The caller is known, or named a page or host, and may not do that. by: the token's name."""

    code = "forbidden"
    status = 403

    def __init__(self, message: str, by: str = "") -> None:
        super().__init__(message)
        self.by = by


class WrongContentType(ServiceError):
    """What changes something here says what its body is; any web page could send it otherwise."""

    code = "bad_option"
    status = 415


class MethodNotAllowed(ServiceError):
    """The route takes POST alone."""

    code = "bad_option"
    status = 405

    def headers(self) -> dict[str, str]:
        """What RFC 9110 asks for."""
        return {"Allow": "POST"}


class UnknownFunction(ServiceError):
    """No function or model of this name is served."""

    code = "unknown_function"
    status = 404


class VersionGone(ServiceError):
    """The function is served, but no longer (or not yet) in this version."""

    code = "version_gone"
    status = 410


class BodyTooLarge(ServiceError):
    """The request as a whole is over a limit."""

    code = "input_too_large"
    status = 413


class Unsupported(ServiceError):
    """A part of the protocol that this server does not have."""

    code = "unsupported"
    status = 501


class Overloaded(ServiceError):
    """No room now; the same request may succeed after `retry_after_s`."""

    code = "overloaded"
    status = 503

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def headers(self) -> dict[str, str]:
        """`Retry-After` in whole seconds, as RFC 9110 has it."""
        return {"Retry-After": str(max(1, math.ceil(min(self.retry_after_s, 3600.0))))}


class ShuttingDown(Overloaded):
    """This server takes nothing more; nothing was done, and another server of the registry may take it."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down", retry_after_s=5.0)

    def headers(self) -> dict[str, str]:
        """By which a client with several endpoints knows to ask the next."""
        return {**super().headers(), "ML-UDF-Draining": "1"}


class QuotaExceeded(Overloaded):
    """The caller's token has all that it may have at a time; others may find room."""

    code = "quota_exceeded"
    status = 429


class BulkHeld(Overloaded):
    """The request's bulk job is paused, or has had its rows of this second; `GET /v1/bulk-jobs/ID` says for
    how long.
    """

    code = "bulk_held"


class BulkCancelled(ServiceError):
    """The request's bulk job was cancelled here."""

    code = "cancelled"
    status = 409


class UnknownBulkJob(ServiceError):
    """No bulk job of this id is there, or none that the caller sees."""

    code = "bad_option"
    status = 404


class RemoteUnavailable(ServiceError):
    """A model behind another server cannot be asked now; the message says where and why."""

    code = "remote_unavailable"
    status = 503


class LeaseLost(ServiceError):
    """Another server has taken over what this one did for all of the registry."""

    def __init__(self) -> None:
        super().__init__("another server of this registry has taken over; this one writes nothing more")


class NoSpace(ServiceError):
    """The disk is full; nothing was changed."""

    code = "no_space"
    status = 507


class DeadlineExceeded(ServiceError):
    """The deadline has passed, or is predicted to."""

    code = "deadline_exceeded"
    status = 504


class WorkerLost(ServiceError):
    """A worker died under these rows, and another one (or its successor) did as well."""

    code = "worker_lost"
