"""The text of a function that `ml_udf.create_function` makes, and of its twin.

The twin takes and returns arrays, one value per row: same schema, owner, right to execute and parallel
label, the name with `_batch` behind it. By these signs the plan node finds it. Vectors it returns as bytes
(`ml_udf.postgres.binary`). Pure: text in, text out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from ml_udf.client import FunctionInfo
from ml_udf.postgres.binary import is_binary
from ml_udf.quoting import literal, quoted

__all__ = ["COST", "READER", "Wrapper", "granted"]

COST = 10_000  # so that cheap conditions are evaluated first, and the call moves behind ORDER BY … LIMIT
READER = "ml_udf_reader"
_SHOWN_CLASSES = 12
_VECTORS = {"real[]": "ml_udf.float4_vector", "double precision[]": "ml_udf.float8_vector"}

_BODY = """if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].{entry}({record}, {argument})"""


@dataclass(slots=True)
class Wrapper:
    """One SQL function for one function of one server. Types are named as PostgreSQL prints them."""

    schema: str
    name: str
    argument: str
    returns: str
    server: str
    function: str
    parallel: str
    options: Mapping[str, str] = field(default_factory=dict)
    input_name: str | None = None
    output_name: str | None = None
    server_oid: str | None = None
    server_owner: str | None = None
    grant_to: str | None = READER
    # False: as twins of vectors that were made before are, who may be granted to roles; and of a type that
    # is named as pgvector's, and is another.
    twin_is_binary: bool = True

    @property
    def signature(self) -> str:
        """`schema.name(type)`, quoted."""
        return self._signature(self.name, self.argument)

    def signatures(self) -> list[tuple[str, str, str]]:
        """(name, argument type, result type) of the function and, where there can be one, of its twin."""
        scalar = (self.name, self.argument, self.returns)
        argument = _many(self.argument)
        returns = "bytea[]" if self._returns_bytes else _many(self.returns)
        if argument is None or returns is None:
            return [scalar]
        return [scalar, (self.name + "_batch", argument, returns)]

    @property
    def _returns_bytes(self) -> bool:
        return self.twin_is_binary and is_binary(self.returns)

    def claim(self, signature: tuple[str, str, str], *, is_new: bool) -> str:
        """The statement by which the function's owner-to-be takes hold of one of `signatures`.

        It runs with the caller's rights, before `create`. A new function is created, empty, and so is the
        caller's; one that exists is altered, which its owner alone may. PostgreSQL itself checks either on
        what is so now, whatever the transaction's snapshot shows, and locks the function until the end.
        """
        name, argument, returns = signature
        if not is_new:
            return f"ALTER FUNCTION {self._signature(name, argument)} COST {COST}"
        return (
            f"CREATE FUNCTION {quoted(self.schema)}.{quoted(name)}({self._parameter(name)} {argument})"
            f" RETURNS {returns} LANGUAGE sql STABLE STRICT AS {literal(f'SELECT NULL::{returns}')}"
        )

    def create(self) -> list[str]:
        """The statements that give both their text; for superusers, and over functions that are there."""
        return [
            f"CREATE OR REPLACE FUNCTION {quoted(self.schema)}.{quoted(name)}"
            f"({self._parameter(name)} {argument})"
            f" RETURNS {returns} LANGUAGE plpython3u STABLE STRICT PARALLEL {self.parallel} COST {COST}"
            f" SET search_path = pg_catalog, pg_temp{later}"
            f" AS {literal(self._body(entry, self._parameter(name)))}"
            for (name, argument, returns), (entry, later) in zip(
                self.signatures(),
                # The twin can begin with rows and answer later, if the plan node asks it to.
                (("scalar", ""), ("batch", " SET ml_udf.answers_later = on")),
                strict=False,
            )
        ]

    def grant(self, signature: tuple[str, str, str]) -> list[str]:
        """The statements that give one of `signatures`, a new one, to `grant_to` alone."""
        return granted(self._signature(*signature[:2]), self.grant_to)

    def tie(self) -> list[str]:
        """The statements by which both go with the extension: a function forgets it with its old text."""
        return [f"ALTER FUNCTION {signature} DEPENDS ON EXTENSION ml_udf" for signature in self.all()]

    def comment(self, info: FunctionInfo | None) -> list[str]:
        """The statements that comment on both; `info` is what the server said of the function, if asked."""
        text = f"{self.function} of server {self.server}"
        if info is not None and info.classes:
            classes = ", ".join(info.classes[:_SHOWN_CLASSES])
            text += f": one of {classes}{', …' if len(info.classes) > _SHOWN_CLASSES else ''}"
        comments = [f"{text} (made by ml_udf.create_function)", f"{text}; many rows at once, in order"]
        return [
            f"COMMENT ON FUNCTION {signature} IS {literal(comment)}"
            for signature, comment in zip(self.all(), comments, strict=False)
        ]

    def _body(self, entry: str, argument: str) -> str:
        record: dict[str, object] = {
            "server": self.server,
            "function": self.function,
            "returns": self.returns,
        }
        if entry == "batch" and self._returns_bytes:
            record["results"] = "binary"
        optional = {
            "server_oid": self.server_oid,
            "server_owner": self.server_owner,
            "input_name": self.input_name,
            "output_name": self.output_name,
            "options": self.options,
        }
        record |= {name: value for name, value in optional.items() if value}
        # Texts alone, so that the JSON is a Python literal as well; ASCII escapes would split rare
        # characters in two there.
        literal = json.dumps(record, ensure_ascii=False)
        return _BODY.format(entry=entry, record=literal, argument=argument)

    def _parameter(self, name: str) -> str:
        return "input" if name == self.name else "inputs"

    def all(self) -> list[str]:
        """The quoted signatures of both."""
        return [self._signature(name, argument) for name, argument, _ in self.signatures()]

    def _signature(self, name: str, argument: str) -> str:
        return f"{quoted(self.schema)}.{quoted(name)}({argument})"


def _many(kind: str) -> str | None:
    """The array type that holds one `kind` per row; None where there is none."""
    if kind.endswith("[]"):  # PostgreSQL has no arrays of arrays: each goes into a row of its own
        vector = _VECTORS.get(kind)
        return vector and f"{vector}[]"
    return f"{kind}[]"


def granted(signature: str, role: str | None) -> list[str]:
    """The statements that let `role` alone, beside the owner, execute a function; None = nobody."""
    statements = [f"REVOKE ALL ON FUNCTION {signature} FROM PUBLIC"]
    if role is not None:
        grantee = "PUBLIC" if role == "public" else quoted(role)
        statements.append(f"GRANT EXECUTE ON FUNCTION {signature} TO {grantee}")
    return statements
