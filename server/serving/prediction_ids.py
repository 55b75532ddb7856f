"""A prediction's id: what a label needs to teach, without the input and with nothing kept for it.

    id = base64url(format, version, digest of the input, context, answer, what members said, authenticator)

The members' answers travel in the id, their likeliest classes, so it is good as long as its deployment is
served: on every server of the registry, after a restart, for as many predictions as there are. A key of the
registry authenticates it for one function: nobody can make one, or change one. Of the input it holds a digest
alone. Pure.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_worker.wire.protocol import Answer
from server.catalog.functions import Form, Function
from server.serving.calls import Reply

__all__ = ["PredictionId", "PredictionIds", "UnknownPrediction", "ids_of", "input_digest", "scores_told"]

_FORMAT = 1
_HEAD = struct.Struct("<BI32s16sHBB")  # format, version, digest, context, answer, members, classes of each
_CLASS = struct.Struct("<HH")  # a class, and how probable in 65535ths
_KEPT = 4  # classes of a member: the rest share what is left
_WHOLE = 65535
_NO_ANSWER = 65535
_MAC_BYTES = 16
_NO_CONTEXT = bytes(16)
# A registry that was restored from a backup gives its versions' numbers once more, and has the same key.
_SET_BACK = "it is of another deployment of that number, from before the registry was restored"

Scores = NDArray[np.floating[Any]]


class UnknownPrediction(Exception):
    """It is no id of this function that this registry has given; the text says what it is."""


@dataclass(frozen=True, slots=True, eq=False)
class PredictionId:
    """A row that was answered.

    digest: of the input · context: as `Contexts.digest`, "" for none · answer: place of the label that was
    answered; None where the members' own was not sure enough · scores: what each said, [members, classes]
    """

    version: int
    digest: str
    context: str
    answer: int | None
    scores: Scores


class PredictionIds:
    """key: as the registry has it."""

    def __init__(self, key: bytes) -> None:
        self._key = hmac.digest(key, b"predictions", hashlib.sha256)

    def written(self, function: str, told: PredictionId) -> str:
        """The id; "" where there are more classes or members than it can say."""
        members, classes = told.scores.shape
        if classes >= _NO_ANSWER or members > 255:
            return ""
        kept = min(_KEPT, classes)
        likeliest = np.argsort(-told.scores, axis=1, kind="stable")[:, :kept]
        parts = [
            _HEAD.pack(
                _FORMAT,
                told.version,
                bytes.fromhex(told.digest),
                bytes.fromhex(told.context) or _NO_CONTEXT,
                _NO_ANSWER if told.answer is None else told.answer,
                members,
                kept,
            )
        ]
        for scores, places in zip(told.scores, likeliest, strict=True):
            for place in places.tolist():
                parts.append(_CLASS.pack(place, round(_WHOLE * min(1.0, max(0.0, float(scores[place]))))))
        payload = b"".join(parts)
        return base64.urlsafe_b64encode(payload + self._mac(function, payload)).rstrip(b"=").decode()

    def read(
        self, function: str, version: int, classes: int, text: object, members: int | None = None
    ) -> PredictionId:
        """What an id says of a function's deployment, of so many classes. Raises `UnknownPrediction`.

        members: of the deployment; None for any number.
        """
        if not isinstance(text, str):
            raise UnknownPrediction("the id of a prediction is a text")
        try:
            raw = base64.b64decode(
                text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True
            )
        except (UnicodeEncodeError, binascii.Error) as exc:
            raise UnknownPrediction("it is no id of a prediction") from exc
        payload, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(function, payload)):
            raise UnknownPrediction(f"it is no id that this server has given for {function}")
        if payload[0] != _FORMAT:
            raise UnknownPrediction("it is of another version of the server")
        _, of_version, digest, context, answer, told_members, kept = _HEAD.unpack_from(payload)
        if of_version != version:
            raise UnknownPrediction(
                f"it has expired: version {of_version} of {function} answered it, and {version} answers now"
            )
        if members not in (None, told_members) or (answer != _NO_ANSWER and answer >= classes):
            raise UnknownPrediction(_SET_BACK)
        scores = np.empty((told_members, classes))
        at = _HEAD.size
        for row in scores:
            told = [_CLASS.unpack_from(payload, at + _CLASS.size * number) for number in range(kept)]
            at += _CLASS.size * kept
            if any(place >= classes for place, _ in told):
                raise UnknownPrediction(_SET_BACK)
            left = max(0.0, 1.0 - sum(share for _, share in told) / _WHOLE)
            row[:] = left / max(1, classes - kept)
            for place, share in told:
                row[place] = share / _WHOLE
        return PredictionId(
            of_version,
            digest.hex(),
            "" if context == _NO_CONTEXT else context.hex(),
            None if answer == _NO_ANSWER else answer,
            scores,
        )

    def _mac(self, function: str, payload: bytes) -> bytes:
        told = f"{function}\0".encode() + payload
        return hmac.digest(self._key, told, hashlib.sha256)[:_MAC_BYTES]


def ids_of(ids: PredictionIds, reply: Reply, form: Form, rows: Sequence[bytes], context: str) -> list[str]:
    """The id of each row of a reply that says what the members said; "" where a label could teach nothing.

    That is: of a row at fault, of one that not all members answered, and where feedback is not taken.
    context: in which it was asked, as `Contexts.digest` writes it.
    """
    function = reply.function
    found = [""] * reply.rows
    if not function.takes_feedback or form == "tensor" or not reply.told:
        return found
    place_of = {label: place for place, label in enumerate(function.classes)}
    labels = reply.columns[function.task.value.name].values
    for offset, told in reply.told:
        scores = scores_told(function, told)
        if scores is None:
            continue
        for at in range(scores.shape[1]):
            row = offset + at
            if row in reply.errors:
                continue
            answer = None if row in reply.defaulted else place_of.get(labels[row])
            digest = input_digest(form, rows[row], context)
            prediction = PredictionId(function.version, digest, context, answer, scores[:, at])
            found[row] = ids.written(function.name, prediction)
    return found


def input_digest(form: Form, row: bytes, context: str) -> str:
    """Of a row in a context: what somebody says there is true there, whatever was said elsewhere."""
    place = form.encode() if not context else f"{form}\0{context}".encode()
    return hashlib.sha256(place + b"\0" + row).hexdigest()


def scores_told(function: Function, told: Answer) -> Scores | None:
    """What each member said, [members, rows, classes], in the function's order; None unless all did.

    Of numbers: [members, rows, 1], float64.
    """
    wanted, kind = ("value", "<f8") if function.answers_numbers else ("scores", "<f4")
    columns = {
        member.model: column for member in told.members for column in member.columns if column.name == wanted
    }
    if not columns.keys() >= {member.key for member in function.members}:  # a proxy may be there too
        return None
    each = (columns[member.key] for member in function.members)
    return np.stack(
        [np.frombuffer(column.data, kind).reshape(column.rows, -1) for column in each]  # type: ignore[arg-type]  # numbers
    )
