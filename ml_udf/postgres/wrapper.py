"""The text of a function that `ml_udf.create_function` makes, and of its twin.

The twin takes and returns arrays, one value per row: same schema, owner, right to execute and parallel
label, the name with `_batch` behind it. By these signs the plan node finds it. Pure: text in, text out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from ml_udf.client import FunctionInfo

__all__ = ["COST", "READER", "Wrapper", "quoted"]

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

    @property
    def signature(self) -> str:
        """`schema.name(type)`, quoted."""
        return self._signature(self.name, self.argument)

    def signatures(self) -> list[tuple[str, str, str]]:
        """(name, argument type, result type) of the function and, where there can be one, of its twin."""
        scalar = (self.name, self.argument, self.returns)
        argument, returns = _many(self.argument), _many(self.returns)
        if argument is None or returns is None:
            return [scalar]
        return [scalar, (self.name + "_batch", argument, returns)]

    def create(self) -> list[str]:
        """The statements that create or replace both."""
        return [
            f"CREATE OR REPLACE FUNCTION {quoted(self.schema)}.{quoted(name)}({parameter} {argument})"
            f" RETURNS {returns} LANGUAGE plpython3u STABLE STRICT PARALLEL {self.parallel} COST {COST}"
            f" SET search_path = pg_catalog, pg_temp{later} AS {_literal(self._body(entry, parameter))}"
            for (name, argument, returns), (entry, parameter, later) in zip(
                self.signatures(),
                # The twin can begin with rows and answer later, if the plan node asks it to.
                (("scalar", "input", ""), ("batch", "inputs", " SET ml_udf.answers_later = on")),
                strict=False,
            )
        ]

    def hand_over(self, owner: str, *, is_new: bool) -> list[str]:
        """The statements that give both to their owner and, when new, to the readers alone."""
        statements = []
        for signature in self._all():
            statements.append(f"ALTER FUNCTION {signature} OWNER TO {quoted(owner)}")
            if is_new:
                statements += [
                    f"REVOKE ALL ON FUNCTION {signature} FROM PUBLIC",
                    f"GRANT EXECUTE ON FUNCTION {signature} TO {READER}",
                    f"ALTER FUNCTION {signature} DEPENDS ON EXTENSION ml_udf",
                ]
        return statements

    def comment(self, info: FunctionInfo | None) -> list[str]:
        """The statements that comment on both; `info` is what the server said of the function, if asked."""
        text = f"{self.function} of server {self.server}"
        if info is not None and info.classes:
            classes = ", ".join(info.classes[:_SHOWN_CLASSES])
            text += f": one of {classes}{', …' if len(info.classes) > _SHOWN_CLASSES else ''}"
        comments = [f"{text} (made by ml_udf.create_function)", f"{text}; many rows at once, in order"]
        return [
            f"COMMENT ON FUNCTION {signature} IS {_literal(comment)}"
            for signature, comment in zip(self._all(), comments, strict=False)
        ]

    def _body(self, entry: str, argument: str) -> str:
        record: dict[str, object] = {
            "server": self.server,
            "function": self.function,
            "returns": self.returns,
        }
        optional = {"input_name": self.input_name, "output_name": self.output_name, "options": self.options}
        record |= {name: value for name, value in optional.items() if value}
        # Texts alone, so that the JSON is a Python literal as well; ASCII escapes would split rare
        # characters in two there.
        literal = json.dumps(record, ensure_ascii=False)
        return _BODY.format(entry=entry, record=literal, argument=argument)

    def _all(self) -> list[str]:
        return [self._signature(name, argument) for name, argument, _ in self.signatures()]

    def _signature(self, name: str, argument: str) -> str:
        return f"{quoted(self.schema)}.{quoted(name)}({argument})"


def _many(kind: str) -> str | None:
    """The array type that holds one `kind` per row; None where there is none."""
    if kind.endswith("[]"):  # PostgreSQL has no arrays of arrays: each goes into a row of its own
        vector = _VECTORS.get(kind)
        return vector and f"{vector}[]"
    return f"{kind}[]"


def quoted(name: str) -> str:
    """An SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    """An SQL literal that reads the same whatever standard_conforming_strings is."""
    return " E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
