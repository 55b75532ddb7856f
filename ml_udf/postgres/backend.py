"""What the server's own process says about the statement under way, read through its exported symbols.

A query through SPI costs some 25 µs and a subtransaction, which a parallel plan forbids; these reads cost
under 1 µs each and change nothing. All symbols are exported by PostgreSQL 15 to 18. Nothing here can raise a
PostgreSQL error, which would jump over Python's frames: only variables, and functions that never do.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable
from enum import IntEnum

__all__ = ["Asked", "Backend"]


class Asked(IntEnum):
    """What the plan node asks of the twin that it is calling; see sql/postgres/batch/exec/overlap.c."""

    ANSWERS = 0
    BEGIN = 1
    FORGET = 2


_XACT_EVENT_ABORT = 2  # of access/xact.h
_SUBXACT_EVENT_ABORT = 2
_STATEMENT_TIMEOUT = 3  # of utils/timeout.h


class _ResetCallback(ctypes.Structure):
    """MemoryContextCallback of utils/palloc.h; PostgreSQL links it into the context's list."""


_XACT_FUNCTION = ctypes.PYFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)
_SUBXACT_FUNCTION = ctypes.PYFUNCTYPE(None, ctypes.c_int, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)
_RESET_FUNCTION = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_ResetCallback._fields_ = [
    ("func", _RESET_FUNCTION),
    ("arg", ctypes.c_void_p),
    ("next", ctypes.c_void_p),
]


class Backend:
    """This connection's server process."""

    def __init__(self) -> None:
        self._server = server = ctypes.PyDLL(None)  # PyDLL: keeps the interpreter's lock, so no thread runs
        self._interrupt_pending = ctypes.c_int.in_dll(server, "InterruptPending")
        self._contexts = [
            ctypes.c_void_p.in_dll(server, name)
            for name in ("PortalContext", "MessageContext", "TopTransactionContext")
        ]
        self._timeout_active = server.get_timeout_active
        self._timeout_active.restype = ctypes.c_bool
        self._timeout_at = server.get_timeout_finish_time
        self._timeout_at.restype = ctypes.c_int64
        self._now = server.GetCurrentTimestamp
        self._now.restype = ctypes.c_int64
        self._role = server.GetUserId
        self._role.restype = ctypes.c_uint32
        self._in_parallel_mode = server.IsInParallelMode
        self._in_parallel_mode.restype = ctypes.c_bool
        self._in_restricted_operation = server.InSecurityRestrictedOperation
        self._in_restricted_operation.restype = ctypes.c_bool
        self._in_transaction = server.IsTransactionState
        self._in_transaction.restype = ctypes.c_bool
        self._setting = server.GetConfigOption
        self._setting.restype = ctypes.c_char_p
        self._setting.argtypes = [ctypes.c_char_p, ctypes.c_bool, ctypes.c_bool]
        self._prepared = server.FetchPreparedStatement
        self._prepared.restype = ctypes.c_void_p
        self._prepared.argtypes = [ctypes.c_char_p, ctypes.c_bool]
        self._register = server.MemoryContextRegisterResetCallback
        self._register.restype = None
        self._register.argtypes = [ctypes.c_void_p, ctypes.POINTER(_ResetCallback)]
        self._register_xact = server.RegisterXactCallback
        self._register_xact.restype = None
        self._register_xact.argtypes = [_XACT_FUNCTION, ctypes.c_void_p]
        self._register_subxact = server.RegisterSubXactCallback
        self._register_subxact.restype = None
        self._register_subxact.argtypes = [_SUBXACT_FUNCTION, ctypes.c_void_p]
        self._subtransaction = server.GetCurrentSubTransactionId
        self._subtransaction.restype = ctypes.c_uint32
        self._xact_functions: list[object] = []
        try:
            self._asked = ctypes.c_int.in_dll(server, "ml_udf_batch_asked")
        except ValueError:  # the batching module is not loaded
            self._asked = ctypes.c_int(Asked.ANSWERS)
        try:
            self._cached = ctypes.c_uint64.in_dll(server, "ml_udf_batch_cached")
        except ValueError:  # not loaded, or one of before 0.7.0
            self._cached = ctypes.c_uint64(0)
        self._armed: set[_Armed] = set()
        self.version = int(self.setting(b"server_version_num") or 0)  # 150020 for 15.20

    def interrupt_pending(self) -> bool:
        """Whether a cancel, a timeout or a termination waits to be acted on."""
        return bool(self._interrupt_pending.value)

    def role(self) -> int:
        """The oid of current_user, inside SECURITY DEFINER functions the definer's."""
        return int(self._role())

    def setting(self, name: bytes) -> str | None:
        """The value of a setting; None where it has none."""
        raw: bytes | None = self._setting(name, True, False)  # missing is fine; superuser-only is not asked
        return raw.decode("utf-8", "replace") if raw is not None else None

    def has_prepared(self, name: bytes) -> bool:
        """Whether the session has a prepared statement of that name."""
        return bool(self._prepared(name, False))  # false: it is no error if there is none

    def statement_end_s(self) -> float | None:
        """When statement_timeout ends the statement, on time.monotonic()'s clock; None = never.

        It differs between the FETCHes of one cursor. What the setting says may be another matter: PostgreSQL
        reads it when a statement begins, and of several in one message each has its own time.
        """
        if not self._timeout_active(_STATEMENT_TIMEOUT):
            return None
        left_us = self._timeout_at(_STATEMENT_TIMEOUT) - self._now()
        return time.monotonic() + float(left_us) / 1e6

    def forbids_queries(self) -> bool:
        """Whether a query through SPI would fail because a parallel plan is active (up to PostgreSQL 16)."""
        return self.version < 170000 and bool(self._in_parallel_mode())

    def leaves_nothing(self) -> bool:
        """Whether what runs may leave nothing in the session, as within REFRESH MATERIALIZED VIEW."""
        return bool(self._in_restricted_operation())

    def in_transaction(self) -> bool:
        """Whether a transaction is in progress and sound; false while one is being rolled back."""
        return bool(self._in_transaction())

    def statement_context(self) -> int:
        """The memory context that lives exactly as long as the statement, as its identity.

        A cursor has its own; while the planner runs it is the client's message; in background workers
        without either, the transaction.
        """
        return next(int(context.value) for context in self._contexts if context.value)

    def take_asked(self) -> Asked:
        """What the function that was just entered is asked to do. Those that it calls in turn are not."""
        asked, self._asked.value = Asked(self._asked.value), Asked.ANSWERS
        return asked

    def tell_cached(self, inputs: int) -> None:
        """Have EXPLAIN ANALYZE show that so many inputs of the twin that runs were answered before."""
        self._cached.value += inputs

    def subtransaction(self) -> int:
        """The subtransaction that runs; those within it, and those after it, have larger numbers."""
        return int(self._subtransaction())

    def at_abort(self, callback: Callable[[int], None]) -> None:
        """Call `callback` whenever a transaction of this session is aborted, or a part of one.

        It is given the subtransaction, all of which is gone, and all within it; 0 = all. It must not query or
        raise. A failed statement's memory may live until the client ends its transaction; this comes at once.
        """

        def fire(event: int, _argument: int | None) -> None:
            if event == _XACT_EVENT_ABORT:
                with contextlib.suppress(Exception):
                    callback(0)

        def fire_within(event: int, gone: int, _parent: int, _argument: int | None) -> None:
            if event == _SUBXACT_EVENT_ABORT:
                with contextlib.suppress(Exception):
                    callback(gone)

        whole, part = _XACT_FUNCTION(fire), _SUBXACT_FUNCTION(fire_within)
        self._xact_functions += [whole, part]  # PostgreSQL keeps the pointers as long as the process lives
        self._register_xact(whole, None)
        self._register_subxact(part, None)

    def at_end_of(self, context: int, callback: Callable[[], None]) -> None:
        """Call `callback` once, when PostgreSQL frees that memory context. It must not query or raise."""
        armed = _Armed(self._armed, callback)
        self._register(context, armed.pointer)


class _Armed:
    """A callback that PostgreSQL holds a pointer to; stays referenced until it has fired."""

    def __init__(self, armed: set[_Armed], callback: Callable[[], None]) -> None:
        def fire(_argument: int | None) -> None:
            armed.discard(self)
            with contextlib.suppress(Exception):  # nobody above could take it: this is C's clean-up
                callback()

        self._struct = _ResetCallback(_RESET_FUNCTION(fire), None, None)
        self.pointer = ctypes.pointer(self._struct)
        armed.add(self)
