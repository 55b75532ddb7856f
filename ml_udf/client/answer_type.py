"""Which kind of value an output is, by its datatype, shape and content alone. Pure.

Each engine has its types for the kinds.
"""

from __future__ import annotations

from array import array
from typing import Any, Literal, TypeAlias

from ml_udf.client.contents import BOXES, JSON, LABELS
from ml_udf.client.function_info import FunctionInfo

__all__ = ["AnswerKind", "answer_kind", "sample_answer"]

AnswerKind: TypeAlias = Literal[
    "text", "labels", "boxes", "json", "number", "whole", "boolean", "floats", "numbers"
]

_WHOLE = {"UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"}
_CONTENTS: dict[str, AnswerKind] = {LABELS: "labels", BOXES: "boxes", JSON: "json"}


def answer_kind(info: FunctionInfo) -> AnswerKind:
    """The kind of a row's answer: "floats" are a vector of float32, "numbers" one of any others.

    A content that is not known here is a text as it is; of several texts in a row there is no kind: a text
    too.
    """
    if info.output_datatype == "BYTES":
        return _CONTENTS.get(info.output_content, "text")
    if info.output_width != 1:
        return "floats" if info.output_datatype == "FP32" else "numbers"
    if info.output_datatype == "BOOL":
        return "boolean"
    return "whole" if info.output_datatype in _WHOLE else "number"


def sample_answer(info: FunctionInfo) -> Any:  # noqa: ANN401  # of the wire's types
    """An answer such as the function may give, to try on a type that shall take it; None of any text."""
    wide = max(2, info.output_width)
    samples: dict[AnswerKind, Any] = {
        "text": None,
        "labels": '["a"]',
        "boxes": '[{"label": "a", "score": 0.5, "box": [0.0, 0.0, 1.0, 1.0]}]',
        "json": "{}",
        "number": 1.0,
        "whole": 1,
        "boolean": True,
        "floats": array("f", [1.0] * wide),
        "numbers": [1.0] * wide,
    }
    return samples[answer_kind(info)]
