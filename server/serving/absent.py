"""Members that cannot be asked: of models behind other servers, while those do not answer.

Pure. Says whom rows are asked of meanwhile, and what rows answer that have nobody else to ask.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_worker.wire.protocol import Answer, Failed, Message, RowError
from server.catalog.functions import Function
from server.ensemble.answer import FunctionAnswer
from server.errors import RemoteUnavailable
from server.record import record
from server.serving.calls import Call
from server.serving.evidence import MEMBER_FAULTS

__all__ = ["MemberOut", "asked_now", "faulty_rows", "unanswered"]


@record
class MemberOut:
    """Why a member cannot be asked. waits: more will be known soon, and rows of it alone wait for that."""

    error: RowError
    waits: bool = False


def asked_now(
    call: Call, members: tuple[str, ...] | None, out: Mapping[str, MemberOut]
) -> tuple[tuple[str, ...] | None, dict[str, MemberOut]]:
    """The members that rows go to, None for all that the call asks for; and those that are left out for it.

    members: that they would go to. No members: nobody can be asked. Rows that follow a plan go where it says:
    it asks nobody who is not there.
    """
    function = call.function
    wanted = members or call.members
    if wanted is None and function.follows_plans:
        return None, {}
    keys = wanted or tuple(model.key for model in function.members)
    gone = {key: out[key] for key in keys if key in out}
    left = tuple(key for key in keys if key not in gone)
    if not gone or (not left and any(each.waits for each in gone.values())):
        return members, {}
    return left, gone


def faulty_rows(function: Function, rows: int, error: RowError) -> FunctionAnswer:
    """Rows that have the same error for their answer."""
    columns = {spec.name: spec.empty(rows, function.sizes) for spec in function.outputs}
    errors = [RowError(row, error.code, error.message) for row in range(rows)]
    return FunctionAnswer(rows, columns, errors, "")


def unanswered(reply: Message, rows: int, *, choices: bool) -> Failed | None:
    """A batch of which a member has answered no row, for a fault of its own, where that teaches nothing.

    choices: its rows may be asked of others yet: then one such row is enough, and all of them are.
    """
    if not isinstance(reply, Answer):
        return None
    faults = [error for error in reply.errors if error.code in MEMBER_FAULTS]
    if not faults or (len(faults) < rows and not choices):
        return None
    return Failed(reply.id, RemoteUnavailable.code, faults[0].message, reply.work_s, reply.stay_s)
