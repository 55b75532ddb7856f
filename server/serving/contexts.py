"""What contexts of the served functions have been taught, at hand for the next answer.

A context (a user, a session) is data, perhaps about a person. It is kept by a digest that nobody can make
without the registry's key, of its name and the function's: so no name of it lies anywhere, and nobody sees
that two functions were asked by the same one. Bounded as the registry is: of each function the contexts that
were taught last. On the event loop alone; knows neither HTTP nor tables.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from server.catalog.functions import Function
from server.ensemble.contexts import Context
from server.ensemble.feedback import shifts_in
from server.errors import BadOption

__all__ = ["LONGEST_CONTEXT", "MOST_CONTEXTS", "Contexts"]

MOST_CONTEXTS = 10_000  # of a deployment
LONGEST_CONTEXT = 200  # characters
_UNFIT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_DIGEST_BYTES = 16
_NOTHING: Mapping[str, Context] = MappingProxyType({})


class Contexts:
    """key: as the registry has it. most: of one deployment."""

    def __init__(self, key: bytes = b"", most: int = MOST_CONTEXTS) -> None:
        self._key = key
        self._most = most
        self._taught: dict[str, OrderedDict[str, Context]] = {}  # function's key → digest →, last taught last

    def digest(self, function: str, name: object) -> str:
        """A context of a function as it is kept; "" for none: null or the empty text. Raises `BadOption`."""
        if name is None or name == "":
            return ""
        if not isinstance(name, str) or len(name) > LONGEST_CONTEXT or _UNFIT.search(name):
            raise BadOption(
                f"a context must be a text of up to {LONGEST_CONTEXT} characters, none of them a control "
                "character"
            )
        told = f"{function}\0{name}".encode()
        return hmac.digest(self._key, told, hashlib.sha256)[:_DIGEST_BYTES].hex()

    def shifts(self, function: Function, context: str) -> tuple[float, ...] | None:
        """How a function's members are weighed in a context, for `Fit.in_context`; None: as everywhere."""
        known = self._taught.get(function.key, _NOTHING).get(context)
        fit = function.rule.fit
        if known is None or fit is None or function.feedback is None:
            return None
        return shifts_in(known, function.feedback, fit)

    def learn(self, function: Function, contexts: Iterable[tuple[str, Context]]) -> None:
        """What contexts of a deployment know, those that were taught longer ago first.

        One that was taught since this was read stays as it is.
        """
        taught = self._taught.setdefault(function.key, OrderedDict())
        for digest, context in contexts:
            known = taught.get(digest)
            if known is None or context.at >= known.at:
                taught[digest] = context
            taught.move_to_end(digest)
        while len(taught) > self._most:
            taught.popitem(last=False)

    def forget(self, function: Function) -> None:
        """A deployment is served no longer."""
        self._taught.pop(function.key, None)
