"""A prediction's id: what a label needs to teach, without the input and with nothing kept for it.

    id = base64url(format, version, digest of the input, context, answer, who answered, what they said,
                   authenticator)

The members' answers travel in the id, their likeliest classes or their numbers, so it is good as long as its
deployment is served: on every server of the registry, after a restart, for as many predictions as there are.
A key of the registry authenticates it for one function: nobody can make one, or change one. Of the input it
holds a digest alone. Pure.
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

__all__ = [
    "PredictionId",
    "PredictionIds",
    "Told",
    "UnknownPrediction",
    "ids_of",
    "input_digest",
    "told_of",
]

_BY_ALL = 1  # formats: classes, and all members said one
_BY_SOME = 2  # the same, and a bit for each member says whether it answered
_NUMBERS = 3  # numbers, and such bits
_HEAD = struct.Struct("<BI32s16sHBB")  # format, version, digest, context, answer, members, classes of each
_CLASS = struct.Struct("<HH")  # a class, and how probable in 65535ths
_NUMBER = struct.Struct("<d")
_KEPT = 4  # classes of a member: the rest share what is left
_WHOLE = 65535
_NO_ANSWER = 65535
_MOST_MEMBERS = 255
_MAC_BYTES = 16
_NO_CONTEXT = bytes(16)
# A registry that was restored from a backup gives its versions' numbers once more, and has the same key.
_SET_BACK = "it is of another deployment of that number, from before the registry was restored"

Scores = NDArray[np.floating[Any]]


class UnknownPrediction(Exception):
    """It is no id of this function that this registry has given; the text says what it is."""


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """What members said of rows.

    scores: [members, rows, classes], of numbers [members, rows, 1]; 0 where a member did not answer
    answered: [members, rows], whether it did
    """

    scores: Scores
    answered: NDArray[np.bool_]

    @property
    def by_all(self) -> list[bool]:
        """Of each row, whether every member answered it."""
        found: list[bool] = np.all(self.answered, axis=0).tolist()
        return found


@dataclass(frozen=True, slots=True, eq=False)
class PredictionId:
    """A row that was answered.

    digest: of the input · context: as `Contexts.digest`, "" for none · answer: place of the label that was
    answered, None where the members' own was not sure enough; of numbers the number · scores: what each said,
    [members, classes], of numbers [members, 1] · members: the places of those that answered
    """

    version: int
    digest: str
    context: str
    answer: float | None
    scores: Scores
    members: tuple[int, ...]


class PredictionIds:
    """key: as the registry has it."""

    def __init__(self, key: bytes) -> None:
        self._key = hmac.digest(key, b"predictions", hashlib.sha256)

    def written(self, function: str, told: PredictionId) -> str:
        """The id of a class; "" where there are more classes or members than it can say."""
        members, classes = told.scores.shape
        if classes >= _NO_ANSWER or members > _MOST_MEMBERS:
            return ""
        by_all = len(told.members) == members
        kept = min(_KEPT, classes)
        answer = _NO_ANSWER if told.answer is None else int(told.answer)
        parts = [_head(_BY_ALL if by_all else _BY_SOME, told, answer, kept)]
        if not by_all:
            parts.append(_bits(told.members, members))
        said = told.scores[list(told.members)]
        likeliest = np.argsort(-said, axis=1, kind="stable")[:, :kept]
        for scores, places in zip(said, likeliest, strict=True):
            for place in places.tolist():
                parts.append(_CLASS.pack(place, round(_WHOLE * min(1.0, max(0.0, float(scores[place]))))))
        return self._sealed(function, b"".join(parts))

    def written_number(self, function: str, told: PredictionId) -> str:
        """The id of a number; "" where there are more members than it can say."""
        members = len(told.scores)
        if members > _MOST_MEMBERS or told.answer is None:
            return ""
        numbers = [told.answer, *told.scores[list(told.members), 0].tolist()]
        parts = [_head(_NUMBERS, told, _NO_ANSWER, 0), _bits(told.members, members)]
        return self._sealed(function, b"".join([*parts, *map(_NUMBER.pack, numbers)]))

    def read(
        self, function: str, version: int, classes: int | None, text: object, members: int | None = None
    ) -> PredictionId:
        """What an id says of a function's deployment. Raises `UnknownPrediction`.

        classes: how many it has; None for numbers. members: of the deployment; None for any number.
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
        kind = payload[0]
        if kind not in (_BY_ALL, _BY_SOME, _NUMBERS):
            raise UnknownPrediction("it is of another version of the server")
        _, of_version, digest, context, answer, told_members, kept = _HEAD.unpack_from(payload)
        if of_version != version:
            raise UnknownPrediction(
                f"it has expired: version {of_version} of {function} answered it, and {version} answers now"
            )
        if members not in (None, told_members) or (kind == _NUMBERS) != (classes is None):
            raise UnknownPrediction(_SET_BACK)
        at, by = _HEAD.size, tuple(range(told_members))
        if kind != _BY_ALL:
            nbytes = (told_members + 7) // 8
            bits = int.from_bytes(payload[at : at + nbytes], "little")
            at, by = at + nbytes, tuple(place for place in by if bits >> place & 1)
        found: float | None
        if classes is None:
            scores = np.zeros((told_members, 1))
            (found,) = _NUMBER.unpack_from(payload, at)
            for number, place in enumerate(by, 1):
                (scores[place, 0],) = _NUMBER.unpack_from(payload, at + _NUMBER.size * number)
        else:
            if answer != _NO_ANSWER and answer >= classes:
                raise UnknownPrediction(_SET_BACK)
            found = None if answer == _NO_ANSWER else answer
            scores = np.zeros((told_members, classes))
            for number, place in enumerate(by):
                _read_classes(payload, at + _CLASS.size * kept * number, kept, scores[place])
        in_context = "" if context == _NO_CONTEXT else context.hex()
        return PredictionId(of_version, digest.hex(), in_context, found, scores, by)

    def _sealed(self, function: str, payload: bytes) -> str:
        return base64.urlsafe_b64encode(payload + self._mac(function, payload)).rstrip(b"=").decode()

    def _mac(self, function: str, payload: bytes) -> bytes:
        told = f"{function}\0".encode() + payload
        return hmac.digest(self._key, told, hashlib.sha256)[:_MAC_BYTES]


def ids_of(ids: PredictionIds, reply: Reply, form: Form, rows: Sequence[bytes], context: str) -> list[str]:
    """The id of each row of a reply that says what the members said; "" for what no label can be given of.

    That is: of a row at fault, and where feedback is not taken. context: in which it was asked, as
    `Contexts.digest` writes it.
    """
    function = reply.function
    found = [""] * reply.rows
    if not function.takes_feedback or form == "tensor" or not reply.told:
        return found
    place_of = {label: place for place, label in enumerate(function.classes)}
    values = reply.columns[function.task.value.name].values
    for offset, answer in reply.told:
        told = told_of(function, answer)
        answered = told.answered.T.tolist()
        for at in range(told.scores.shape[1]):
            row = offset + at
            if row in reply.errors:
                continue
            digest = input_digest(form, rows[row], context)
            by = tuple(place for place, has_said in enumerate(answered[at]) if has_said)
            if function.answers_numbers:
                number = float(values[row])
                prediction = PredictionId(function.version, digest, context, number, told.scores[:, at], by)
                found[row] = ids.written_number(function.name, prediction)
            else:
                label = None if row in reply.defaulted else place_of.get(values[row])
                prediction = PredictionId(function.version, digest, context, label, told.scores[:, at], by)
                found[row] = ids.written(function.name, prediction)
    return found


def input_digest(form: Form, row: bytes, context: str) -> str:
    """Of a row in a context: what somebody says there is true there, whatever was said elsewhere."""
    place = form.encode() if not context else f"{form}\0{context}".encode()
    return hashlib.sha256(place + b"\0" + row).hexdigest()


def told_of(function: Function, answer: Answer) -> Told:
    """What each member said of the rows of an answer, in the function's order; of a proxy's nothing."""
    wanted, kind, width = ("value", "<f8", 1) if function.answers_numbers else ("scores", "<f4", 0)
    width = width or len(function.classes)
    rows = answer.members[0].columns[0].rows if answer.members else 0
    scores = np.zeros((len(function.members), rows, width), kind)
    answered = np.zeros((len(function.members), rows), np.bool_)
    masks = np.array(answer.answered, np.int64) if answer.answered else np.full(rows, -1)
    place_of = {member.key: place for place, member in enumerate(function.members)}
    for bit, member in enumerate(answer.members):
        place = place_of.get(member.model)
        column = next((each for each in member.columns if each.name == wanted), None)
        if place is None or column is None:
            continue
        answered[place] = masks >> bit & 1
        said = np.frombuffer(column.data, kind).reshape(rows, -1)  # type: ignore[arg-type]  # numbers
        scores[place] = np.where(answered[place][:, None], said, 0.0)
    return Told(scores, answered)


def _head(kind: int, told: PredictionId, answer: int, kept: int) -> bytes:
    context = bytes.fromhex(told.context) or _NO_CONTEXT
    digest = bytes.fromhex(told.digest)
    return _HEAD.pack(kind, told.version, digest, context, answer, len(told.scores), kept)


def _bits(members: Sequence[int], count: int) -> bytes:
    """A bit for each of so many members: whether it is one of these places."""
    return sum(1 << place for place in members).to_bytes((count + 7) // 8, "little")


def _read_classes(payload: bytes, at: int, kept: int, scores: Scores) -> None:
    """What a member said, from that byte on, into `scores`, [classes]; other classes share what is left."""
    told = [_CLASS.unpack_from(payload, at + _CLASS.size * number) for number in range(kept)]
    if any(place >= len(scores) for place, _ in told):
        raise UnknownPrediction(_SET_BACK)
    left = max(0.0, 1.0 - sum(share for _, share in told) / _WHOLE)
    scores[:] = left / max(1, len(scores) - kept)
    for place, share in told:
        scores[place] = share / _WHOLE
